"""The example in client/examples/go: generated, compiled, and run against a server, and against one
that refuses at first."""

import json
import os
import signal
import subprocess
from concurrent import futures

import pytest

grpc = pytest.importorskip("grpc")

SEED = 2**64 - 1


@pytest.fixture
def example(go_program, server):
    def run(*args, address=None, env=None):
        return subprocess.run(
            [go_program, f"-server={address or server.grpc}", *args],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **(env or {})},
        )

    return run


def ask(model="pair", tokens=20, **fields):
    return [
        f"-model={model}",
        "-prompt=example",
        f"-max-new-tokens={tokens}",
        f"-fields={json.dumps(fields)}",
    ]


def test_streams(example, tandem):
    done = example(*ask(seed=str(SEED), temperature=1, ignore_eos=True, bild={"max_small_run": 3}))
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == f"[MAX_TOKENS: 20 tokens, seed {SEED}]"
    expected = tandem(
        "generate",
        "--model=pair",
        "--prompt=example",
        "--max-new-tokens=20",
        "--method=bild",
        "--set=bild.max_small_run=3",
        "--temperature=1",
        "--ignore-eos",
        f"--seed={SEED}",
        "--format=json",
    )
    assert done.stdout == json.loads(expected.stdout)["text"] != ""


def test_errors_name_what_is_wrong(example):
    for args, message in (
        (ask(maxNewTokenz=3), 'unknown field "maxNewTokenz"'),
        (ask(temperature=-1), "INVALID_ARGUMENT: temperature: -1; allowed: [0, 100]"),
        (ask("none"), 'NOT_FOUND: model: "none"; known: "fake", "slow", "pair"'),
    ):
        done = example(*args)
        assert done.returncode == 1
        # protobuf's Go prints some spaces as non-breaking ones, so that programs do not rely on them.
        assert message in done.stderr.replace("\u00a0", " ")
        assert done.stdout == ""


def test_ctrl_c_cancels_the_request(go_program, server):
    with subprocess.Popen(
        [
            go_program,
            f"-server={server.grpc}",
            *ask("slow", 4000, request_id="by-go", ignore_eos=True, autoregressive={}),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.read(1), "the first character has come"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 1
        assert said.startswith("CANCELLED: ")
    for _ in range(1000):
        lines = [line for line in server.log_text().splitlines() if "request_id=by-go" in line]
        if lines:
            break
        # Nothing is promised of how soon the log is written; the server answers others meanwhile.
        subprocess.run([go_program, f"-server={server.grpc}", *ask(tokens=1)], timeout=60)
    assert "status=CANCELLED" in lines[0]


class Full(grpc.GenericRpcHandler):
    """Says `words`, then refuses, so many times; then ends well."""

    def __init__(self, messages, refusals, words):
        self.messages, self.refusals, self.words, self.calls = messages, refusals, words, 0

    def service(self, call):
        return grpc.unary_stream_rpc_method_handler(
            self.answer, response_serializer=lambda message: message.SerializeToString()
        )

    def answer(self, request, context):
        m = self.messages
        self.calls += 1
        for word in self.words:
            response = m.GenerateResponse()
            response.chunk.text = word
            yield response
        if self.calls <= self.refusals:
            retry = m.RetryInfo()
            retry.retry_delay.nanos = 1_000_000
            status = m.RpcStatus(code=8, message="queue: full")
            status.details.add(
                type_url="type.googleapis.com/google.rpc.RetryInfo", value=retry.SerializeToString()
            )
            details = status.SerializeToString()
            context.set_trailing_metadata((("grpc-status-details-bin", details),))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue: full")


@pytest.mark.parametrize(
    ("refusals", "words", "calls", "succeeds"),
    [(2, [], 3, True), (9, [], 4, False), (1, ["word"], 1, False)],
    ids=["retries after the delay", "gives up", "never after a token"],
)
def test_a_full_server_is_asked_again(example, tandem_client, refusals, words, calls, succeeds):
    import tandem_client.messages

    full = Full(tandem_client.messages, refusals, words)
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[full])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        done = example(*ask(), address=f"127.0.0.1:{port}")
    finally:
        server.stop(None)
    assert full.calls == calls
    assert (done.returncode == 0) == succeeds, done.stderr
    assert done.stdout == "".join(words)
    if not succeeds:
        assert done.stderr.endswith("RESOURCE_EXHAUSTED: queue: full\n")


def test_tokens_are_sent(example, start_server, tmp_path):
    (tmp_path / "tokens").write_text("go 0123456789abcdef\n", "utf-8")
    closed = start_server(
        f'models {{ name: "pair" fake {{}} }}\nserver {{ bearer_token_file: "{tmp_path}/tokens" }}'
    )
    assert "UNAUTHENTICATED" in example(*ask(), address=closed.grpc).stderr
    done = example(*ask(), address=closed.grpc, env={"TANDEM_TOKEN": "0123456789abcdef"})
    assert done.returncode == 0, done.stderr
