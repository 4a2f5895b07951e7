"""HTTP/2 frames that no client sends: random kinds, flags, streams, lengths and header blocks.

TANDEM_NIGHT=1 opens 100,000 connections instead of 1,000.
"""

import os
import random
import socket
import struct

from tests.attack.http2 import PREFACE, frame, headers, literal

PATHS = (
    b"/tandem.v1.Generation/Generate",
    b"/tandem.v1.Generation/Complete",
    b"/x",
    b"",
    b"/" * 200,
)
# DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION, and unknown ones.
KINDS = (*range(10), 10, 0x7F, 0xFF)
STREAMS = (0, 1, 1, 1, 2, 3, 5, 1 << 30, (1 << 31) - 1, (1 << 32) - 1)
EDGES = (0, 1, 2, 0x3FFF, 0x4000, 0xFFFF, 1 << 24, (1 << 31) - 1, (1 << 32) - 1)


def payload(draw):
    """What a frame holds: well-formed of some kind, or not."""
    kind = draw.randrange(7)
    if kind == 0:
        return draw.randbytes(draw.choice((0, 1, 4, 5, 6, 8, 9, 100, 20000)))
    if kind == 1:
        return headers(draw.choice(PATHS))
    if kind == 2:  # settings, known and unknown
        return b"".join(
            struct.pack(">HI", draw.randrange(9), draw.choice(EDGES))
            for _ in range(draw.choice((1, 2, 300)))
        )
    if kind == 3:
        return struct.pack(">I", draw.choice(EDGES))
    if kind == 4:  # integers and strings of HPACK that do not end, indices out of its table
        return draw.choice(
            (b"\x80", b"\xff" * 9, b"\x40\xff\xff\xff\xff\x7f", b"\x3f\xe1\xff\x03", b"\xbe")
        )
    if kind == 5:
        return literal(draw.randbytes(draw.randrange(60)), draw.randbytes(draw.randrange(60)))
    length = draw.choice((0, 1, 5, 1 << 20, (1 << 32) - 1))
    return struct.pack(">BI", draw.randrange(3), length) + draw.randbytes(draw.randrange(40))


def connection_bytes(seed):
    """The bytes of one connection: a preface, mostly whole, and up to 12 frames, some with a wrong length."""
    draw = random.Random(seed)
    parts = [PREFACE if draw.random() < 0.95 else draw.randbytes(24)]
    if draw.random() < 0.9:
        parts.append(frame(4, 0, 0))
    if draw.random() < 0.7:
        parts.append(frame(1, 4, 1, headers(draw.choice(PATHS))))
    for _ in range(draw.randrange(12)):
        raw = frame(
            draw.choice(KINDS),
            draw.randrange(256),
            draw.choice(STREAMS) & 0xFFFFFFFF,
            payload(draw),
        )
        if draw.random() < 0.1:
            raw = struct.pack(">I", draw.choice(EDGES) & 0xFFFFFF)[1:] + raw[3:]
        parts.append(raw)
    return b"".join(parts)


def test_random_frames(attack):
    """Each connection ends without harm to another one, and nothing of it is left."""
    target = attack()
    connections = 100_000 if os.environ.get("TANDEM_NIGHT") else 1000
    answered = 0
    with target.bystander(allowed=64):
        for seed in range(connections):
            with target.connect() as connection:
                connection.settimeout(60)  # only bounds a failure
                try:
                    connection.sendall(connection_bytes(seed))
                    connection.shutdown(socket.SHUT_WR)
                    while part := connection.recv(1 << 16):
                        answered += len(part)
                except OSError as error:  # closed by the server, if it is not a timeout
                    assert not isinstance(error, TimeoutError), f"connection {seed} stays open"
    assert answered > 0
    target.assert_quiet()
    target.assert_serves()
