"""A client of Tandem.

    with tandem_client.Client("127.0.0.1:50051") as client:
        for chunk in client.stream("code", "def fib(n):", max_new_tokens=64):
            print(chunk.text, end="")
        print(client.complete("code", "def fib(n):", method="bild", contract="any").text)

`AsyncClient` is the same with `await` and `async for`.
"""

from .aio import AsyncClient
from .client import Client
from .errors import TandemError
from .request import Options
from .retry import Retry
from .types import (
    Choice,
    Chunk,
    Completion,
    Finished,
    Message,
    Pass,
    RerankResult,
    Score,
    Started,
    Token,
    ToolCall,
    TopLogprob,
    Usage,
)

__all__ = [
    "AsyncClient",
    "Choice",
    "Chunk",
    "Client",
    "Completion",
    "Finished",
    "Message",
    "Options",
    "Pass",
    "RerankResult",
    "Retry",
    "Score",
    "Started",
    "TandemError",
    "Token",
    "ToolCall",
    "TopLogprob",
    "Usage",
]
