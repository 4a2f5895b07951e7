"""Starts a tandem-server, and a gRPC client of it."""

import contextlib
import importlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from grpc_tools import protoc

from measure import machine
from measure.paths import ROOT

BINARY = ROOT / "build/release/bin/tandem-server"


def stubs(folder: str):
    """The Python modules of proto/tandem/v1/generation.proto, generated into `folder`."""
    proto = ROOT / "proto"
    arguments = ["", f"-I{proto}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    if protoc.main([*arguments, str(proto / "tandem/v1/generation.proto")]) != 0:
        raise RuntimeError("protoc failed")
    sys.path.insert(0, folder)
    name = "tandem.v1.generation_pb2"
    return importlib.import_module(name), importlib.import_module(name + "_grpc")


@contextlib.contextmanager
def server(
    binary: Path = BINARY,
    models: dict[str, Path] | None = None,
    config: Path | None = None,
    dtype: str = "fp32",
    end_with_parent: bool = False,
    more: Sequence[str] = (),
) -> Iterator["Client"]:
    """Starts a server on a free port and yields a Client of it.

    It serves either these models by name in `dtype`, or the deployment file `config`. With end_with_parent it is
    killed when the calling thread ends. `more`: further flags.
    """
    if (models is None) == (config is None):
        raise ValueError("a server has either models or a config")
    with tempfile.TemporaryDirectory(prefix="tandem-benchmark-") as folder:
        ports, log = Path(folder) / "ports", Path(folder) / "log"
        if config:
            flags = [f"--config={config}"]
        else:
            flags = [f"--model={name}={path}" for name, path in models.items()] + [
                f"--dtype={dtype}"
            ]
        flags += ["--listen=127.0.0.1:0", "--http=off", f"--port-file={ports}", *more]
        with log.open("w") as out:
            command = [binary, *flags]
            process = subprocess.Popen(
                machine.ending_with_parent(command) if end_with_parent else command, stderr=out
            )
        try:
            while not ports.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"tandem-server ended:\n{log.read_text()}")
                time.sleep(0.05)
            lines = dict(line.split("=", 1) for line in ports.read_text().splitlines())
            client = Client(lines["grpc"], *stubs(folder))
            yield client
            client.close()
        finally:
            process.terminate()
            process.wait(60)


class Client:
    def __init__(self, address: str, messages, services):
        self.address, self.messages = address, messages
        self.channel = grpc.insecure_channel(address)
        self.stub = services.GenerationStub(self.channel)

    def close(self):
        self.channel.close()

    def score(self, model: str, tokens: list[int]) -> list[float]:
        """Natural log-probabilities of all tokens except the first."""
        request = self.messages.ScoreRequest(
            model=model, token_ids=self.messages.TokenIds(ids=tokens), score_prompt=True
        )
        return [token.logprob for token in self.stub.Score(request).prompt_tokens[1:]]

    def request(self, model: str, prompt: list[int], new_tokens: int, method=None, **fields):
        """A greedy GenerateRequest; `method` is a message of the oneof, autoregressive by default."""
        m = self.messages
        method = method if method is not None else m.Autoregressive()
        names = {
            field.message_type.name: field.name
            for field in m.GenerateRequest.DESCRIPTOR.oneofs_by_name["method"].fields
        }
        return m.GenerateRequest(
            model=model,
            token_ids=m.TokenIds(ids=prompt),
            temperature=0,
            max_new_tokens=new_tokens,
            return_tokens=True,
            **{names[method.DESCRIPTOR.name]: method},
            **fields,
        )

    def complete(self, request):
        """The only choice of a unary request."""
        return self.stub.Complete(request).choices[0]

    def negative_log_likelihood(self, model: str, prompt: list[int], tokens: list[int]) -> float:
        """Total nats of `tokens` after `prompt` under the large model of `model`."""
        m = self.messages
        request = m.ScoreRequest(
            model=model,
            token_ids=m.TokenIds(ids=prompt),
            continuation_token_ids=m.TokenIds(ids=tokens),
        )
        return -self.stub.Score(request).total_logprob

    def stream(self, model: str, prompt: list[int], new_tokens: int) -> list[int]:
        """Tokens of one stream, greedy, ignoring the end of the text."""
        request = self.request(model, prompt, new_tokens, ignore_eos=True)
        tokens = []
        for event in self.stub.Generate(request):
            if event.HasField("chunk"):
                tokens.extend(token.id for token in event.chunk.tokens)
            elif event.HasField("finished"):
                usage = event.finished.usage
                assert usage.completion_tokens == new_tokens, usage
                assert usage.cached_tokens == 0, usage
        return tokens

    def generate(self, model: str, prompts: list[list[int]], new_tokens: int | list[int]):
        """Tokens of all prompts, and seconds from the first call to the last end. `new_tokens`: for all or for each
        prompt. Each prompt is a stream.
        """
        wanted = [new_tokens] * len(prompts) if isinstance(new_tokens, int) else new_tokens
        results, errors = [None] * len(prompts), []
        ready = threading.Barrier(len(prompts) + 1)

        def run(i):
            ready.wait()
            try:
                results[i] = self.stream(model, prompts[i], wanted[i])
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        ready.wait()
        start = time.perf_counter()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - start
        if errors:
            raise errors[0]
        return results, seconds


def at_once(function: Callable, items: Sequence, streams: int) -> Iterator:
    """`function` of every item in order, `streams` calls at a time. Raises the exception of a call."""
    with ThreadPoolExecutor(streams) as pool:
        yield from pool.map(function, items)


@contextlib.contextmanager
def lazily(binary: Path, models: dict[str, Path]) -> Iterator[Callable[[], Client]]:
    """Yields a function that returns a Client and starts the server on its first call."""
    with contextlib.ExitStack() as stack:
        clients: list[Client] = []

        def client() -> Client:
            if not clients:
                clients.append(stack.enter_context(server(binary, models)))
            return clients[0]

        yield client
