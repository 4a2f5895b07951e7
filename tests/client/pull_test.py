"""tandem-pull against a stub of the hub: the cache's layout, faults of the network, of the disk and of other processes."""

import os
import random
import resource
import subprocess
import time
from pathlib import Path

import pytest

from tests.client.hub_stub import COMMIT, OTHER, Hub, Repo, etag_of, serve

GGUF = "org/model-GGUF"
BIG = random.Random(1).randbytes(3 << 20)


def gguf_repo():
    return Repo(
        {
            "README.md": b"read me",
            "model-fp16.gguf": b"fp16" * 100,
            "model-Q4_K_M.gguf": BIG,
            "model-Q8_0-00001-of-00002.gguf": b"first" * 100,
            "model-Q8_0-00002-of-00002.gguf": b"second" * 100,
        }
    )


def safetensors_repo():
    index = b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
    return Repo(
        {
            "config.json": b"{}",
            "tokenizer.json": b'{"a": 1}',
            "1_Pooling/config.json": b'{"pooling_mode_lasttoken": true}',
            "model.safetensors.index.json": index,
            "model-1.safetensors": b"one" * 1000,
            "model-2.safetensors": b"two" * 1000,
            "consolidated.safetensors": b"all" * 2000,
        }
    )


@pytest.fixture
def hub():
    hub = Hub({GGUF: gguf_repo(), "org/model": safetensors_repo()})
    server = serve(hub)
    yield hub
    hub.release.set()
    server.shutdown()


@pytest.fixture
def environment(hub, tmp_path):
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()
    }
    return clean | {
        "HF_ENDPOINT": f"http://{hub.address}",
        "HF_HOME": str(tmp_path / "home"),
        "HOME": str(tmp_path),
    }


@pytest.fixture
def start(binaries, environment):
    """start(*arguments, limits=None, **variables): a running tandem-pull."""
    if not (binaries / "tandem-pull").exists():
        pytest.skip(f"no tandem-pull in {binaries}")

    def run(*arguments, limits=None, **variables):
        return subprocess.Popen(
            [binaries / "tandem-pull", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | variables,
            preexec_fn=limits,
        )

    return run


@pytest.fixture
def pull(start):
    """pull(*arguments, ...): (exit status, paths, standard error)."""

    def run(*arguments, **options):
        process = start(*arguments, **options)
        out, error = process.communicate(timeout=120)
        return process.returncode, out.splitlines(), error

    return run


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "home" / "hub"


def blob(cache, hub, name, repo=GGUF):
    return cache / f"models--{repo.replace('/', '--')}" / "blobs" / etag_of(hub.repos[repo], name)


def test_layout_of_the_cache(pull, hub, cache):
    status, paths, error = pull(GGUF)
    assert status == 0, error
    folder = cache / "models--org--model-GGUF"
    file = folder / "snapshots" / COMMIT / "model-Q4_K_M.gguf"
    assert paths == [str(file)]
    assert file.read_bytes() == BIG
    assert (
        file.is_symlink()
        and os.readlink(file) == f"../../blobs/{etag_of(hub.repos[GGUF], file.name)}"
    )
    assert (folder / "refs" / "main").read_text() == COMMIT
    assert [p.name for p in (folder / "blobs").iterdir()] == [blob(cache, hub, file.name).name]
    before = len(hub.storage_requests())
    assert pull(GGUF)[:2] == (0, paths)
    assert len(hub.storage_requests()) == before, "the second time nothing is fetched"


def test_huggingface_hub_reads_the_cache(pull, cache, environment):
    hf = pytest.importorskip("huggingface_hub")
    assert pull("org/model")[0] == 0
    found = hf.scan_cache_dir(cache)
    assert not found.warnings
    (repo,) = found.repos
    assert repo.repo_id == "org/model" and repo.nb_files == 6
    assert hf.try_to_load_from_cache("org/model", "config.json", cache_dir=cache)


def test_quantizations_and_splits(pull, hub):
    status, paths, error = pull(f"{GGUF}:q8_0", f"{GGUF}:FP16")
    assert status == 0, error
    assert paths[0].endswith("/model-Q8_0-00001-of-00002.gguf")
    assert Path(paths[0].replace("00001-of", "00002-of")).read_bytes() == b"second" * 100
    assert paths[1].endswith("/model-fp16.gguf")
    status, paths, error = pull(f"{GGUF}:Q2_K")
    assert (status, paths) == (1, [])
    assert "Q2_K" in error and "model-Q4_K_M.gguf" in error


def test_safetensors(pull, cache):
    status, paths, error = pull("org/model")
    assert status == 0, error
    folder = cache / "models--org--model" / "snapshots" / COMMIT
    assert paths == [str(folder)]
    assert (folder / "model-2.safetensors").read_bytes() == b"two" * 1000
    assert (folder / "1_Pooling" / "config.json").exists()
    assert not (folder / "consolidated.safetensors").exists()


def test_revisions(pull, hub, cache):
    hub.repos[GGUF].commits["refs/pr/3"] = OTHER
    for name, commit in ((f"{GGUF}@refs/pr/3:fp16", OTHER), (f"{GGUF}@{COMMIT}:fp16", COMMIT)):
        status, paths, error = pull(name)
        assert status == 0, error
        assert commit in paths[0]
    assert (cache / "models--org--model-GGUF" / "refs" / "refs" / "pr" / "3").read_text() == OTHER
    status, _, error = pull(f"{GGUF}@gone")
    assert status == 1 and 'no revision "gone"' in error


@pytest.mark.parametrize("absolute", [False, True])
def test_redirects_to_a_storage(pull, hub, absolute):
    hub.absolute = absolute
    assert pull(GGUF, HF_TOKEN="secret")[0] == 0
    api = [r for r in hub.requests if r[1].startswith("/api/")]
    assert all(r[3] == "Bearer secret" for r in api)
    (storage,) = hub.storage_requests()
    assert storage[3] == (None if absolute else "Bearer secret"), (
        "another host does not get the token"
    )


def test_cut_connections_continue(pull, hub, cache):
    hub.cuts = [1 << 20, 700_000]
    status, paths, error = pull(GGUF)
    assert status == 0, error
    assert Path(paths[0]).read_bytes() == BIG
    ranges = [r[2] for r in hub.storage_requests()]
    assert ranges == [None, f"bytes={1 << 20}-", f"bytes={(1 << 20) + 700_000}-"]


def test_killed_in_the_middle_and_resumed(start, pull, hub, cache):
    hub.held = 2 << 20
    process = start(GGUF)
    assert hub.sending.wait(60)
    incomplete = blob(cache, hub, "model-Q4_K_M.gguf").with_suffix(".incomplete")
    end = time.monotonic() + 60
    while not (incomplete.exists() and incomplete.stat().st_size == 2 << 20):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    hub.release.set()
    assert not list(cache.glob("*/snapshots/*/*")), "nothing incomplete is visible"
    hub.held = None
    status, paths, error = pull(GGUF)
    assert status == 0, error
    assert Path(paths[0]).read_bytes() == BIG
    assert hub.storage_requests()[-1][2] == f"bytes={2 << 20}-"
    assert not incomplete.exists()


def test_storages_without_ranges_start_again(pull, hub):
    hub.cuts, hub.ranges = [1 << 20], False
    status, paths, error = pull(GGUF)
    assert status == 0, error
    assert Path(paths[0]).read_bytes() == BIG


def test_two_processes_fetch_once(start, hub):
    hub.held = 1 << 20
    first = start(GGUF)
    assert hub.sending.wait(60)
    second = start(GGUF)
    waiting = ""
    while "another process fetches it" not in waiting:
        line = second.stderr.readline()
        assert line, "the second waits"
        waiting += line
    hub.release.set()
    outs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0]
    assert outs[0] == outs[1]
    assert len(hub.storage_requests()) == 1


def test_gated_repositories_are_explained(pull, hub, tmp_path):
    hub.gated[GGUF] = "good"
    status, _, error = pull(GGUF)
    assert status == 1
    assert "gated" in error and f"http://{hub.address}/{GGUF}" in error and "set HF_TOKEN" in error
    status, _, error = pull(GGUF, HF_TOKEN="bad")
    assert status == 1 and "request access" in error and "bad" not in error
    assert pull(f"{GGUF}:fp16", HF_TOKEN="good")[0] == 0
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "token").write_text("good\n")
    assert pull(f"{GGUF}:q8_0")[0] == 0


def test_unknown_repositories(pull):
    status, _, error = pull("org/none")
    assert status == 1 and "no such repository" in error and "private" in error


def test_wrong_checksums(pull, hub, cache):
    hub.damaged.add("model-Q4_K_M.gguf")
    status, paths, error = pull(GGUF)
    assert (status, paths) == (1, [])
    assert "checksum" in error and etag_of(hub.repos[GGUF], "model-Q4_K_M.gguf") in error
    assert not list(cache.glob("*/blobs/*"))
    hub.damaged.clear()
    assert pull(GGUF)[0] == 0


def test_a_damaged_remainder_is_fetched_again(pull, hub, cache):
    path = blob(cache, hub, "model-Q4_K_M.gguf").with_suffix(".incomplete")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\0" * 1000)
    status, paths, error = pull(GGUF)
    assert status == 0, error
    assert Path(paths[0]).read_bytes() == BIG
    assert [r[2] for r in hub.storage_requests()] == ["bytes=1000-", None]


def test_checksums_of_small_files(pull, hub, cache):
    hub.damaged.add("config.json")
    status, _, error = pull("org/model")
    assert status == 1 and "config.json: the checksum is" in error
    assert etag_of(hub.repos["org/model"], "config.json") in error


def test_limits_of_the_file_size(pull, hub, cache):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    status, _, error = pull(GGUF, limits=limit)
    assert status == 1 and "ulimit -f" in error
    incomplete = blob(cache, hub, "model-Q4_K_M.gguf").with_suffix(".incomplete")
    assert incomplete.stat().st_size == 1 << 20
    assert pull(GGUF)[0] == 0
    assert hub.storage_requests()[-1][2] == f"bytes={1 << 20}-"


def test_full_disks_are_noticed_before(binaries, environment, hub, tmp_path):
    cache = tmp_path / "small"
    cache.mkdir()
    command = f"mount -t tmpfs -o size=1m none {cache} && exec {binaries / 'tandem-pull'} {GGUF}"
    run = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command],
        env=environment | {"HF_HUB_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "unshare" in run.stderr or "mount" in run.stderr:
        pytest.skip("this user may not mount")
    assert run.returncode == 1
    assert "3 MB more are needed" in run.stderr and "HF_HUB_CACHE" in run.stderr
    assert not hub.storage_requests()


def test_offline(pull, hub, environment):
    status, _, error = pull(GGUF, HF_HUB_OFFLINE="1")
    assert status == 1 and "not in the cache" in error and "HF_HUB_OFFLINE" in error
    assert not hub.requests
    for name in (GGUF, f"{GGUF}:q8_0", "org/model"):
        status, paths, _ = pull(name)
        before = len(hub.requests)
        assert pull(name, HF_HUB_OFFLINE="1")[:2] == (status, paths) == (0, paths)
        assert len(hub.requests) == before
    assert pull(f"{GGUF}:fp16", HF_HUB_OFFLINE="1")[0] == 1


def test_a_hub_that_does_not_answer(pull, hub):
    nowhere = "http://127.0.0.1:1"
    status, _, error = pull(GGUF, HF_ENDPOINT=nowhere)
    assert status == 1 and nowhere in error
    assert pull(GGUF)[0] == 0
    status, paths, error = pull(GGUF, HF_ENDPOINT=nowhere)
    assert status == 0 and paths and "the copy in the cache is used" in error


def test_incomplete_snapshots_are_not_used_offline(pull, cache, hub):
    assert pull("org/model")[0] == 0
    (cache / "models--org--model" / "snapshots" / COMMIT / "model-2.safetensors").unlink()
    status, _, error = pull("org/model", HF_HUB_OFFLINE="1")
    assert status == 1 and "model-2.safetensors is missing" in error


@pytest.mark.parametrize("name", ["model", "a/b/c", "../b", "a/..", "a/b:", "a--b/c", "--fast"])
def test_wrong_names(pull, name):
    status, _, error = pull(name)
    assert status == 2 and "allowed" in error


def test_file_names_that_leave_the_folder_are_ignored(pull, hub, tmp_path):
    repo = hub.repos[GGUF]
    repo.files = {"../../../../evil-Q4_K_M.gguf": b"evil", "good.gguf": b"good"}
    status, paths, error = pull(GGUF)
    assert status == 0, error
    assert paths[0].endswith("/good.gguf")
    assert not list(tmp_path.rglob("evil*"))
