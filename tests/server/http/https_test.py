"""TLS on the port of the HTTP API: clients, certificates, reload, and clients that misbehave."""

import contextlib
import http.client
import json
import signal
import socket
import ssl
import subprocess

import pytest

from tests.conftest import CHAT_CONFIG

openai = pytest.importorskip("openai")

TOKEN = "0123456789abcdef"


def tls_section(folder, more="", outside=""):
    return (
        f'server {{ tls {{ certificate: "{folder}/server.pem" key: "{folder}/server.key" {more} }}'
        f" {outside} }}\n"
    )


@pytest.fixture(scope="module")
def secure(start_server, certificates):
    return start_server(CHAT_CONFIG + tls_section(certificates), "--openai=127.0.0.1:0")


@pytest.fixture(scope="module")
def mutual(start_server, certificates):
    """A server that requires client certificates, and limits the client `bob`."""
    config = tls_section(certificates, more=f'client_ca: "{certificates}/ca.pem"')
    quota = 'limits { clients { key: "bob" value { requests_per_minute: 2 } } }\n'
    return start_server(CHAT_CONFIG + config + quota, "--openai=127.0.0.1:0")


def context(certificates, name=None, ca="ca.pem"):
    made = ssl.create_default_context(cafile=certificates / ca)
    if name:
        made.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
    return made


def client_of(server, verify, key="none"):
    return openai.OpenAI(
        base_url=f"https://{server.ports['openai']}/v1",
        api_key=key,
        max_retries=0,
        http_client=openai.DefaultHttpxClient(verify=verify),
    )


def request(server, verify, method, path, body=None):
    """Status and body of a request on a connection of its own."""
    host, port = server.ports["openai"].rsplit(":", 1)
    connection = http.client.HTTPSConnection(host, int(port), timeout=60, context=verify)
    with contextlib.closing(connection):
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def get(server, verify, path="/health"):
    return request(server, verify, "GET", path)


def connect(server):
    host, port = server.ports["openai"].rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=60)


def exchange(server, data):
    """What the server answers until it ends the connection."""
    with connect(server) as s:
        s.sendall(data)
        received = b""
        while piece := s.recv(4096):
            received += piece
        return received


def hang_up(server):
    reloads = server.log_text().count("event=reload")
    server.process.send_signal(signal.SIGHUP)
    server.until(lambda: server.log_text().count("event=reload") > reloads, "a reload")


CHAT = {
    "model": "fake",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 20,
    "seed": 7,
}
SLOW = {"model": "slow", "prompt": "x", "max_tokens": 150, "seed": 7}


def test_chats_and_streams(secure, certificates):
    with client_of(secure, context(certificates)) as client:
        assert [model.id for model in client.models.list().data] == ["fake", "slow", "pair"]
        whole = client.chat.completions.create(**CHAT).choices[0].message.content
        parts = client.chat.completions.create(**CHAT, stream=True)
        assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == whole
    long = json.dumps({"model": "fake", "prompt": "x" * 100}) + " " * 200_000
    status, answer = request(secure, context(certificates), "POST", "/tokenize", long)
    assert (status, json.loads(answer)["count"]) == (200, 100)
    for path in ("/health", "/healthz", "/readyz"):
        assert get(secure, context(certificates), path)[0] == 200
    assert "event=exposed" not in secure.log_text()


def test_versions_and_protocol(secure, certificates):
    host, port = secure.ports["openai"].rsplit(":", 1)
    verify = context(certificates)
    verify.set_alpn_protocols(["h2", "http/1.1"])
    with connect(secure) as s, verify.wrap_socket(s, server_hostname=host) as tls:
        assert (tls.version(), tls.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")
    verify.set_alpn_protocols(["h2"])
    with connect(secure) as s, pytest.raises(ssl.SSLError, match="(?i)no.application.protocol"):
        verify.wrap_socket(s, server_hostname=host)
    with pytest.raises(openai.APIConnectionError):
        client_of(secure, ssl.create_default_context()).models.list()


def test_host_names_are_compared_by_the_client(secure, certificates):
    """A page that resolves its own name to this machine does not have its certificate."""
    host, port = secure.ports["openai"].rsplit(":", 1)
    connection = http.client.HTTPSConnection(host, int(port), context=context(certificates))
    with contextlib.closing(connection):
        connection.request("GET", "/health", headers={"Host": "proxied.example"})
        assert connection.getresponse().status == 200
    with connect(secure) as s, pytest.raises(ssl.SSLCertVerificationError):
        context(certificates).wrap_socket(s, server_hostname="evil.example")


def test_client_certificates(mutual, certificates):
    with client_of(mutual, context(certificates, "ann")) as client:
        client.chat.completions.create(**CHAT)
        mutual.wait_for_log("client=ann")
    with client_of(mutual, context(certificates, "bob")) as client:
        for _ in range(2):
            client.chat.completions.create(**CHAT)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(**CHAT)
    with client_of(mutual, context(certificates, "ann")) as client:
        client.chat.completions.create(**CHAT)
    for name in (None, "stranger"):
        for _ in range(3):
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
                get(mutual, context(certificates, name))
    assert get(mutual, context(certificates, "ann"))[0] == 200


def test_tokens_over_tls(start_server, certificates, tmp_path):
    (tmp_path / "tokens").write_text(f"ann {TOKEN}\n")
    config = tls_section(certificates, outside=f'bearer_token_file: "{tmp_path}/tokens"')
    server = start_server(CHAT_CONFIG + config, "--openai=127.0.0.1:0")
    with client_of(server, context(certificates), TOKEN) as client:
        client.chat.completions.create(**CHAT)
    with pytest.raises(openai.AuthenticationError):
        client_of(server, context(certificates), "x" * 16).models.list()
    assert get(server, context(certificates), "/v1/models")[0] == 401


def test_a_new_certificate_while_a_stream_runs(start_server, certificates, tool, tmp_path):
    for name in ("server.pem", "server.key"):
        (tmp_path / name).write_bytes((certificates / name).read_bytes())
    server = start_server(CHAT_CONFIG + tls_section(tmp_path), "--openai=127.0.0.1:0")
    old = context(certificates)
    with client_of(server, old) as client:
        whole = client.completions.create(**SLOW).choices[0].text
        stream = client.completions.create(**SLOW, stream=True)
        first = next(iter(stream))
        new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        subject = ("-subj", "/CN=new", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2")
        files = ("-keyout", "server.key", "-out", "server.pem")
        subprocess.run(
            [tool("openssl"), *new, *subject, *files], cwd=tmp_path, check=True, capture_output=True
        )
        hang_up(server)
        fresh = context(tmp_path, ca="server.pem")
        assert get(server, fresh)[0] == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            get(server, old)
        rest = [first, *stream]
        assert "".join(p.choices[0].text for p in rest if p.choices) == whole
    (tmp_path / "server.key").write_text("")
    hang_up(server)
    assert get(server, fresh)[0] == 200, "an unusable file changes nothing"


def test_plain_http_is_refused_at_once(secure):
    received = exchange(secure, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert received.endswith(b"\r\n\r\nThis port needs HTTPS.\n")


def test_tls_can_be_left_to_a_proxy(start_server, certificates):
    config = tls_section(certificates, outside="openai_tls: false")
    server = start_server(CHAT_CONFIG + config, "--openai=127.0.0.1:0")
    host, port = server.ports["openai"].rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200


def hello():
    """The first flight of a client."""
    out = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(
        ssl.MemoryBIO(), out, server_hostname="127.0.0.1"
    )
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def test_half_open_handshakes_delay_no_other_client(secure, certificates):
    """100 connections that are silent, cut their first message, or do not go on after it."""
    first = hello()
    with contextlib.ExitStack() as idle:
        for i in range(100):
            s = idle.enter_context(connect(secure))
            s.sendall((b"", first[:50], first)[i % 3])
        with client_of(secure, context(certificates)) as client:
            client.chat.completions.create(**CHAT)
        # All are still open: the answer has not waited for the deadline of their handshakes.
        metrics = secure.metrics()
        used = next(x for x in metrics.splitlines() if x.startswith("tandem_memory_bytes "))
        assert float(used.split()[1]) >= 100 * 224 * 1024


@pytest.mark.parametrize(
    "data",
    [
        b"\x55" * 3000,
        b"\x16\x03\x01\xff\xff" + b"\0" * 100,
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x80\x2e\x01\x00\x02" + b"\0" * 41,
    ],
    ids=["noise", "a record that is too long", "a message that is too long", "HTTP/2", "SSL 2"],
)
def test_what_is_no_handshake_gets_an_alert(secure, certificates, data):
    assert exchange(secure, data)[:1] in (b"\x15", b"")
    assert get(secure, context(certificates))[0] == 200


def test_a_slow_handshake_is_disconnected(start_server, certificates):
    config = tls_section(certificates, outside="handshake_timeout_seconds: 1")
    server = start_server(CHAT_CONFIG + config, "--openai=127.0.0.1:0")
    for data in (b"", hello()[:100], hello()):
        with connect(server) as s:
            s.sendall(data)
            while s.recv(4096):  # the server's flight, if it has one, and the end
                pass
    assert get(server, context(certificates))[0] == 200


def test_the_end_of_an_answer_is_announced(secure, certificates):
    """close_notify: Python reports an end without it as an error."""
    verify = context(certificates)
    with (
        connect(secure) as s,
        verify.wrap_socket(s, server_hostname="127.0.0.1", suppress_ragged_eofs=False) as tls,
    ):
        tls.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = b""
        while piece := tls.recv(4096):
            received += piece
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        tls.unwrap()


def test_closing_the_connection_cancels_the_answer(secure, certificates):
    verify = context(certificates)
    # 15 s at 5 ms a token. Without `ignore_eos`, the answer has 9 tokens and may end before the connection.
    slow = {**SLOW, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    body = json.dumps({**slow, "tandem": {"method": "autoregressive"}}).encode()
    message = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    with connect(secure) as s, verify.wrap_socket(s, server_hostname="127.0.0.1") as tls:
        tls.sendall(message)
        assert tls.recv(1)
    secure.until(lambda: "status=CANCELLED" in secure.log_text(), "the call is cancelled")


def test_an_unusable_pair_stops_the_start(binaries, certificates, tmp_path):
    (tmp_path / "config").write_text(
        CHAT_CONFIG
        + f'server {{ tls {{ certificate: "{certificates}/server.pem" key: "{certificates}/ann.key" }} }}'
    )
    done = subprocess.run(
        [
            binaries / "tandem-server",
            f"--config={tmp_path}/config",
            "--check",
            "--openai=127.0.0.1:0",
        ],
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert b"certificate and key" in done.stderr
