"""`tandem chat` against a server that a script plays: what it asks, and what Ctrl-C does."""

import importlib
import os
import pty
import select
import subprocess
import sys
import threading
from concurrent import futures

import pytest

from tests.conftest import ROOT

grpc = pytest.importorskip("grpc")
protoc = pytest.importorskip("grpc_tools.protoc")


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stubs")
    files = [str(ROOT / "proto/tandem/v1" / f"{name}.proto") for name in ("generation", "models")]
    flags = [f"-I{ROOT / 'proto'}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    assert protoc.main(["protoc", *flags, *files]) == 0
    sys.path.insert(0, str(folder))
    names = ("generation_pb2", "generation_pb2_grpc", "models_pb2", "models_pb2_grpc")
    yield {name: importlib.import_module(f"tandem.v1.{name}") for name in names}
    sys.path.remove(str(folder))


class Played:
    """Answers "N" to the N-th question. Who says "long" gets a beginning and has to cancel; who says
    "wrong" gets an error."""

    def __init__(self, stubs):
        self.pb = stubs["generation_pb2"]
        self.asked = []
        self.cancelled = threading.Event()

        played = self

        class Generation(stubs["generation_pb2_grpc"].GenerationServicer):
            def Generate(self, request, context):
                yield from played.answer(request, context)

        class Models(stubs["models_pb2_grpc"].ModelsServicer):
            def ListModels(self, request, context):
                pb = stubs["models_pb2"]
                return pb.ListModelsResponse(models=[pb.Model(name="only")])

        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        stubs["generation_pb2_grpc"].add_GenerationServicer_to_server(Generation(), self.server)
        stubs["models_pb2_grpc"].add_ModelsServicer_to_server(Models(), self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def answer(self, request, context):
        said = [(m.role, m.content) for m in request.chat.messages]
        self.asked.append((request.model, request.WhichOneof("method"), said))
        if said[-1][1] == "wrong":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "temperature: -1; allowed: [0, 100]")
        pb = self.pb
        yield pb.GenerateResponse(started=pb.Started(method=pb.METHOD_BILD))
        if said[-1][1] == "long":
            # Who is quick enough cancels before this generator runs on: it is not resumed then.
            context.add_callback(self.cancelled.set)
            yield pb.GenerateResponse(chunk=pb.Chunk(text="a beginning"))
            self.cancelled.wait(600)
            return
        yield pb.GenerateResponse(chunk=pb.Chunk(text=str(len(self.asked))))
        finished = pb.Finished(finish_reason=pb.FINISH_REASON_EOS)
        finished.usage.completion_tokens = 1
        yield pb.GenerateResponse(finished=finished)


@pytest.fixture
def played(stubs):
    one = Played(stubs)
    yield one
    one.server.stop(None)


@pytest.fixture
def chat(binaries, played):
    def run(lines, *args):
        return subprocess.run(
            [binaries / "tandem", "chat", f"--server=127.0.0.1:{played.port}", *args],
            input="".join(line + "\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_the_model_gets_the_whole_conversation(chat, played):
    run = chat(["one", "two\\", "lines", "/exit", "never said"], "--system=S", "--method=bild")
    assert run.returncode == 0, run.stderr
    assert run.stdout == "1\n2\n"
    assert played.asked == [
        ("only", "bild", [("system", "S"), ("user", "one")]),
        (
            "only",
            "bild",
            [("system", "S"), ("user", "one"), ("assistant", "1"), ("user", "two\nlines")],
        ),
    ]
    assert "[EOS, bild, " in run.stderr


def test_commands(chat, played):
    lines = ["a", "/retry", "/system T", "/method ngram", "/reset", "b", "/nope", "/method nope"]
    run = chat([*lines, "/help", "//c"])
    assert run.returncode == 0, run.stderr
    assert [(method, said) for _, method, said in played.asked] == [
        (None, [("user", "a")]),
        (None, [("user", "a")]),
        ("ngram", [("system", "T"), ("user", "b")]),
        ("ngram", [("system", "T"), ("user", "b"), ("assistant", "3"), ("user", "/c")]),
    ]
    assert "no command /nope" in run.stderr
    assert '--method: "nope"; allowed: auto' in run.stderr
    assert "/reset" in run.stderr


def test_an_error_is_reported_and_not_remembered(chat, played):
    run = chat(["wrong", "right"])
    assert "INVALID_ARGUMENT: temperature: -1" in run.stderr
    assert run.returncode == 0, "the last one was answered"
    assert played.asked[1][2] == [("user", "right")]
    assert chat(["right", "wrong"]).returncode == 1


class Terminal:
    """What a person sees, and types."""

    def __init__(self, file):
        self.file = file
        self.shown = b""

    def read_until(self, text):
        """And forgets it."""
        while text not in self.shown:
            part = os.read(self.file, 4096)
            assert part, self.shown
            self.shown += part
        self.shown = self.shown.split(text, 1)[1]

    def type(self, text):
        os.write(self.file, text)

    def type_until(self, text, answer):
        """The kernel throws away what comes while it handles Ctrl-C: then types again."""
        while answer not in self.shown:
            self.type(text)
            while answer not in self.shown and select.select([self.file], [], [], 2)[0]:
                self.shown += os.read(self.file, 4096)


def test_ctrl_c_ends_the_answer_and_not_the_program(binaries, played):
    # Not by fork: gRPC's handlers of it may find this process's server at work, and then it stands.
    file, end = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", binaries / "tandem", "chat", f"--server=127.0.0.1:{played.port}"],
        stdin=end,
        stdout=end,
        stderr=end,
        env={"TERM": "xterm", "NO_COLOR": "1", "PATH": os.environ["PATH"]},
    )
    os.close(end)
    terminal = Terminal(file)
    try:
        terminal.read_until(b"> ")
        terminal.type(b"long\n")
        terminal.read_until(b"a beginning")
        terminal.type(b"\x03")
        terminal.read_until(b"[interrupted]")
        assert played.cancelled.wait(60), "the server continues"
        terminal.read_until(b"> ")
        terminal.type(b"half a line\x03")
        terminal.read_until(b"(Ctrl-D or /exit ends the program)")
        terminal.type_until(b"next\n", b"\n2")
        assert played.asked[1][2] == [
            ("user", "long"),
            ("assistant", "a beginning"),
            ("user", "next"),
        ]
        terminal.type(b"\x04")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(file)
