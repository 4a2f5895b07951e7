"""Spans of calls, as an OpenTelemetry collector gets them from a server with --otlp."""

import json
import queue
import sys
import urllib.request
from concurrent import futures

import pytest

from tests.conftest import ROOT

grpc = pytest.importorskip("grpc")
grpc_tools = pytest.importorskip("grpc_tools")

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROMPT = "a secret of mine"


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """OTLP's messages, of proto/opentelemetry."""
    from grpc_tools import protoc

    folder = tmp_path_factory.mktemp("otlp")
    files = sorted(map(str, (ROOT / "proto/opentelemetry").rglob("*.proto")))
    assert protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder}", *files]) == 0
    sys.path.insert(0, str(folder))
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

    return trace_service_pb2


class Collector(grpc.GenericRpcHandler):
    def __init__(self, messages):
        self.messages = messages
        self.bytes = queue.Queue()

    def service(self, call):
        return grpc.unary_unary_rpc_method_handler(self.export) if call.method == EXPORT else None

    def export(self, request, context):
        self.bytes.put(request)
        return b""

    def spans(self, request_id):
        """All of the call with this id, its own one first; waits for it."""
        while True:
            batch = self.messages.ExportTraceServiceRequest.FromString(self.bytes.get(timeout=60))
            resource = {
                a.key: a.value.string_value for a in batch.resource_spans[0].resource.attributes
            }
            assert resource["service.name"] == "tandem"
            spans = list(batch.resource_spans[0].scope_spans[0].spans)
            for call in spans:
                if attributes(call).get("tandem.request_id") == request_id:
                    return [call] + [s for s in spans if s.parent_span_id == call.span_id]


def attributes(span):
    found = {}
    for attribute in span.attributes:
        value = attribute.value
        found[attribute.key] = getattr(value, value.WhichOneof("value"))
    return found


@pytest.fixture(scope="module")
def collector(messages):
    collector = Collector(messages)
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[collector])
    collector.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield collector
    server.stop(None).wait()


@pytest.fixture(scope="module")
def traced(start_server, collector):
    return start_server(None, "--openai=127.0.0.1:0", f"--otlp={collector.address}")


def metric(server, name):
    for line in server.metrics().splitlines():
        if line.startswith(f"tandem_{name} "):
            return float(line.split()[1])
    raise AssertionError(name)


def test_a_call_of_a_pair(traced, collector, tandem):
    done = tandem(
        "generate",
        "--model=pair",
        f"--prompt={PROMPT}",
        "--max-new-tokens=30",
        "--method=speculative",
        "--request-id=by-grpc",
        f"--traceparent=00-{TRACE}-{SPAN}-01",
        "--format=json",
        address=traced.grpc,
    )
    assert done.returncode == 0, done.stderr
    usage = json.loads(done.stdout)["usage"]
    call, *below = collector.spans("by-grpc")
    assert call.name == "tandem.v1.Generation/Generate"
    assert (call.trace_id.hex(), call.parent_span_id.hex()) == (TRACE, SPAN)
    assert [span.name for span in below] == ["queue", "prefill", "decode", "large", "small"]
    at = call.start_time_unix_nano
    for span in below[:3]:  # one after the other, within the call
        assert at <= span.start_time_unix_nano <= span.end_time_unix_nano
        at = span.end_time_unix_nano
    assert at <= call.end_time_unix_nano
    said = attributes(call)
    assert said["gen_ai.request.model"] == "pair"
    assert said["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert said["tandem.method"] == "speculative"
    assert {attributes(s)["tandem.model"] for s in below[3:]} == {"fake", "little"}
    assert all(attributes(span)["tandem.passes"] > 0 for span in below[3:])
    assert PROMPT not in str(call)


def test_a_call_by_http_and_one_that_is_refused(traced, collector):
    def ask(**fields):
        request = urllib.request.Request(
            f"http://{traced.ports['openai']}/v1/completions",
            json.dumps({"model": "fake", "prompt": PROMPT, "max_tokens": 3, **fields}).encode(),
            {
                "Content-Type": "application/json",
                "traceparent": f"00-{TRACE}-{SPAN}-01",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.headers["X-Request-Id"]
        except urllib.error.HTTPError as error:
            return error.headers["X-Request-Id"]

    call, *below = collector.spans(ask())
    assert call.name == "POST /v1/completions"
    assert (call.trace_id.hex(), call.parent_span_id.hex()) == (TRACE, SPAN)
    assert "decode" in {span.name for span in below}
    call, *below = collector.spans(ask(temperature=-1))
    assert attributes(call)["tandem.status"] == "INVALID_ARGUMENT"
    assert below == []
    assert call.status.code == 0, "the caller's fault"


def test_what_the_collector_took_is_counted(traced, collector, tandem):
    done = tandem(
        "generate", "--model=fake", "--prompt=x", "--request-id=counted", address=traced.grpc
    )
    assert done.returncode == 0
    call, *_ = collector.spans("counted")
    assert len(call.trace_id) == 16 and call.parent_span_id == b""
    assert metric(traced, "traces_dropped_total") == 0


def test_a_call_that_its_caller_does_not_trace(traced, collector, tandem):
    for name, flags in (("untraced", "00"), ("traced", "01")):
        trace = f"--traceparent=00-{TRACE}-{SPAN}-{flags}"
        how = ["--model=fake", "--prompt=x", "--max-new-tokens=1", f"--request-id={name}", trace]
        assert tandem("generate", *how, address=traced.grpc).returncode == 0
    seen = []
    while "traced" not in seen:
        batch = collector.messages.ExportTraceServiceRequest.FromString(
            collector.bytes.get(timeout=60)
        )
        spans = batch.resource_spans[0].scope_spans[0].spans
        seen += [attributes(s).get("tandem.request_id") for s in spans]
    assert "untraced" not in seen


def test_without_a_collector_calls_are_served(start_server, tandem, messages):
    server = start_server(None, "--otlp=http://127.0.0.1:1")
    for _ in range(3):
        done = tandem("generate", "--model=fake", "--prompt=x", address=server.grpc)
        assert done.returncode == 0, done.stderr
    assert metric(server, "spans_exported_total") == 0
    assert server.stop() == 0, "the end waits for no collector"


def test_wrong_endpoints_are_refused(binaries):
    import subprocess

    for endpoint in ("unknown", "http://unknown", "127.0.0.1:70000", "ftp://a:1"):
        done = subprocess.run(
            [binaries / "tandem-server", "--model=a=b", f"--otlp={endpoint}"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2
        assert f'--otlp: "{endpoint}"; allowed: HOST:PORT' in done.stderr
