"""The example in client/examples/rust: generated, compiled, and run against a server, and against one
that refuses at first."""

import json
import os
import shutil
import signal
import subprocess
from concurrent import futures

import pytest

from tests.client.conftest import checkout
from tests.conftest import HOME

grpc = pytest.importorskip("grpc")

SEED = 2**64 - 1


@pytest.fixture(scope="module")
def rust_program(tmp_path_factory):
    """The compiled example; without a network."""
    cargo = shutil.which("cargo") or shutil.which("cargo", path=os.path.expanduser("~/.cargo/bin"))
    if not cargo or not shutil.which("protoc"):
        pytest.skip("cargo or protoc is missing")
    if not (HOME / "stamps" / "crates-example").exists():
        pytest.skip("the crates of client/examples/rust are missing (scripts/setup --full)")
    copy = checkout(tmp_path_factory.mktemp("rust"), "client/examples/rust")
    target = HOME / "cargo-target"  # shared, so that dependencies are compiled once
    done = subprocess.run(
        [cargo, "build", "--offline", "--locked", "--quiet", f"--target-dir={target}"],
        cwd=copy / "client/examples/rust",
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "RUSTFLAGS": "-D warnings"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # A later build of another checkout would replace it.
    return shutil.copy(target / "debug" / "example", copy)


@pytest.fixture
def example(rust_program, server):
    def run(*args, address=None, env=None):
        return subprocess.run(
            [rust_program, f"--server={address or server.grpc}", *args],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **(env or {})},
        )

    return run


def ask(model="pair", tokens=20):
    return [f"--model={model}", "--prompt=example", f"--max-new-tokens={tokens}"]


def test_streams(example, tandem):
    done = example(*ask(), f"--seed={SEED}")
    assert done.returncode == 0, done.stderr
    expected = tandem(
        "generate", "--model=pair", "--prompt=example", "--max-new-tokens=20", f"--seed={SEED}",
        "--format=json",
    )  # fmt: skip
    answer = json.loads(expected.stdout)
    assert done.stdout == answer["text"] != ""
    assert done.stderr.strip().endswith(f" tokens, seed {SEED}]")


def test_errors_name_what_is_wrong(example):
    for args, status, message in (
        (ask(tokens=-1), 1, "InvalidArgument: max_new_tokens: -1; allowed: "),
        (ask("none"), 1, 'NotFound: model: "none"; known: "fake", "slow", "pair"'),
        (ask(tokens="x"), 2, '--max-new-tokens: "x"; allowed: an integer'),
        (["--model=pair"], 2, "usage: example "),
        ([*ask(), "--max=1"], 2, "--max: unknown"),
    ):
        done = example(*args)
        assert (done.returncode, done.stdout) == (status, "")
        assert done.stderr.startswith(message)


def test_ctrl_c_cancels_the_request(rust_program, server):
    with subprocess.Popen(
        [
            rust_program,
            f"--server={server.grpc}",
            *ask("slow", 4000),
            "--ignore-eos=true",
            "--request-id=by-rust",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.read(1), "the first character has come"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
        assert (process.returncode, error) == (1, "Cancelled: interrupted\n")

    def line():
        return next((x for x in server.log_text().splitlines() if "request_id=by-rust" in x), "")

    server.until(line, "the call is logged")
    assert "status=CANCELLED" in line()


class Full(grpc.GenericRpcHandler):
    """Sends `words`, then refuses with a trailer, so many times; then ends well."""

    def __init__(self, messages, refusals, words, trailer):
        self.messages, self.refusals, self.words, self.calls = messages, refusals, words, 0
        self.trailer = trailer

    def service(self, call):
        return grpc.unary_stream_rpc_method_handler(
            self.answer, response_serializer=lambda message: message.SerializeToString()
        )

    def answer(self, request, context):
        self.calls += 1
        for word in self.words:
            response = self.messages.GenerateResponse()
            response.chunk.text = word
            yield response
        if self.calls <= self.refusals:
            context.set_trailing_metadata((("grpc-retry-pushback-ms", self.trailer),))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue: full")


@pytest.mark.parametrize(
    ("refusals", "words", "trailer", "calls", "succeeds"),
    [
        (2, [], "1", 3, True),
        (9, [], "1", 5, False),
        (1, [], "-1", 1, False),
        (1, ["word"], "1", 1, False),
    ],
    ids=["retries after the delay", "gives up", "not if it is useless", "never after a token"],
)
def test_a_full_server(example, tandem_client, refusals, words, trailer, calls, succeeds):
    import tandem_client.messages

    full = Full(tandem_client.messages, refusals, words, trailer)
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
        assert done.stderr.endswith("ResourceExhausted: queue: full\n")


def test_tokens_are_sent(example, start_server, tmp_path):
    (tmp_path / "tokens").write_text("rust 0123456789abcdef\n", "utf-8")
    closed = start_server(
        f'models {{ name: "pair" fake {{}} }}\nserver {{ bearer_token_file: "{tmp_path}/tokens" }}'
    )
    assert example(*ask(), address=closed.grpc).stderr.startswith("Unauthenticated: ")
    done = example(*ask(), address=closed.grpc, env={"TANDEM_TOKEN": "0123456789abcdef"})
    assert done.returncode == 0, done.stderr
