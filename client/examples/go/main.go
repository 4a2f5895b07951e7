// Streams a completion from a Tandem server:
//
//	../../go/generate.sh           # once: messages and stubs
//	go run . -model code -prompt 'def fib(n):' -max-new-tokens 64
//
// Writes the text to standard output as it arrives, and the end of the request to standard error.
// Ctrl-C cancels the request. A call to a full server is retried after the delay of RetryInfo.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	tandemv1 "tandem.example/client/go/tandem/v1"
)

const attempts = 4

var (
	server       = flag.String("server", or(os.Getenv("TANDEM_SERVER"), "127.0.0.1:50051"), "`HOST:PORT`")
	model        = flag.String("model", "", "what to ask, required")
	prompt       = flag.String("prompt", "", "what the text begins with, required")
	maxNewTokens = flag.Int("max-new-tokens", 64, "")
	fields       = flag.String("fields", "{}", "further fields of GenerateRequest, as `JSON`")
)

func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

// A field that is unset follows the model's default, which is not the same as zero: such fields are
// pointers. Names that are no fields are errors.
func makeRequest() (*tandemv1.GenerateRequest, error) {
	request := &tandemv1.GenerateRequest{}
	if err := protojson.Unmarshal([]byte(*fields), request); err != nil {
		return nil, fmt.Errorf("-fields: %w", err)
	}
	request.Model = *model
	request.Prompt = &tandemv1.GenerateRequest_Text{Text: *prompt}
	request.MaxNewTokens = proto.Int32(int32(*maxNewTokens))
	return request, nil
}

// generate writes the text as it arrives. begun: some text has arrived, so a retry would repeat it.
func generate(ctx context.Context, client tandemv1.GenerationClient, request *tandemv1.GenerateRequest) (begun bool, err error) {
	stream, err := client.Generate(ctx, request)
	if err != nil {
		return false, err
	}
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return begun, nil
		}
		if err != nil {
			return begun, err
		}
		switch event := response.GetEvent().(type) {
		case *tandemv1.GenerateResponse_Chunk:
			begun = true
			fmt.Print(event.Chunk.GetText())
		case *tandemv1.GenerateResponse_Finished:
			end := event.Finished
			reason := strings.TrimPrefix(end.GetFinishReason().String(), "FINISH_REASON_")
			fmt.Fprintf(os.Stderr, "\n[%s: %d tokens, seed %d]\n",
				reason, end.GetUsage().GetCompletionTokens(), end.GetSeed())
		}
	}
}

// retryDelay is when the server says that it may be worth trying again, if it does.
func retryDelay(err error) (time.Duration, bool) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}

func generateWithRetries(ctx context.Context, client tandemv1.GenerationClient, request *tandemv1.GenerateRequest) error {
	for attempt := 1; ; attempt++ {
		begun, err := generate(ctx, client, request)
		delay, full := retryDelay(err)
		if err == nil || begun || !full || attempt == attempts {
			return err
		}
		fmt.Fprintf(os.Stderr, "[full: again in %v]\n", delay)
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

func run() error {
	request, err := makeRequest()
	if err != nil {
		return err
	}
	// With TLS: credentials.NewTLS(&tls.Config{}), or credentials.NewClientTLSFromFile("ca.pem", "").
	connection, err := grpc.NewClient(*server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	// A context that ends cancels the request, and the server stops decoding it.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if token := os.Getenv("TANDEM_TOKEN"); token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return generateWithRetries(ctx, tandemv1.NewGenerationClient(connection), request)
}

func main() {
	flag.Parse()
	if *model == "" || *prompt == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	err := run()
	if err == nil {
		return
	}
	if failed, ok := status.FromError(err); ok {
		fmt.Fprintf(os.Stderr, "%s: %s\n", code.Code(failed.Code()), failed.Message())
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(1)
}
