"""`tandem-server --check`: what is wrong is said, and nothing is served."""

import json
import shutil
import subprocess

import pytest

from tests.conftest import ROOT


@pytest.fixture
def check(binaries, tmp_path):
    def run(text, *flags):
        (tmp_path / "c.textproto").write_text(text, "utf-8")
        return subprocess.run(
            [binaries / "tandem-server", f"--config={tmp_path / 'c.textproto'}", "--check", *flags],
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_nothing_wrong(check, tmp_path):
    port_file = tmp_path / "ports"
    run = check(
        f'models {{ name: "m" path: "{ROOT}/models/code-small" }}', f"--port-file={port_file}"
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "no errors; models: 1, deployments: 1 (weights were not read)\n"
    assert not port_file.exists(), "nothing is served"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('models { name: "m" dtpe: DTYPE_INT8 }', 'no field named "dtpe"'),
        ('models { name: "m" path: "/nowhere" }', "/nowhere"),
        (
            'models { name: "m" fake {} } deployments { name: "d" large: "x" }',
            "deployments[0].large",
        ),
        ('models { name: "m" fake {} } limits { max_running: 0 }', "max_running"),
        ('models { name: "m" fake {} } server { bearer_token_file: "gone" }', "gone"),
        ('models { name: "m" fake {} } server { listen: "0.0.0.0:1" }', "insecure"),
        (
            'models { name: "m" fake {} } server { tls { certificate: "bad" key: "bad" } }',
            "certificate",
        ),
    ],
)
def test_what_is_wrong_is_named(check, tmp_path, text, named):
    (tmp_path / "bad").write_text("not a certificate", "utf-8")
    run = check(text)
    assert run.returncode == 1
    assert named in run.stderr
    assert run.stdout == ""


@pytest.mark.parametrize(
    ("file", "text"), [("config.json", '{"model_type": "x"}'), ("tokenizer.json", "{")]
)
def test_small_files_of_models_are_read(check, tmp_path, file, text):
    model = tmp_path / "model"
    shutil.copytree(ROOT / "models" / "code-small", model)
    for weights in model.glob("*.safetensors"):
        weights.write_bytes(b"")  # not read
    config = f'models {{ name: "m" path: "{model}" }}'
    assert check(config).returncode == 0
    assert json.loads((model / "config.json").read_text("utf-8"))
    (model / file).write_text(text, "utf-8")
    run = check(config)
    assert run.returncode == 1
    assert file in run.stderr


def test_a_wrong_command_line_is_another_status(binaries):
    run = subprocess.run(
        [binaries / "tandem-server", "--check"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 2
