"""A tandem-server of our own and a client of it, over gRPC as any client would."""

import contextlib
import importlib
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import grpc
from grpc_tools import protoc

from tuning.benchmark.models import ROOT


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
def server(binary: Path, models: dict[str, Path], dtype: str = "fp32"):
    """Starts a server of these models with weights of `dtype` on a free port; yields a Client."""
    with tempfile.TemporaryDirectory(prefix="tandem-benchmark-") as folder:
        ports, log = Path(folder) / "ports", Path(folder) / "log"
        flags = [f"--model={name}={path}" for name, path in models.items()]
        flags += [f"--dtype={dtype}", "--listen=127.0.0.1:0", "--http=off", f"--port-file={ports}"]
        with log.open("w") as out:
            process = subprocess.Popen([binary, *flags], stderr=out)
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
        self.messages = messages
        self.channel = grpc.insecure_channel(address)
        self.stub = services.GenerationStub(self.channel)

    def close(self):
        self.channel.close()

    def score(self, model: str, tokens: list[int]) -> list[float]:
        """Natural logarithms of the probabilities of all tokens but the first."""
        request = self.messages.ScoreRequest(
            model=model, token_ids=self.messages.TokenIds(ids=tokens), score_prompt=True
        )
        return [token.logprob for token in self.stub.Score(request).prompt[1:]]

    def stream(self, model: str, prompt: list[int], new_tokens: int) -> list[int]:
        """One stream's tokens, greedy, going on after an end of text."""
        request = self.messages.GenerateRequest(
            model=model,
            token_ids=self.messages.TokenIds(ids=prompt),
            autoregressive=self.messages.Autoregressive(),
            temperature=0,
            max_new_tokens=new_tokens,
            ignore_eos=True,
        )
        tokens = []
        for event in self.stub.Generate(request):
            if event.HasField("chunk"):
                tokens.extend(token.id for token in event.chunk.tokens)
            elif event.HasField("finished"):
                usage = event.finished.usage
                assert usage.completion_tokens == new_tokens, usage
                assert usage.cached_tokens == 0, usage
        return tokens

    def generate(self, model: str, prompts: list[list[int]], new_tokens: int):
        """Tokens of all prompts, each a stream of its own, and seconds from first call to last end."""
        results, errors = [None] * len(prompts), []
        ready = threading.Barrier(len(prompts) + 1)

        def run(i):
            ready.wait()
            try:
                results[i] = self.stream(model, prompts[i], new_tokens)
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
