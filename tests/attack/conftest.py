"""Fixtures of the attacks: servers of their own, and the messages of the API."""

import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc_tools")
sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import MODELS, ROOT, Api, Target  # noqa: E402

from tests.server.conftest import certificates  # noqa: E402, F401


@pytest.fixture(scope="session")
def api(tmp_path_factory):
    return Api(tmp_path_factory.mktemp("api"))


@pytest.fixture
def attack(start_server, api):
    """attack(config, *flags): a Target, a server of the test's own; MODELS are part of its config."""
    targets = []

    def start(config="", *flags):
        target = Target(start_server(MODELS + config, *flags), api)
        targets.append(target)
        return target

    yield start
    statuses = [target.close() for target in targets]
    assert not any(statuses), f"exit statuses {statuses}"


@pytest.fixture
def llama(tmp_path):
    """(model, deployment): a small model with Llama 3's chat template, which writes tools with
    tojson(indent=4)."""
    for file in (ROOT / "models/code-small").iterdir():
        shutil.copy(file, tmp_path / file.name)
    template = ROOT / "tests/engine/text/data/chat/llama3/chat_template.jinja"
    shutil.copy(template, tmp_path / "chat_template.jinja")
    model = f'models {{ name: "llama" path: "{tmp_path}" device: "cpu:1" }}\n'
    return model, 'deployments { name: "llama" large: "llama" }\n'
