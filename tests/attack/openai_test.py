"""Slow, silent, large and greedy clients of the HTTP API delay no other client of any port."""

import contextlib
import http.client
import json
import socket
import threading
import time

from harness import record
from http_test import send_until_refused

FLAG = "--openai=127.0.0.1:0"


def connect(target, source=None):
    return target.connect(source, "openai")


def head(length, more=""):
    return (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"{more}Content-Length: {length}\r\n\r\n"
    ).encode()


def request(**fields):
    fields = {"model": "fake", "prompt": "x", "max_tokens": 3, **fields}
    body = json.dumps(fields).encode()
    return head(len(body)) + body


def ask(target, data=None, path="/v1/completions"):
    """(status, body as JSON) of one request on a connection of its own."""
    connection = http.client.HTTPConnection(target.server.ports["openai"], timeout=60)
    try:
        if data is None:
            connection.request("GET", "/v1/models")
        else:
            connection.request("POST", path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def listed(target):
    """Whether models are listed; not where the connection is closed at once."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return ask(target)[0] == 200
    return False


def assert_serves(target):
    target.assert_serves()
    status, answer = ask(target, json.dumps({"model": "fake", "prompt": "x", "max_tokens": 3}))
    assert status == 200 and answer["usage"]["completion_tokens"] == 3


def test_silent_dripping_and_closing_connections(attack):
    target = attack("", FLAG)
    held = [connect(target) for _ in range(200)]
    with target.bystander():
        for i, connection in enumerate(held):
            if i % 3 == 1:
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nA: ")
            elif i % 3 == 2:
                connection.sendall(head(1000))
        for _ in range(5):
            for connection in held[::7]:
                send_until_refused(connection, b"x", 1)
            assert ask(target)[0] == 200
    for connection in held:
        connection.close()
    assert_serves(target)


def test_heads_and_bodies_without_end(attack):
    target = attack("", FLAG)
    before = target.memory()
    piece = b"x" * (1 << 20)
    chunked = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    begin = {
        "a header": b"GET /v1/models HTTP/1.1\r\nA: ",
        "a request line": b"GET /",
        "a body": head(1 << 40),
        "a chunk": chunked + b"7fffffff\r\n",
        "a chunk's extension": chunked + b"1;",
        "a trailer": chunked + b"0\r\nA: ",
    }
    with target.bystander():
        for what, first in begin.items():
            with connect(target) as connection:
                connection.sendall(first)
                taken = send_until_refused(connection, piece, 256 << 20)
                assert taken < 64 << 20, f"{what}: the server continues to read"
    assert target.memory() < before + (64 << 20)
    assert_serves(target)


def test_more_connections_than_there_may_be(attack):
    target = attack("server { max_connections: 20 }", FLAG)
    held = [connect(target) for _ in range(20)]
    for connection in held:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
    with connect(target) as one_more:
        one_more.sendall(request())
        answer = http.client.HTTPResponse(one_more)
        answer.begin()
        assert answer.status == 429 and answer.getheader("Retry-After") == "1"
    for _ in range(200):  # most are closed at once
        with contextlib.suppress(OSError):
            held.append(connect(target))
    for connection in held:
        connection.close()
    target.until(lambda: listed(target), "connections are taken again")
    assert_serves(target)


def test_more_bodies_than_memory_for_them(attack):
    """Of one host; others have their part meanwhile."""
    target = attack("server { memory_bytes: 33554432 max_transport_bytes: 16777216 }", FLAG)
    before = target.memory()
    held = []
    with target.bystander(openai=True):
        for _ in range(40):
            connection = connect(target, "127.0.0.2")
            connection.sendall(head(2 << 20))
            send_until_refused(connection, b"x" * (1 << 19), 3 << 19)
            held.append(connection)
        text = json.dumps({"model": "fake", "prompt": "x" * 1000, "max_tokens": 1})
        assert ask(target, text)[0] == 200
    assert target.memory() < before + (64 << 20)
    for connection in held:
        connection.close()
    target.until(
        lambda: (
            ask(target, json.dumps({"model": "fake", "prompt": "x", "max_tokens": 1}))[0] == 200
        ),
        "others are served",
    )
    assert_serves(target)


def test_readers_that_do_not_read(attack):
    """Streams without a reader are paused, then ended after the configured time. On a slow machine their
    buffers may not be full by then; they end with their connection. No stream completes."""
    target = attack("limits { stalled_stream_seconds: 0.5 }", FLAG)
    before = target.memory()
    with target.bystander():
        held = []
        for _ in range(20):
            connection = connect(target)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(
                request(max_tokens=4000, stream=True, logprobs=20, tandem={"ignore_eos": True})
            )
            held.append(connection)
        target.until(
            lambda: target.server.log_text().count("method=openai/completions") == len(held),
            "streams without a reader end",
        )
    ends = [
        line.split("status=", 1)[1].split()[0]
        for line in target.server.log_text().splitlines()
        if "method=openai/completions" in line
    ]
    assert set(ends) <= {"RESOURCE_EXHAUSTED", "CANCELLED"}, ends
    assert "RESOURCE_EXHAUSTED" in ends, ends
    assert target.memory() < before + (256 << 20)
    for connection in held:
        connection.close()
    target.assert_quiet()
    assert_serves(target)


def test_a_page_of_another_name_is_refused(attack):
    """A browser's page whose own name was made to lead here: it cannot send our name as Host."""
    target = attack("", FLAG)
    body = json.dumps({"model": "fake", "prompt": "x", "max_tokens": 3}).encode()
    for host, status in {
        "localhost": 200,
        "127.0.0.1:8000": 200,
        "[::1]:8000": 200,
        "evil.example:8000": 403,
        "127.evil.example": 403,
        "": 403,
    }.items():
        connection = connect(target)
        connection.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
            + body
        )
        answer = b"".join(iter(lambda c=connection: c.recv(65536), b""))
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), (host, answer[:200])
        connection.close()
    assert_serves(target)


def test_hostile_json(attack):
    target = attack("", FLAG)
    before = target.memory()
    deep = "[" * 500_000 + "]" * 500_000
    many_members = ",".join(f'"{i}":1' for i in range(300_000))
    bodies = {
        "depth": f'{{"model":"fake","prompt":{deep}}}',
        "depth in tools": f'{{"model":"fake","messages":[{{"role":"user","content":"x"}}],"tools":[{{"a":{deep}}}]}}',
        "depth in messages": f'{{"model":"fake","messages":{deep}}}',
        "depth in the extension": f'{{"model":"fake","prompt":"x","tandem":{{"bild":{deep}}}}}',
        "members": "{" + many_members + "}",
        "bias": f'{{"model":"fake","prompt":"x","logit_bias":{{{many_members}}}}}',
        "elements": '{"model":"fake","prompt":[' + "1," * 1_000_000 + "1]}",
        "messages": '{"model":"fake","messages":[' + "{}," * 1_000_000 + "{}]}",
        "parts": '{"model":"fake","messages":[{"role":"user","content":['
        + "{}," * 500_000
        + "{}]}]}",
        "stops": '{"model":"fake","prompt":"x","stop":[' + '"a",' * 500_000 + '"a"]}',
        "numbers": '{"model":"fake","prompt":"x","temperature":1e999999,"n":' + "9" * 100_000 + "}",
        "broken text": '{"model":"fake","prompt":"\\ud800"}',
    }
    with target.bystander(allowed=160):
        for what, body in bodies.items():
            path = "/v1/chat/completions" if '"messages"' in body[:40] else "/v1/completions"
            status, answer = ask(target, body, path)
            assert status == 400, what
            assert len(answer["error"]["message"]) < 5000, what
    assert target.memory() < before + (256 << 20)
    assert_serves(target)


def flood(target, bodies, path="/v1/completions", source="127.0.0.2", leave=False):
    """Sends each body on a connection of its own, all at once; returns the statuses of the answers.
    `leave`: disconnects instead."""
    statuses = []

    def send(body):
        with contextlib.suppress(OSError), connect(target, source) as connection:
            connection.sendall(head(len(body)).replace(b"/v1/completions", path.encode()) + body)
            if leave:
                return
            response = http.client.HTTPResponse(connection)
            response.begin()
            response.read()
            statuses.append(response.status)

    threads = [threading.Thread(target=send, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def members(size):
    return b"{" + b",".join([b'"":0'] * (size // 5)) + b"}"


def assert_released(target):
    """Nothing is charged but what open connections need."""
    target.until(lambda: target.metric("tandem_memory_bytes") < 1 << 20, "memory is released")


def test_bodies_of_many_members(attack):
    target = attack("", FLAG)
    with target.bystander(openai=True, allowed=256):
        statuses = flood(target, [members(4_000_000)] * 10)
        assert statuses == [400] * 10
    assert_released(target)
    assert_serves(target)


def test_chats_of_empty_messages(attack):
    target = attack("", FLAG)
    chat = b'{"model":"fake","messages":[' + b",".join([b"{}"] * 1_300_000) + b"]}"
    with target.bystander(openai=True, allowed=256):
        statuses = flood(target, [chat] * 24, "/v1/chat/completions")
        assert set(statuses) <= {400, 429} and len(statuses) == 24, statuses
    assert_released(target)
    assert_serves(target)


def test_bodies_whose_clients_leave(attack):
    """They are dropped when the client leaves, and counted until then."""
    target = attack("server { memory_bytes: 134217728 }", FLAG)
    with target.bystander(openai=True, allowed=160):
        for _ in range(6):
            flood(target, [members(4_000_000)] * 10, leave=True)
        assert_released(target)
    assert target.metric("tandem_memory_peak_bytes") <= target.metric("tandem_memory_limit_bytes")
    assert_serves(target)


def test_a_drain_drops_waiting_bodies(attack):
    target = attack("server { grace_seconds: 1 }", FLAG)
    body = members(4_000_000)
    sent = []
    for _ in range(10):
        connection = connect(target, "127.0.0.2")
        connection.sendall(head(len(body)) + body)
        sent.append(connection)
    began = time.monotonic()
    assert target.server.stop() == 0, "3: the drain was cut off"
    record(drained=len(sent), seconds=time.monotonic() - began)
    for connection in sent:
        connection.close()


def test_bodies_without_a_token(attack, tmp_path):
    """Are neither asked for nor read."""
    token = "0123456789abcdef"
    (tmp_path / "tokens").write_text(f"ann {token}\n")
    target = attack(f'server {{ bearer_token_file: "{tmp_path}/tokens" }}', FLAG)
    with target.bystander(token=token, openai=True):
        held = []
        for more in ("Expect: 100-continue\r\n", "Authorization: Bearer wrong-wrong-wrong\r\n"):
            for _ in range(20):
                connection = connect(target, "127.0.0.2")
                connection.sendall(head(4_000_000, more))
                response = http.client.HTTPResponse(connection)
                response.begin()
                assert response.status == (401 if "Expect" in more else 403)
                assert response.getheader("Connection") == "close"
                response.read()
                send_until_refused(connection, b"x" * (1 << 18), 64 << 20)
                held.append(connection)
        assert target.metric("tandem_memory_bytes") < 4 << 20
        for connection in held:
            connection.close()
    target.assert_serves(token)


def test_answers_that_are_not_read(attack):
    """They end with the time that they have to be read, and their memory is released."""
    target = attack("limits { stalled_stream_seconds: 2 }", FLAG)
    with target.bystander(openai=True, allowed=256):
        held = []
        for _ in range(48):
            connection = connect(target, "127.0.0.2")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            fields = {"max_tokens": 1000, "logprobs": 20, "tandem": {"ignore_eos": True}}
            connection.sendall(request(**fields))
            held.append(connection)
        target.until(
            lambda: target.server.log_text().count("method=openai/completions") >= len(held),
            "all are answered",
        )
        assert_released(target)
    for connection in held:
        connection.close()
    assert_serves(target)


def test_smuggled_requests(attack):
    """What a proxy may read differently is refused, and the connection closed."""
    target = attack("", FLAG)
    inner = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for headers in (
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Content-Length : 5\r\n",
        b"X: y\r\n Content-Length: 5\r\n",
        b"Transfer-Encoding: \x0bchunked\r\n",
        b"Transfer-Encoding: chunked\x0c\r\n",
        b"Content-Length: \x0c5\r\n",
        b"Content-Length: 5\x0b\r\n",
    ):
        with connect(target) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + headers)
            connection.sendall(b"\r\n0\r\n\r\n" + inner)
            got = b""
            while piece := connection.recv(4096):
                got += piece
            assert got.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 ")), headers
            assert got.count(b"Content-Length: ") == 1, headers
    assert_serves(target)
