"""Channels and calls, shared by both clients."""

from __future__ import annotations

import os
from pathlib import Path

import grpc

from .messages import CALLS

OPTIONS = [("grpc.max_receive_message_length", 64 << 20)]


def address_of(server: str | None) -> str:
    return server or os.environ.get("TANDEM_SERVER", "127.0.0.1:50051")


def credentials_of(ca: str | os.PathLike | None) -> grpc.ChannelCredentials | None:
    """`ca`: a PEM file with the certificate authority of the server; None: no TLS."""
    return None if ca is None else grpc.ssl_channel_credentials(Path(ca).read_bytes())


def metadata_of(token: str | None) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")] if token else []


def calls_of(channel):
    """Returns the calls of the API on a channel, by name."""
    calls = {}
    for name, (path, request, response) in CALLS.items():
        kind = channel.unary_stream if name == "Generate" else channel.unary_unary
        calls[name] = kind(
            path,
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
    return calls
