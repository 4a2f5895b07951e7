"""`from tandem import LLM`: a server of the program's own, and the notebook that shows it."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.client.hub_stub import Hub, Repo, serve
from tests.conftest import ROOT

pytest.importorskip("grpc")

GREEDY = {"max_new_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def llm_class(tandem_client, binaries):
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{binaries}:{before}"
    from tandem import LLM

    yield LLM
    os.environ["PATH"] = before


@pytest.fixture(scope="module")
def llm(llm_class):
    with llm_class(ROOT / "models/code-large", small=ROOT / "models/code-small") as llm:
        yield llm


def test_generates_and_streams_alike(llm):
    whole = llm.generate("def add(a, b):", **GREEDY)
    assert whole.choices[0].finished.usage.completion_tokens == 12
    assert "".join(c.text for c in llm.stream("def add(a, b):", **GREEDY)) == whole.text
    assert llm.generate(llm.tokenize("def add(a, b):"), **GREEDY).text == whole.text


def test_the_small_model_drafts(llm):
    alone = llm.generate("def add(a, b):", method="autoregressive", **GREEDY)
    pair = llm.generate("def add(a, b):", method="speculative", **GREEDY)
    assert pair.text == alone.text
    assert pair.choices[0].finished.small_passes > 0


def test_lists_keep_their_order(llm):
    prompts = ["def f(", "import ", "class A", [1, 2, 3]]
    together = llm.generate(prompts, **GREEDY)
    assert [one.text for one in together] == [llm.generate(p, **GREEDY).text for p in prompts]
    assert llm.generate([], **GREEDY) == []


def test_errors_are_those_of_the_client(llm, tandem_client):
    with pytest.raises(tandem_client.TandemError) as error:
        llm.generate("x", temperature=1000)
    assert "temperature" in error.value.fields
    with pytest.raises(TypeError, match="max_new_tokens"):
        llm.generate("x", max_tokens=3)


def test_the_socket_is_private_and_goes_away(llm_class):
    with llm_class(ROOT / "models/code-small") as llm:
        folder = Path(llm.address.removeprefix("unix:")).parent
        assert folder.stat().st_mode & 0o777 == 0o700
        llm.generate("x", max_new_tokens=1)
        server = llm._server
    assert not folder.exists() and not server.running
    llm.close()  # again: nothing happens


def test_what_cannot_be_served_is_reported(llm_class, capfd):
    with pytest.raises(RuntimeError, match="/nowhere/model.gguf.*allowed"):
        llm_class("/nowhere/model.gguf", verbose=False)
    assert capfd.readouterr().err == ""
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        llm_class("m.gguf", program="no-such-program")


def test_the_server_ends_with_a_killed_program(llm_class, tandem_client):
    program = (
        "from tandem import LLM; import time\n"
        f"llm = LLM({str(ROOT / 'models/code-small')!r})\n"
        "print(llm._server._process.pid, llm.address, flush=True)\n"
        "time.sleep(600)\n"
    )
    site = Path(tandem_client.__file__).parents[1]
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(site)},
    )
    pid = int(owner.stdout.readline().split()[0])
    owner.send_signal(signal.SIGKILL)
    owner.wait()

    def runs():
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        return False

    end = time.monotonic() + 60
    while runs():
        assert time.monotonic() < end, "the server still runs"
        time.sleep(0.02)


def test_models_of_a_hub(llm_class, binaries, tmp_path, monkeypatch):
    if not (binaries / "tandem-pull").exists():
        pytest.skip("no tandem-pull")
    folder = ROOT / "models/code-small"
    files = {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()}
    hub = Hub({"org/code-small": Repo(files)})
    stub = serve(hub)
    monkeypatch.setenv("HF_ENDPOINT", f"http://{hub.address}")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    try:
        with llm_class("org/code-small", verbose=False) as llm:
            text = llm.generate("def f(", **GREEDY).text
    finally:
        stub.shutdown()
    with llm_class(folder, verbose=False) as llm:
        assert llm.generate("def f(", **GREEDY).text == text


def test_the_notebook_runs(llm_class, monkeypatch):
    """Its code cells, in order."""
    monkeypatch.chdir(ROOT)
    notebook = json.loads((ROOT / "client/examples/notebook/llm.ipynb").read_text("utf-8"))
    names = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)  # noqa: S102
                assert not cell["outputs"], "outputs are not committed"
    assert "autoregressive 32 passes of the large model" in printed.getvalue()
    assert "'small'" in printed.getvalue()
