"""Starts llama-server of llama.cpp, and an HTTP client of it."""

import contextlib
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: list[int]


class LlamaServer:
    """A running server. Greedy completions, one at a time or from several threads."""

    def __init__(self, port: int):
        self.url = f"http://127.0.0.1:{port}"

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def tokenize(self, text: str) -> list[int]:
        """Tokens as in other programs of llama.cpp: with initial special tokens, without parsing special tokens."""
        return self.ask("tokenize", {"content": text, "add_special": True, "parse_special": False})[
            "tokens"
        ]

    def complete(self, prompt: str, new_tokens: int, stops: Sequence[str]) -> Answer:
        body = {
            "prompt": prompt,
            "n_predict": new_tokens,
            "temperature": 0,
            "top_k": 1,
            "stop": list(stops),
            "cache_prompt": True,
            "return_tokens": True,
        }
        said = self.ask("completion", body)
        return Answer(said["content"], said["tokens"])

    def ask(self, path: str, body: dict) -> dict:
        request = urllib.request.Request(
            f"{self.url}/{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def llama_server(
    binary: Path, model: Path, flags: Sequence[str] = (), threads: int = 2, context: int = 2048
) -> Iterator[LlamaServer]:
    """Runs `binary` with `model` and additional flags on a free port until the end of the block."""
    port = free_port()
    command = [str(binary), "--model", str(model), "--port", str(port), "--host", "127.0.0.1"]
    command += ["--threads", str(threads), "--ctx-size", str(context), "--parallel", "1"]
    process = subprocess.Popen(
        [*command, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        server = LlamaServer(port)
        while not server.ready():
            if process.poll() is not None:
                raise RuntimeError(f"llama-server ended with status {process.returncode}: {flags}")
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait(60)
