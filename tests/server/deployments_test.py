"""Deployments that the real server loads, replaces and unloads while it runs."""

import concurrent.futures
import json
import re
import shutil
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

SMALL = Path(__file__).resolve().parents[2] / "models/code-small"
PROMPT = "def quicksort(items):\n"


@pytest.fixture(scope="module")
def loading_server(start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(SMALL, folder / "small")
    text = f"""
        models {{ name: "base" path: "{SMALL}" dtype: DTYPE_FP32 kv_pages: 200 }}
        deployments {{ name: "base" large: "base" }}
        server {{ model_folder: "{folder}" }}
    """
    server = start_server(text, "--openai=127.0.0.1:0")
    server.url = f"http://{server.ports['openai']}"
    server.folder = folder
    return server


def definition(model, name="late", more=""):
    return f"""
        models {{ name: "{model}" path: "small" dtype: DTYPE_FP32 kv_pages: 200 {more} }}
        deployments {{ name: "{name}" large: "{model}" }}
    """


def names(server):
    with urllib.request.urlopen(f"{server.url}/v1/models", timeout=60) as answer:
        return [model["id"] for model in json.load(answer)["data"]]


def complete(server, model, tokens=30):
    body = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0}
    request = urllib.request.Request(
        f"{server.url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["text"]


def test_a_model_is_loaded_replaced_and_unloaded(tandem, loading_server):
    server = loading_server

    def run(*words, stdin=""):
        return tandem("deployments", *words, address=server.grpc, stdin=stdin)

    def over_grpc(model):
        flags = ("--max-new-tokens=30", "--temperature=0")
        done = tandem("generate", f"--model={model}", *flags, PROMPT, address=server.grpc)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().removesuffix("\n")

    assert names(server) == ["base"]
    base = complete(server, "base")
    loaded = run("load", "-", stdin=definition("m1"))
    assert loaded.returncode == 0, loaded.stderr
    assert names(server) == ["base", "late"]
    assert complete(server, "late") == base
    assert over_grpc("late") == over_grpc("base")
    assert 'model="late"' in server.metrics()
    listed = run("list").stdout.decode().splitlines()
    assert [line.split()[:2] for line in listed] == [["base", "serving"], ["late", "serving"]]

    # One of other layers has other answers. Requests run meanwhile, and each has one of the two.
    answers, stop = set(), threading.Event()

    def ask():
        while not stop.is_set():
            answers.add(complete(server, "late"))

    client = threading.Thread(target=ask)
    client.start()
    replaced = run("replace", "-", stdin=definition("m2", more="layers: 1"))
    after = complete(server, "late")
    stop.set()
    client.join()
    assert replaced.returncode == 0, replaced.stderr
    assert after != base
    assert answers <= {base, after}
    server.until(lambda: 'model="m1"' not in server.metrics(), "the old model is freed")

    unloaded = run("unload", "late", "--drain-seconds=60")
    assert unloaded.returncode == 0, unloaded.stderr
    assert names(server) == ["base"]
    assert 'model="late"' not in server.metrics()
    assert 'model="m2"' not in server.metrics()
    with pytest.raises(urllib.error.HTTPError) as error:
        complete(server, "late")
    assert error.value.code == 404
    assert complete(server, "base") == base


def test_an_idle_one_is_unloaded_and_loaded_by_the_next_request(tandem, loading_server):
    server = loading_server

    def listed():
        with urllib.request.urlopen(f"{server.url}/v1/models/idle", timeout=60) as answer:
            return json.load(answer)["tandem"]

    text = definition("m", name="idle").replace(
        'large: "m"', 'large: "m" unload_after_idle_seconds: 0.1'
    )
    loaded = tandem("deployments", "load", "-", address=server.grpc, stdin=text)
    assert loaded.returncode == 0, loaded.stderr
    expected = complete(server, "base")
    for loads in range(1, 3):
        server.until(lambda: 'model="m"' not in server.metrics(), "its model is freed")
        assert 'tandem_deployment_loaded{model="idle"} 0' in server.metrics()
        assert names(server) == ["base", "idle"]
        assert listed()["unloaded"] is True
        run = tandem("deployments", "list", address=server.grpc)
        assert run.stdout.decode().splitlines()[1].split()[:2] == ["idle", "unloaded"]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(complete, server, "idle") for _ in range(4)]
            assert {answer.result() for answer in answers} == {expected}
        pattern = r'^tandem_deployment_loads_total{model="idle"} (\d+)$'
        found = re.search(pattern, server.metrics(), re.MULTILINE)
        assert int(found[1]) > loads
    run = tandem("deployments", "unload", "idle", address=server.grpc)
    assert run.returncode == 0, run.stderr
    assert names(server) == ["base"]


def test_memory_returns_to_the_system(tandem, loading_server):
    def resident():
        status = Path(f"/proc/{loading_server.process.pid}/status").read_text("utf-8")
        return int(status.split("VmRSS:")[1].split()[0])

    def once():
        for words, text in (("load", "-"), definition("m")), (("unload", "late"), ""):
            run = tandem("deployments", *words, address=loading_server.grpc, stdin=text)
            assert run.returncode == 0, run.stderr

    once()
    before = resident()
    for _ in range(20):
        once()
    model = sum(file.stat().st_size for file in SMALL.iterdir()) // 1024  # in KiB, of fp16 or less
    assert resident() < before + 10 * model


def test_refusals_change_nothing(tandem, loading_server):
    def refused(text, verb="load"):
        run = tandem("deployments", verb, "-", address=loading_server.grpc, stdin=text)
        assert run.returncode == 1
        assert names(loading_server) == ["base"]
        return run.stderr.decode()

    assert "ALREADY_EXISTS" in refused(definition("m", name="base"))
    assert "ALREADY_EXISTS" in refused(definition("base", more="layers: 1"))
    assert "NOT_FOUND" in refused(definition("m"), "replace")
    assert "layers: 99; allowed: 1 to" in refused(definition("m", more="layers: 99"))
    assert "PERMISSION_DENIED" in refused(definition("m").replace('"small"', f'"{SMALL}"'))
    assert "NOT_FOUND" in refused(definition("m").replace('"small"', '"none"'))
    large = refused(definition("m").replace("kv_pages: 200", "kv_pages: 2000000000"))
    assert "RESOURCE_EXHAUSTED" in large
    assert "kv_pages of model m" in large
    (loading_server.folder / "broken").mkdir()
    shutil.copy(SMALL / "config.json", loading_server.folder / "broken")
    assert refused(definition("m").replace('"small"', '"broken"'))
    assert complete(loading_server, "base")


def test_wrong_usage(tandem, loading_server):
    for words in ([], ["drop"], ["load"], ["list", "x"], ["unload", "a", "b"]):
        run = tandem("deployments", *words, address=loading_server.grpc)
        assert run.returncode == 2, words


def test_it_is_off_by_default(tandem):
    run = tandem("deployments", "list")
    assert run.returncode == 1
    assert b"server.model_folder: unset" in run.stderr
