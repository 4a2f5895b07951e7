"""Slow, silent and oversized clients of the HTTP port delay no probe."""

import socket


def connect(target):
    host, port = target.server.http.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=30)


def send_until_refused(connection, piece, most):
    """Sends `piece` again and again until the server closes; gives how many bytes it took."""
    sent = 0
    try:
        while sent < most:
            connection.sendall(piece)
            sent += len(piece)
    except OSError:
        pass
    return sent


def test_silent_and_dripping_connections(attack):
    target = attack()
    held = [connect(target) for _ in range(200)]
    with target.bystander():
        for i, connection in enumerate(held):
            if i % 2:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nA: ")
        for _ in range(5):
            for path in ("/healthz", "/readyz", "/metrics"):
                assert target.http(path, timeout=10)[0] == 200
            for connection in held[::10]:
                send_until_refused(connection, b"x", 1)
    for connection in held:
        connection.close()
    target.assert_serves()


def test_heads_and_bodies_without_end(attack):
    target = attack()
    before = target.memory()
    piece = b"x" * (1 << 20)
    begin = {
        "a header": b"GET /healthz HTTP/1.1\r\nA: ",
        "a request line": b"GET /",
        "a chunk": b"POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7fffffff\r\n",
        "a chunk's extension": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;",
    }
    with target.bystander():
        for what, head in begin.items():
            with connect(target) as connection:
                connection.sendall(head)
                taken = send_until_refused(connection, piece, 256 << 20)
                assert taken < 64 << 20, f"{what}: the server continues to read"
    assert target.memory() < before + (64 << 20)
    target.assert_serves()
