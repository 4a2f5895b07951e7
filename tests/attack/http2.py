"""HTTP/2 by hand, for clients that keep to nothing."""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, payload=b""):
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes((kind, flags))
        + struct.pack(">I", stream)
        + payload
    )


def literal(name, value):
    """A header in HPACK, neither indexed nor compressed."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


def fields(path):
    return (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )


def headers(path):
    return b"".join(literal(name, value) for name, value in fields(path))


def remembered(path):
    """(a first call's headers, later ones' in a byte each): by HPACK's table."""
    pairs = fields(path)
    first = b"".join(b"\x40" + literal(name, value)[1:] for name, value in pairs)
    return first, bytes(0x80 | (61 + len(pairs) - i) for i in range(len(pairs)))
