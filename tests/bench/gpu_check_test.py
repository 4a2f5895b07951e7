"""The judge of GPU nodes: its steps, its table, and a dry run of the whole folder on a CPU."""

import json
import math
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from bench.gpu_check import __main__ as judge
from bench.gpu_check import blocks, bundle, headline, steps, suites, table
from bench.gpu_check.steps import Step


def python(code, **fields):
    return Step(
        fields.pop("name", "one"), [sys.executable, "-c", code], fields.pop("limit", 20), **fields
    )


@pytest.fixture
def run(tmp_path):
    def run_steps(*all_steps, budget=60.0):
        return steps.run_all(all_steps, tmp_path, dict(os.environ), budget)

    return run_steps


def test_figures_are_lines_of_json(run):
    said = (
        'print("hello"); print(\'{"name": "a.b", "value": 3, "unit": "us"}\'); print("{not json")'
    )
    (result,) = run(python(said))
    assert result.status == "ok"
    assert result.figures == [{"name": "a.b", "value": 3, "unit": "us"}]


def test_failures_stop_nothing_and_all_is_written_down(run, tmp_path):
    crash = "import os; os.kill(os.getpid(), 11)"
    figure = 'print(\'{"name": "x", "value": 1}\')'
    results = run(
        python("raise SystemExit('no such thing')", name="fails"),
        python(crash, name="crashes"),
        Step("missing", ["/no/such/program"], 5),
        python("print('half')", name="ends otherwise", end="whole"),
        python("", name="needs a tool", needs="no-such-tool"),
        python(figure, name="last"),
    )
    assert [r.status for r in results] == ["failed"] * 4 + ["left out", "ok"]
    assert "no such thing" in results[0].why
    assert "SIGSEGV" in results[1].why
    written = json.loads((tmp_path / "results.json").read_text())
    assert [r["name"] for r in written][-1] == "last"
    assert written[-1]["figures"] == [{"name": "x", "value": 1}]
    assert "===== crashes" in (tmp_path / "log.txt").read_text()


def flat(some_steps):
    """All steps, those of groups too."""
    for step in some_steps:
        yield from step if isinstance(step, list) else [step]


def test_steps_of_a_group_run_at_the_same_time(run, tmp_path):
    """Each of the two waits until the other has started."""
    code = """
import pathlib, sys, time
mine, other = (pathlib.Path(p) for p in sys.argv[1:])
mine.touch()
while not other.exists():
    time.sleep(0.01)
print('{"name": "%s", "value": 1}' % mine.name)
"""
    paths = [str(tmp_path / "first"), str(tmp_path / "second")]
    group = []
    for words in (paths, paths[::-1]):
        step = python(code, limit=30)
        group.append(Step(Path(words[0]).name, [*step.command, *words], 30))
    first, second, after = run(group, python("", name="after"))
    assert [r.status for r in (first, second, after)] == ["ok"] * 3
    assert first.figures == [{"name": "first", "value": 1}]
    assert second.figures == [{"name": "second", "value": 1}]


def test_a_step_that_hangs_is_ended_with_its_children(run, tmp_path):
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
print('{{"name": "before", "value": 1}}', flush=True)
time.sleep(60)
"""
    hangs, after = run(python(code, limit=1.5), python("", name="after"))
    assert hangs.status == "out of time" and hangs.seconds < 10
    assert hangs.figures == [{"name": "before", "value": 1}]
    assert after.status == "ok"
    child = int((tmp_path / "child").read_text())
    stat = Path(f"/proc/{child}/stat")
    assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_what_no_time_is_left_for_is_left_out(run):
    results = run(python(""), budget=2 * steps.END_AFTER + 0.5)
    assert [r.status for r in results] == ["left out"]


def test_the_table_says_what_figures_should_be():
    good = {"name": "product.qkv.rows_1", "value": 9, "unit": "us", "share": 0.8, "bits": True}
    slow = {"name": "round_trip", "value": 50, "unit": "us"}
    free = {"name": "anything", "value": "text"}
    same = {"name": "server.x.same", "value": True}
    result = steps.Result("s", "ok", 1.0, figures=[good, slow, free, same])
    text = table.table([result, steps.Result("t", "failed", 2.0, "why")], judge=True)
    rows = {line.split()[0]: line for line in text.splitlines() if line}
    assert rows["product.qkv.rows_1"].split()[-4:] == ["share", ">=", "0.7", "yes"]
    assert "80.0 %" in rows["product.qkv.rows_1"] and "same" in rows["product.qkv.rows_1"]
    assert rows["round_trip"].split()[-3:] == ["<=", "20", "NO"]
    assert rows["anything"].endswith("text")
    assert rows["server.x.same"].split()[-1] == "true"
    assert text.splitlines()[-1] == "1 failed, 1 ok"
    assert "yes" not in table.table([result], judge=False)


def test_every_expectation_names_a_figure_that_there_is():
    names = {"copy", "read", "copy_to_host", "launch", "round_trip", "record_and_wait"}
    names |= {f"{w}.{p}.rows_1" for w in ("product", "packed") for p in ("qkv", "o", "gate_up")}
    names |= {f"blocks.{b}.gate_up.rows_8" for b in ("q4_0", "q4_k", "q5_1", "q6_k", "q8_0")}
    names |= {"blocks.q4_k.head.rows_1", "blocks.q4_k.o.difference"}
    names |= {"blocks.served.below_best", "blocks.served.difference"}
    names |= {"7b.q4_k.step.context_256"}
    names |= {"attention.sequences_32.rows_1.context_2048"}
    names |= {f"{s}.step.context_{c}" for s in ("1b", "7b", "13b") for c in (256, 2048)}
    names |= {f"1b.launches.{way}" for way in headline.WAYS}
    names |= {"7b.ratio.eager", "7b.ratio.compiled"}
    names |= {"7b.step.ragged_32", "7b.ragged_32.ratio.eager"}
    names |= {"kernels.failed", "kernels.product.down.rows_16"}
    names |= {"kernels.chain.sequences_1.rows_1.context_256"}
    names |= {"7b.graphs.refused", "7b.prefill.512", "7b.prefill.4096"}
    names |= {"product.o.difference", "packed.head.difference"}
    names |= {"lora.down.rank_64.rows_16.difference"}
    names |= {"attention.sequences_1.rows_8.context_256.difference"}
    used = {table.expected(n)[0] for n in names if table.expected(n)}
    assert used == {row[0] for row in table.EXPECTED}


def test_sequences_of_a_ragged_batch_are_those_of_the_program():
    contexts = headline.ragged_contexts(2048)  # as bench_step's
    assert len(contexts) == 32 and contexts[0] == 256 and contexts[-1] == 2048
    assert contexts == sorted(contexts) and sum(contexts) == 36849


def test_answers_of_blocks_are_held_against_the_cpus(capsys):
    tokens, far = [5, 6, 7, 8], [5, 6, 9, 9]
    own, best = [-1.0, -2.0, -0.5, -0.25], [-1.0, -2.0, -0.5, -0.25]
    assert not blocks.judged(tokens, tokens, (own, best), own, own, exact=True)
    said = {f["name"]: f["value"] for f in steps.figures_of(capsys.readouterr().out)}
    assert said == {
        "blocks.served.same": 4,
        "blocks.served.below_best": 0,
        "blocks.served.difference": 0,
    }
    near = [best[0] + 0.3, *best[1:]]
    assert not blocks.judged(far, tokens, (own, near), own, [x + 0.1 for x in own], exact=False)
    assert '"blocks.served.same", "value": 2' in capsys.readouterr().out
    for case in (
        dict(said=tokens[:3]),
        dict(said_by_host=(own, [best[0] + 0.6, *best[1:]])),
        dict(said_by_host=([math.nan, *own[1:]], best)),
        dict(by_device=[x - 0.3 for x in own]),
        dict(by_device=[math.nan, *own[1:]]),
        dict(said=far, exact=True),
        dict(said_by_host=(own, near), exact=True),
        dict(by_host=[x + 1e-6 for x in own], exact=True),
    ):
        good = dict(
            said=tokens,
            wanted=tokens,
            said_by_host=(own, best),
            by_device=own,
            by_host=own,
            exact=False,
        )
        assert blocks.judged(**{**good, **case}), case


def test_steps_of_blocks_want_whole_blocks(binaries):
    """Of code-large's 320 numbers a row none of 256 is one."""
    command = [binaries / "bench_step", "--model=code-large", "--dtype=q4_k"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert (
        "--dtype: q4_k; allowed with code-large: types whose blocks divide its rows" in done.stderr
    )


def test_steps_of_files_want_their_path(binaries):
    command = [binaries / "bench_step", "--file=m="]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "--file: m=; allowed: NAME=PATH of a file or folder\n"


# A GoogleTest program with suites TorchDevice, which passes, Types/Forward, which passes without graphs, and
# Models/Oracle, whose tests are all skipped.
FAKE_TESTS = """#!{python}
import json, os, sys
words = sys.argv[1:]
if "--gtest_list_tests" in words:
    print("Running main() from here")
    for suite in ("TorchDevice.", "Types/Forward.  # TypeParam", "Models/Oracle.", "Gguf."):
        print(suite + chr(10) + "  One")
    sys.exit(0)
suite = words[0].removeprefix("--gtest_filter=").removesuffix(".*")
result = "SKIPPED" if "Oracle" in suite else "COMPLETED"
failed = "Forward" in suite and os.environ.get("TANDEM_TEST_GRAPHS") != "0"
tests = [dict(name="One", result=result), dict(name="Two", result=result)]
path = words[-1].removeprefix("--gtest_output=json:")
json.dump(dict(testsuites=[dict(name=suite, testsuite=tests)]), open(path, "w"))
sys.exit(1 if failed else 0)
"""


@pytest.fixture
def fake_tests(tmp_path, monkeypatch):
    program = tmp_path / "fake_tests"
    program.write_text(FAKE_TESTS.replace("{python}", sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(suites, "SUITES", ("TorchDevice", "Forward", "Oracle"))
    return str(program)


@pytest.mark.parametrize("device", ["cpu:0", "cuda:0"])
def test_suites_say_how_many_tests_ran_and_are_narrowed(fake_tests, device, monkeypatch, capsys):
    monkeypatch.setenv("TANDEM_TEST_DEVICE", device)
    assert suites.main([fake_tests]) == 1
    said = {f["name"]: f["value"] for f in steps.figures_of(capsys.readouterr().out)}
    assert said.pop("suite.Types/Forward.passes_with", None) == (
        "TANDEM_TEST_GRAPHS=0" if device == "cuda:0" else None
    )
    assert said.pop("suite.Models/Oracle.passes_with", None) == (
        "none of the ways" if device == "cuda:0" else None
    )
    assert said == {
        "suite.TorchDevice.tests": 2,
        "suite.Types/Forward.tests": 2,
        "suite.Types/Forward": "1",
        "suite.Models/Oracle.tests": 0,
        "suite.Models/Oracle": "no test ran",
        "suites.passed": 1,
        "suites.failed": 2,
        "suites.tests": 4,
    }


def test_shards_of_a_suite_are_one_result(fake_tests, monkeypatch, capsys):
    """Each shard of the fake program runs both tests."""
    monkeypatch.setattr(suites, "SUITES", ("TorchDevice", "Forward"))
    monkeypatch.setattr(suites, "SHARDS", {"TorchDevice": 3, "Forward": 2})
    assert suites.main([fake_tests, "--jobs=2"]) == 1
    said = {f["name"]: f["value"] for f in steps.figures_of(capsys.readouterr().out)}
    assert said["suite.TorchDevice.tests"] == 6
    assert said["suite.Types/Forward.tests"] == 4 and said["suite.Types/Forward"] == "1"


def test_one_test_in_so_many_runs(monkeypatch):
    monkeypatch.setattr(suites, "SHARDS", {"Oracle": 2})
    first = {"GTEST_TOTAL_SHARDS": "8", "GTEST_SHARD_INDEX": "0"}
    assert suites.shards_of("Types/Forward.", every=8) == [first]
    of_two = [{"GTEST_TOTAL_SHARDS": "16", "GTEST_SHARD_INDEX": i} for i in ("0", "1")]
    assert suites.shards_of("Models/Oracle.", every=8) == of_two
    for options, wanted in (
        (dict(dry=False), []),
        (dict(dry=True), ["--every=8"]),
        (dict(dry=True, all_tests=True), []),
    ):
        (step,) = (
            s for s in flat(judge.part_1(Path("files"), "cpu:0", **options)) if s.name == "suites"
        )
        assert [w for w in step.command if w.startswith("--every")] == wanted


def test_a_suite_that_is_gone_fails(fake_tests, monkeypatch, capsys):
    monkeypatch.setattr(suites, "SUITES", ("TorchDevice",))
    assert suites.main([fake_tests]) == 0
    monkeypatch.setattr(suites, "SUITES", ("TorchDevice", "Renamed"))
    assert suites.main([fake_tests]) == 1
    assert "Renamed" in capsys.readouterr().out


def test_suites_are_those_whose_tests_run_on_the_device():
    folder = bundle.ROOT / "tests/engine/backend/torch"
    of_cpus = {"ChainedDrafts", "LazyDevice", "ShardedDecoders", "StepGraph"}  # skipped elsewhere
    of_cpus |= {"FewRows", "OutputMatrix", "StoredBlocks"}
    of_cpus |= {"AuthorCandidates", "LoraDevice", "LoraGguf", "LoraSteps"}
    found = set()
    for source in [*folder.glob("*_test.cpp"), *folder.glob("model/*_test.cpp")]:
        text = source.read_text()
        if re.search(r"\bDriver\b|\btest_device\w*\(|torch/golden\.h|torch/test_device\.h", text):
            found |= set(re.findall(r"^TEST(?:_[FP])?\((\w+),", text, re.M))
    assert of_cpus <= found
    assert found - of_cpus == set(suites.SUITES)


def test_a_step_fails_unless_its_output_has_the_pattern(run):
    for said, status in (("[  PASSED  ] 12 tests.", "ok"), ("[  PASSED  ] 0 tests.", "failed")):
        (result,) = run(python(f"print({said!r})", end=judge.SOME_PASSED))
        assert result.status == status


def test_filters_of_the_sanitizers_match_tests(binaries):
    for tool, names in judge.SANITIZED.items():
        for part in names.split(":"):
            command = [binaries / "test_torch", "--gtest_list_tests", f"--gtest_filter={part}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            assert re.search(r"^  \w", done.stdout, re.M), f"{tool}: {part}"
    sanitizers = [s for s in flat(judge.part_1(Path("files"), "cuda:0", dry=False)) if s.needs]
    assert [s.name for s in sanitizers] == [f"sanitizer.{tool}" for tool in judge.SANITIZED]
    assert all(s.end == judge.SOME_PASSED for s in sanitizers)


def test_operations_of_a_prompt():
    """2 additions and multiplications a weight and token, 4 a head dimension and key."""
    linear = 2 * (64 * (64 + 2 * 32 + 64) + 3 * 64 * 128)
    assert headline.prompt_operations("tiny", 1) == 2 * linear + 2 * 4 * 64
    assert headline.prompt_operations("tiny", 3) == 3 * 2 * linear + 2 * 4 * 64 * (1 + 2 + 3)
    assert 50e12 < headline.prompt_operations("7b", 4096) < 60e12


def test_parts_leave_time_for_all_their_steps(tmp_path):
    """No step is cut short or skipped if each takes its whole limit."""
    link = tmp_path / "bin/test_cuda_link"  # part 1 of a folder for GPUs has one step more
    link.parent.mkdir()
    link.touch()
    for part in (judge.part_1, judge.part_2, judge.part_3):
        times = [
            max(step.limit for step in (group if isinstance(group, list) else [group]))
            for group in part(tmp_path, "cuda:0", dry=False)
        ]
        assert sum(times) <= judge.BUDGET - 2 * steps.END_AFTER, (part.__name__, times)


FAKE_NVCC = """#!{python}
import os, sys
program = sys.argv[sys.argv.index("-o") + 1]
code = "import json, sys; print(json.dumps(dict(name='options', value=sys.argv[1])))"
with open(program, "w") as out:
    print("#!" + sys.executable, code, sep=chr(10), file=out)
os.chmod(program, 0o755)
sys.exit(0 if os.path.exists(sys.argv[-1]) else 1)
"""


def test_the_program_of_kernels_is_compiled_where_nvcc_is(run, tmp_path, monkeypatch):
    (step,) = (s for s in judge.part_2(tmp_path, "cuda:0", dry=True) if s.name == "kernels")
    assert not [s for s in judge.part_2(tmp_path, "cpu:0", dry=True) if s.name == "kernels"]
    step.environment = {"PYTHONPATH": str(bundle.ROOT / "bench")}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [r.status for r in run(step)] == ["left out"]
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(FAKE_NVCC.format(python=sys.executable))
    nvcc.chmod(0o755)
    assert [r.status for r in run(step)] == ["failed"]  # no sources
    source = tmp_path / "sources" / bundle.KERNELS
    source.parent.mkdir(parents=True)
    source.write_text("")
    (result,) = run(step)
    assert result.status == "ok", result.why
    assert [f["value"] for f in result.figures] == ["--small"]


def test_sources_of_the_program_of_kernels_are_whole():
    names = bundle.sources_of(bundle.KERNELS)
    assert {"bench/kernels/checks.h", "engine/sampling/row_answer.h"} <= names
    for name in names:
        text = (bundle.ROOT / name).read_text()
        assert not re.search(r'#\s*include [<"](ATen|c10|torch|absl)/', text), name


def test_a_dry_run_of_the_folder_for_gpus_needs_none(run, tmp_path):
    program = tmp_path / "bin" / "test_cuda_link"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho torch sees CUDA: no, devices: 0\n")
    program.chmod(0o755)
    for device, status in (("cpu:0", "ok"), ("cuda:0", "failed")):
        (link,) = (s for s in flat(judge.part_1(tmp_path, device, dry=True)) if s.name == "link")
        assert [r.status for r in run(link)] == [status]


def test_tiny_tensors_are_one_threads():
    """By two threads on a busy machine a dry run read 0.05 GB/s, and its products were 600 times as fast."""
    for dry, wanted in ((True, {"OMP_NUM_THREADS": "1"}), (False, {})):
        for part in (judge.part_1, judge.part_2):
            found = [
                s
                for s in flat(part(Path("files"), "cuda:0", dry))
                if "bench_device" in s.command[0]
            ]
            assert found and all(s.environment == wanted for s in found)


NIGHT = bool(os.environ.get("TANDEM_NIGHT"))


@pytest.fixture(scope="module")
def made(binaries, tmp_path_factory):
    """At night the shipped folder, otherwise one with quick compression."""
    folder = tmp_path_factory.mktemp("gpu") / "check"
    bundle.make(binaries, folder, quickly=not NIGHT)
    return folder


QUICK = 1.1  # measured: the quick folder's size divided by the shipped one's


def test_the_folder_is_small_and_whole(made):
    assert bundle.size(made) < bundle.LIMIT * 1e6 * (1 if NIGHT else QUICK)
    with tarfile.open(made / bundle.PAYLOAD) as payload:
        names = set(payload.getnames())
    assert {f"bin/{p}" for p in bundle.PROGRAMS} <= names
    libraries = {n.removeprefix("lib/") for n in names if n.startswith("lib/")}
    assert any(n.startswith("libgrpc++.so") for n in libraries)
    assert not any(n.startswith(("libc.so", "libtorch", "libstdc++")) for n in libraries)
    assert "models/code-large/model.safetensors" in names
    assert f"sources/{bundle.KERNELS}" in names
    manifest = json.loads((made / "MANIFEST.json").read_text())
    assert set(bundle.PROGRAMS) <= set(manifest["programs"])


def test_dry_run_on_the_cpu(made, tmp_path):
    command = [made / "run", "--dry", "--device=cpu:0", f"--out={tmp_path}"]
    command += ["--all-tests"] if NIGHT else []
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=800)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    figures = {}
    for part in (1, 2, 3):
        results = json.loads((tmp_path / f"part_{part}" / "results.json").read_text())
        assert {r["status"] for r in results} == {"ok"}, results
        figures |= {f["name"]: f for r in results for f in r["figures"]}
        assert (tmp_path / f"part_{part}" / "table.txt").read_text() in done.stdout
    assert figures["suites.failed"]["value"] == 0
    for suite in suites.SUITES:
        (ran,) = {
            f["value"] > 0
            for n, f in figures.items()
            if re.fullmatch(rf"suite\.(\w+/)?{suite}\.tests", n)
        }
        assert ran, suite
    assert figures["product.qkv.rows_8"]["bits"] is True
    for name in ("qkv", "o", "gate_up", "down", "head"):
        assert 0 < figures[f"product.{name}.difference"]["value"] < 1e-4
    for case in ("sequences_1.rows_1", "sequences_32.rows_1", "sequences_1.rows_8"):
        assert 0 < figures[f"attention.{case}.context_40.difference"]["value"] < 1e-3
    assert figures["tiny.prefill.512"]["value"] > 0
    assert figures["tiny.prefill.512.rate"]["value"] > 0
    assert figures["tiny.prefill.512.transformers"]["value"] > 0
    for of_blocks in ("q4_0.gate_up", "q6_k.gate_up", "q4_k.qkv", "q4_k.head"):
        assert figures[f"blocks.{of_blocks}.rows_64"]["bits"] is True
        assert figures[f"blocks.{of_blocks}.difference"]["value"] == 0
    assert figures["blocks.served.same"]["value"] == 8
    assert figures["blocks.served.below_best"]["value"] == 0
    assert figures["blocks.served.difference"]["value"] == 0
    assert math.isfinite(figures["tiny.step.context_64"]["value"])
    assert math.isfinite(figures["tiny.q4_0.step.context_64"]["value"])
    # A step is the difference of two times, here of tiny ones on a busy machine: any number.
    assert math.isfinite(figures["tiny.ratio.eager"]["value"])
    for way in headline.WAYS:
        assert figures[f"tiny.launches.{way}"]["value"] > 0
    for way in headline.PROMPT_WAYS:
        assert figures[f"tiny.prompts.{way}.512"]["value"] > 0
    assert figures["server.autoregressive"]["value"] > 0
    assert figures["server.speculative.same"]["value"] is True
    assert math.isfinite(figures["tiny.step.ragged_32"]["value"])
    assert math.isfinite(figures["tiny.ragged_32.ratio.eager"]["value"])
    assert figures["server.unknown_device"]["value"] == "refused"
    assert figures["server.too_little_memory"]["value"] == "refused"
    assert figures["server.full_pools"]["value"] == "answered"
    assert figures["server.full_pools.preemptions"]["value"] > 0
    assert figures["server.memory_taken"]["value"] > 0
    assert figures["server.after_taken"]["value"] == "answered"
    assert figures["server.drain"]["value"] == "ok"


def test_no_folder_that_is_not_empty(tmp_path):
    (tmp_path / "something").write_text("")
    with pytest.raises(SystemExit, match="not empty"):
        bundle.make(tmp_path, tmp_path)
