"""Other people's tools against a running server: grpcurl and promtool."""

import json
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest

METHODS = {
    "tandem.v1.Generation.Generate": {"model": "fake", "text": "hi", "max_new_tokens": 4},
    "tandem.v1.Generation.Complete": {
        "model": "fake",
        "token_ids": {"ids": [1, 2]},
        "max_new_tokens": 4,
        "autoregressive": {},
        "require_contract": "CONTRACT_EXACT",
        "seed": "18446744073709551615",
    },
    "tandem.v1.Generation.Score": {"model": "fake", "text": "a", "continuation_text": "b"},
    "tandem.v1.Generation.Embed": {"model": "fake", "inputs": [{"text": "hi"}]},
    "tandem.v1.Generation.Tokenize": {"model": "fake", "text": "hi"},
    "tandem.v1.Generation.Detokenize": {"model": "fake", "token_ids": [104, 105]},
    "tandem.v1.Models.ListModels": {},
    "tandem.v1.Models.GetModel": {"model": "fake"},
    "grpc.health.v1.Health.Check": {"service": "tandem.v1.Generation"},
    "inference.GRPCInferenceService.ServerLive": {},
    "inference.GRPCInferenceService.ServerReady": {},
    "inference.GRPCInferenceService.ModelReady": {"name": "fake"},
    "inference.GRPCInferenceService.ServerMetadata": {},
    "inference.GRPCInferenceService.ModelMetadata": {"name": "fake"},
}
SERVICES = (
    "tandem.v1.Generation",
    "tandem.v1.Models",
    "tandem.v1.Admin",
    "grpc.health.v1.Health",
    "inference.GRPCInferenceService",
)


@pytest.fixture
def grpcurl(server, tool):
    program = tool("grpcurl")

    def run(*args, data=None, check=True):
        flags = ["-plaintext", "-max-time", "60"]
        if data is not None:
            flags += ["-d", json.dumps(data)]
        done = subprocess.run(
            [program, *flags, server.grpc, *args], capture_output=True, text=True, timeout=120
        )
        if check:
            assert done.returncode == 0, done.stderr
        return done

    return run


def test_lists_all_services_and_methods(grpcurl):
    services = grpcurl("list").stdout.split()
    assert set(SERVICES) <= set(services)
    assert {f"grpc.reflection.{v}.ServerReflection" for v in ("v1", "v1alpha")} <= set(services)
    listed = {method for service in SERVICES for method in grpcurl("list", service).stdout.split()}
    not_called = {
        "grpc.health.v1.Health.Watch",
        "tandem.v1.Generation.Rerank",
        "tandem.v1.Admin.LoadAdapter",
        "tandem.v1.Admin.UnloadAdapter",
        "tandem.v1.Admin.LoadDeployment",
        "tandem.v1.Admin.ReplaceDeployment",
        "tandem.v1.Admin.UnloadDeployment",
        "tandem.v1.Admin.ListDeployments",
    }
    assert listed == set(METHODS) | not_called


def test_reflection_of_either_version_answers_alike(server):
    """Tools ask v1 first, and old ones v1alpha; their messages are the same."""
    grpc = pytest.importorskip("grpc")
    reflection_asks = {b"\x3a\x01*", b"\x22\x0dtandem.v1.Ppd"}  # list_services, a symbol
    with grpc.insecure_channel(server.grpc) as channel:

        def ask(version, request):
            call = channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
            )
            return list(call(iter([request]), timeout=60))

        for request in reflection_asks:
            (new,), (old,) = ask("v1", request), ask("v1alpha", request)
            assert b"tandem.v1" in new
            assert b"tandem.v1" in old
        assert len(ask("v1", b"")) == 1, "an answer that says what is wrong"
        with pytest.raises(grpc.RpcError) as refused:
            ask("v1", b"\x22\xff\xff\xff\x7f")
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_describes_everything(grpcurl):
    for service in SERVICES:
        assert "is a service" in grpcurl("describe", service).stdout
    described = grpcurl("describe", "tandem.v1.GenerateRequest").stdout
    for word in ("oneof method", "bild", "rollback_threshold", "optional double temperature"):
        assert word in described or word == "rollback_threshold"
    assert "rollback_threshold" in grpcurl("describe", "tandem.v1.Bild").stdout


@pytest.mark.parametrize("method", METHODS)
def test_calls_every_method(grpcurl, method):
    service, name = method.rsplit(".", 1)
    answer = grpcurl(f"{service}/{name}", data=METHODS[method]).stdout
    assert answer.strip()
    if name == "Generate":
        assert '"started"' in answer
        assert '"finished"' in answer
    if name == "Complete":
        assert json.loads(answer)["choices"][0]["finished"]["seed"] == "18446744073709551615"
    if name == "Detokenize":
        assert json.loads(answer) == {"text": "hi"}
    if name in ("ServerReady", "ModelReady"):
        assert json.loads(answer) == {"ready": True}
    if name == "Check":
        assert json.loads(answer) == {"status": "SERVING"}


def test_errors_have_their_status(grpcurl):
    done = grpcurl(
        "tandem.v1.Generation/Complete", data={"model": "nope", "text": "x"}, check=False
    )
    assert "Code: NotFound" in done.stderr
    done = grpcurl(
        "tandem.v1.Generation/Complete", data={"model": "fake", "text": "x", "ppd": {}}, check=False
    )
    assert "Code: FailedPrecondition" in done.stderr
    assert "autoregressive" in done.stderr


def test_promtool_accepts_the_metrics(server, grpcurl, tool):
    for method in ("autoregressive", "speculative", "bild"):
        data = {"model": "pair", "text": "x", "max_new_tokens": 8, method: {}}
        grpcurl("tandem.v1.Generation/Complete", data=data)
    done = subprocess.run(
        [tool("promtool"), "check", "metrics"],
        input=server.metrics().encode(),
        capture_output=True,
        timeout=60,
    )
    # Gateways that read vLLM's metrics need its names, and its names contain a colon.
    complaint = re.compile(rb"vllm:\w+ metric names should not contain ':'")
    others = [line for line in done.stderr.splitlines() if not complaint.fullmatch(line)]
    assert (done.stdout, others) == (b"", [])
    assert done.returncode in (0, 3)  # 3: style only


def test_promtool_accepts_the_golden_metrics(tool):
    golden = Path(__file__).parent / "observe/data/metrics.txt"
    done = subprocess.run(
        [tool("promtool"), "check", "metrics"],
        input=golden.read_bytes(),
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_healthz_and_readyz(server):
    for path in ("healthz", "readyz"):
        with urllib.request.urlopen(f"http://{server.http}/{path}", timeout=60) as answer:
            assert answer.status == 200
