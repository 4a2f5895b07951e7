"""Fixtures for tests of the server."""

import subprocess

import pytest


@pytest.fixture(scope="session")
def certificates(tool, tmp_path_factory):
    """An authority, a server's certificate for 127.0.0.1, and clients' for `ann` and `bob`, who has
    another name too. `stranger` is a client of no authority."""
    openssl = tool("openssl")
    folder = tmp_path_factory.mktemp("certificates")

    def run(*args):
        subprocess.run([openssl, *args], cwd=folder, check=True, capture_output=True, timeout=60)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    run(
        "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca"
    )
    run("req", "-x509", *key, "-keyout", "stranger.key", "-out", "stranger.pem", "-subj", "/CN=s")
    for name in ("server", "ann", "bob"):
        names = {"server": "IP:127.0.0.1", "bob": "DNS:workload-7.example"}
        (folder / "ext").write_text(f"subjectAltName={names[name]}\n" if name in names else "")
        run("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        run(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-out",
            f"{name}.pem",
            "-extfile",
            "ext",
        )
    return folder
