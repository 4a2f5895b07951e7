"""The asyncio client: the same calls as `Client`, with `await` and `async for`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any, Unpack

import grpc

from . import request
from .channel import OPTIONS, address_of, calls_of, credentials_of, metadata_of
from .errors import TandemError
from .messages import ListModelsRequest
from .retry import Retry
from .types import Chunk, Completion, Finished, Message, RerankResult, Score, Started


class AsyncClient:
    """Arguments are those of `Client`. Use it in one event loop."""

    def __init__(
        self,
        server: str | None = None,
        *,
        token: str | None = None,
        ca: str | os.PathLike | None = None,
        timeout: float | None = None,
        retry: Retry | None = None,
    ):
        credentials = credentials_of(ca)
        address = address_of(server)
        self._channel = (
            grpc.aio.secure_channel(address, credentials, OPTIONS)
            if credentials
            else grpc.aio.insecure_channel(address, OPTIONS)
        )
        self._calls = calls_of(self._channel)
        self._how = {"metadata": metadata_of(token), "timeout": timeout}
        self._retry = retry or Retry()

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def events(
        self,
        model: str,
        prompt: request.Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Unpack[request.Options],
    ) -> AsyncIterator[Started | Chunk | Finished]:
        """Yields every message of a stream as it arrives. Closing the iterator cancels the request."""
        asked = request.generate_request(model, prompt, messages, options)
        return self._events(asked)

    async def _events(self, asked) -> AsyncIterator[Started | Chunk | Finished]:
        attempt, begun = 0, False
        while True:
            attempt += 1
            started = None
            call = self._calls["Generate"](asked, **self._how)
            try:
                async for event in call:
                    # `started` waits for what follows it: then nothing is said twice.
                    if event.HasField("started"):
                        started = Started.of(event.started)
                        continue
                    if started is not None:
                        begun = True
                        yield started
                        started = None
                    yield (
                        Chunk.of(event.chunk)
                        if event.HasField("chunk")
                        else Finished.of(event.finished)
                    )
                return
            except grpc.RpcError as error:
                await self._wait(TandemError.of(error), attempt, begun, error)
            finally:
                call.cancel()

    async def stream(
        self,
        model: str,
        prompt: request.Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Unpack[request.Options],
    ) -> AsyncIterator[Chunk]:
        """Yields chunks of text as they arrive."""
        async for event in self.events(model, prompt, messages=messages, **options):
            if isinstance(event, Chunk):
                yield event

    async def complete(
        self,
        model: str,
        prompt: request.Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Unpack[request.Options],
    ) -> Completion:
        asked = request.generate_request(model, prompt, messages, options)
        return Completion.of(await self._call("Complete", asked))

    async def score(
        self,
        model: str,
        prompt: request.Prompt | None = None,
        continuation: request.Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Any,
    ) -> Score:
        """Returns log-probabilities of `continuation`, and of the prompt if `score_prompt` is set."""
        asked = request.score_request(model, prompt, messages, continuation, options)
        return Score.of(await self._call("Score", asked))

    async def rerank(
        self, model: str, query: str, documents: Sequence[str], **options: Any
    ) -> list[RerankResult]:
        asked = request.rerank_request(model, query, documents, options)
        return RerankResult.list_of(await self._call("Rerank", asked))

    async def embed(
        self, model: str, inputs: str | Sequence[request.Prompt], **options: Any
    ) -> list[list[float]]:
        answer = await self._call("Embed", request.embed_request(model, inputs, options))
        return [list(one.values) for one in answer.embeddings]

    async def tokenize(
        self,
        model: str,
        text: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Any,
    ) -> list[int]:
        asked = request.tokenize_request(model, text, messages, options)
        return list((await self._call("Tokenize", asked)).token_ids)

    async def detokenize(self, model: str, token_ids: Sequence[int], **options: Any) -> str:
        asked = request.detokenize_request(model, token_ids, options)
        return (await self._call("Detokenize", asked)).text

    async def models(self) -> list[str]:
        """Returns the names of the served deployments."""
        names, token = [], ""
        while True:
            page = await self._call("ListModels", ListModelsRequest(page_token=token))
            names += [model.name for model in page.models]
            token = page.next_page_token
            if not token:
                return names

    async def _call(self, name: str, asked):
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._calls[name](asked, **self._how)
            except grpc.RpcError as error:
                await self._wait(TandemError.of(error), attempt, False, error)

    async def _wait(self, failed: TandemError, attempt: int, begun: bool, cause: Exception) -> None:
        seconds = None if begun else self._retry.wait(failed, attempt)
        if seconds is None:
            raise failed from cause
        await asyncio.sleep(seconds)
