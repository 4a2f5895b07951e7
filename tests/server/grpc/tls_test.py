"""TLS, client certificates and bearer tokens, with certificates made on the spot."""

import signal
import subprocess
import time
from textwrap import dedent

MODELS = 'models { name: "fake" fake {} }\n'
TOKEN = "0123456789abcdef"


GENERATE = ("generate", "--model=fake", "--prompt=x", "--max-new-tokens=2", "--ignore-eos")


def test_tls_with_tokens(start_server, tandem, certificates, tmp_path):
    (tmp_path / "tokens").write_text(f"# who may\nann {TOKEN}\n")
    server = start_server(
        MODELS
        + dedent(f"""
        server {{
          tls {{ certificate: "{certificates}/server.pem" key: "{certificates}/server.key" }}
          bearer_token_file: "{tmp_path}/tokens"
        }}""")
    )
    ca = f"--ca={certificates}/ca.pem"
    plain = tandem("health", address=server.grpc)
    assert plain.returncode == 1
    assert plain.stderr.startswith(b"UNAVAILABLE: ")
    assert tandem("health", ca, address=server.grpc).stdout == b"SERVING\n"

    without = tandem(*GENERATE, ca, address=server.grpc)
    assert without.stderr.startswith(b"UNAUTHENTICATED: ")
    wrong = tandem(*GENERATE, ca, address=server.grpc, env={"TANDEM_TOKEN": "x" * 16})
    assert wrong.stderr.startswith(b"PERMISSION_DENIED: ")
    right = tandem(*GENERATE, ca, address=server.grpc, env={"TANDEM_TOKEN": TOKEN})
    assert right.returncode == 0
    server.wait_for_log("client=ann")
    log = server.log_text()
    assert TOKEN not in log
    assert "x" * 16 not in log


def test_client_certificates(start_server, tandem, certificates):
    server = start_server(
        MODELS
        + dedent(f"""
        server {{
          tls {{
            certificate: "{certificates}/server.pem"
            key: "{certificates}/server.key"
            client_ca: "{certificates}/ca.pem"
          }}
        }}""")
    )
    ca = f"--ca={certificates}/ca.pem"
    without = tandem(*GENERATE, ca, address=server.grpc)
    assert without.returncode == 1
    assert without.stderr.startswith(b"UNAVAILABLE: ")
    for name in ("ann", "bob"):
        own = (f"--cert={certificates}/{name}.pem", f"--key={certificates}/{name}.key")
        right = tandem(*GENERATE, ca, *own, address=server.grpc)
        assert right.returncode == 0, right.stderr
        server.wait_for_log(f"client={name}")


def test_hangup_rereads_certificates(start_server, tandem, certificates, tool, tmp_path):
    """Connections that come later meet the new certificate; one that cannot be read changes nothing."""
    for name in ("server.pem", "server.key"):
        (tmp_path / name).write_bytes((certificates / name).read_bytes())
    server = start_server(
        MODELS
        + f"""server {{ tls {{ certificate: "{tmp_path}/server.pem" key: "{tmp_path}/server.key" }} }}"""
    )

    def serves(ca):
        return tandem("health", f"--ca={ca}", address=server.grpc).stdout == b"SERVING\n"

    def hang_up(lines):
        server.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 30
        while server.log_text().count("event=reload") < lines:
            assert time.monotonic() < end
            time.sleep(0.02)

    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    subject = ("-subj", "/CN=new", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2")
    files = ("-keyout", "server.key", "-out", "server.pem")
    assert serves(certificates / "ca.pem")
    subprocess.run(
        [tool("openssl"), *new, *subject, *files], cwd=tmp_path, check=True, capture_output=True
    )
    hang_up(1)
    assert serves(tmp_path / "server.pem")
    assert not serves(certificates / "ca.pem")
    good = tmp_path / "good.pem"
    good.write_bytes((tmp_path / "server.pem").read_bytes())
    (tmp_path / "server.pem").write_text("")
    hang_up(2)
    assert serves(good)


def test_a_certificate_that_is_none(binaries, tmp_path):
    for name in ("a.pem", "a.key"):
        (tmp_path / name).write_text("not PEM")
    (tmp_path / "config").write_text(
        MODELS
        + f"""server {{ tls {{ certificate: "{tmp_path}/a.pem" key: "{tmp_path}/a.key" }} }}"""
    )
    run = subprocess.run(
        [binaries / "tandem-server", f"--config={tmp_path}/config", "--listen=127.0.0.1:0"],
        capture_output=True,
        timeout=60,
    )
    assert run.returncode == 1
    assert b"certificate and key" in run.stderr
