"""Fixtures for tests of Envoy's configurations."""

import importlib.util
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def envoy():
    """Envoy, which comes as a wheel (scripts/versions.env)."""
    spec = importlib.util.find_spec("envoy")
    path = Path(spec.origin).parent / "_bin" / "envoy" if spec else None
    if not path or not path.exists():
        pytest.skip("no envoy: scripts/setup --full installs it")
    return path


@pytest.fixture(scope="module")
def certificate(tool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    make = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    )
    make += " -addext subjectAltName=DNS:localhost -keyout tls.key -out tls.crt"
    command = [tool("openssl"), *make.split()]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    return folder


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    from tests.attack.harness import Api

    return Api(tmp_path_factory.mktemp("api"))
