package tandem.example;

import com.google.protobuf.util.JsonFormat;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import tandem.v1.Finished;
import tandem.v1.GenerateRequest;
import tandem.v1.GenerateResponse;
import tandem.v1.GenerationGrpc;

/**
 * Streams a completion. Arguments: HOST:PORT MODEL PROMPT [fields of GenerateRequest as JSON].
 *
 * <p>Writes the text to standard output as it arrives, and the end of the request to standard error.
 * A call to a full server is retried by gRPC itself after the delay that the server states.
 */
public final class Main {
  /** As in docs/grpc_api.md. The server's trailer grpc-retry-pushback-ms sets the delay. */
  private static final Map<String, Object> SERVICE_CONFIG =
      Map.of(
          "methodConfig",
          List.of(
              Map.of(
                  "name",
                  List.of(Map.of("service", "tandem.v1.Generation")),
                  "retryPolicy",
                  Map.of(
                      "maxAttempts", 5.0,
                      "initialBackoff", "0.05s",
                      "maxBackoff", "1s",
                      "backoffMultiplier", 2.0,
                      "retryableStatusCodes", List.of("UNAVAILABLE", "RESOURCE_EXHAUSTED")))));

  public static void main(String[] args) throws Exception {
    if (args.length < 3) {
      System.err.println("arguments: HOST:PORT MODEL PROMPT [JSON]");
      System.exit(2);
    }
    // Names that are no fields are errors.
    GenerateRequest.Builder request = GenerateRequest.newBuilder();
    JsonFormat.parser().merge(args.length > 3 ? args[3] : "{}", request);
    request.setModel(args[1]).setText(args[2]);

    ManagedChannel channel =
        Grpc.newChannelBuilder(args[0], InsecureChannelCredentials.create())
            .defaultServiceConfig(SERVICE_CONFIG)
            .enableRetry()
            .build();
    try {
      stream(channel, request.build());
    } catch (StatusRuntimeException error) {
      System.err.println(error.getStatus().getCode() + ": " + error.getStatus().getDescription());
      System.exit(1);
    } finally {
      channel.shutdown().awaitTermination(5, TimeUnit.SECONDS);
    }
  }

  private static void stream(ManagedChannel channel, GenerateRequest request) {
    PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    Iterator<GenerateResponse> responses =
        GenerationGrpc.newBlockingStub(channel).generate(request);
    while (responses.hasNext()) {
      GenerateResponse response = responses.next();
      if (response.hasChunk()) {
        out.print(response.getChunk().getText());
        out.flush();
      } else if (response.hasFinished()) {
        Finished finished = response.getFinished();
        System.err.printf(
            "[%s: %d tokens, seed %s]%n",
            finished.getFinishReason().name().replace("FINISH_REASON_", ""),
            finished.getUsage().getCompletionTokens(),
            Long.toUnsignedString(finished.getSeed()));
      }
    }
  }

  private Main() {}
}
