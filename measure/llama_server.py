"""Starts llama-server of llama.cpp or ik_llama.cpp, and an HTTP client of it."""

import contextlib
import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: list[int]  # none of a server that does not return them
    count: int  # of the new tokens


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
        tokens = said.get("tokens", [])  # ik_llama.cpp returns their number only
        return Answer(said["content"], tokens, len(tokens) or said["tokens_predicted"])

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
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*command, *flags], stdout=log, stderr=log)
        try:
            server = LlamaServer(port)
            while not server.ready():
                if process.poll() is not None:
                    log.seek(0)
                    said = log.read().decode("utf-8", "replace")[-2000:]
                    raise RuntimeError(f"{binary} ended with {process.returncode}: {flags}\n{said}")
                time.sleep(0.1)
            yield server
        finally:
            process.terminate()
            process.wait(60)
