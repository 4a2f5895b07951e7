"""A language model in this program."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Unpack, overload

from tandem_client import Chunk, Client, Completion, Message, Options

from .server import LocalServer

_NAME = "llm"  # of the model in its server
_CONCURRENT = 64  # requests at a time; the server batches them

Prompt = str | Sequence[int]


def _is_one(prompt) -> bool:
    """A text or token ids, not a list of prompts."""
    return isinstance(prompt, str) or (len(prompt) > 0 and isinstance(prompt[0], int))


class LLM:
    """`model`: a GGUF file, a Hugging Face directory, or ORG/REPO[:QUANT] of the Hugging Face hub, which is fetched.
    `small`: a model that drafts, given in the same ways; "auto": the measured one, if the repository of `model` has one.
    `device`: "cpu:0" (default), "cuda:0", ... `dtype`: "auto" (default), "bf16", "int8", ...
    `flags`: further flags of tandem-server. `program`: its path (default: the one in PATH).
    `timeout`: seconds in which the model must be loaded (default: no limit).
    `verbose`: print warnings of the server and the progress of downloads on standard error.

    Raises RuntimeError with the server's messages if the model cannot be served. Thread-safe."""

    def __init__(
        self,
        model: str | os.PathLike,
        *,
        small: str | os.PathLike | None = None,
        device: str | None = None,
        dtype: str | None = None,
        flags: Sequence[str] = (),
        program: str | os.PathLike | None = None,
        timeout: float | None = None,
        verbose: bool = True,
    ):
        chosen = {"small": small, "device": device, "dtype": dtype}
        named = [
            f"--{name}={os.fspath(value)}" for name, value in chosen.items() if value is not None
        ]
        self._server = LocalServer(
            [f"--model={_NAME}={os.fspath(model)}", *named, *flags],
            program=program,
            timeout=timeout,
            verbose=verbose,
        )
        self._client = Client(self._server.address, token="")

    @overload
    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Completion: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], **options: Unpack[Options]
    ) -> list[Completion]: ...
    def generate(self, prompt, **options):
        """Completes a prompt (a text or token ids), or each of a list of prompts, at the same time and in order. The options are
        those of `tandem_client.Client.complete`: max_new_tokens, temperature, method, ..."""
        if _is_one(prompt):
            return self._client.complete(_NAME, prompt, **options)
        with ThreadPoolExecutor(_CONCURRENT) as pool:
            return list(pool.map(lambda one: self._client.complete(_NAME, one, **options), prompt))

    def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Completion:
        """Answers a conversation by the model's chat template."""
        return self._client.complete(_NAME, messages=messages, **options)

    def stream(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Unpack[Options],
    ) -> Iterator[Chunk]:
        """Pieces of the text as they arrive. Closing the iterator cancels the request."""
        return self._client.stream(_NAME, prompt, messages=messages, **options)

    def tokenize(self, text: str) -> list[int]:
        return self._client.tokenize(_NAME, text)

    @property
    def address(self) -> str:
        """The server's gRPC address, for other clients on this machine."""
        return self._server.address

    def close(self) -> None:
        """Stops the server. Requests that run end with TandemError."""
        self._client.close()
        self._server.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
