"""Programs of llama.cpp and ik_llama.cpp at a path: only flags that they take, and both repacking settings."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import TimedWorker
from fake_llama_program import OWN, write_program

from bench.peers import start, stored
from measure import llama_programs
from measure.llama_programs import Program, Settings, batched_bench_rows, named
from measure.llama_server import Answer, llama_server
from tuning.evaluate import __main__ as evaluate
from tuning.evaluate import humaneval
from tuning.evaluate.humaneval import AR, Problem, Result, Solved, Way

FLAVORS = list(OWN)
PROBLEM = Problem("HumanEval/7", "def double(x):\n", "", "double")


@pytest.fixture
def program(tmp_path):
    """Makes programs by flavor and kind."""

    def make(flavor: str, kind: str) -> Program:
        path = tmp_path / f"{flavor} {kind}"
        return Program(flavor, path if path.exists() else write_program(path, flavor, kind))

    return make


@pytest.mark.parametrize("kind", ["server", "batched-bench"])
def test_ik_is_known_by_its_flags(program, kind):
    assert [program(flavor, kind).of_ik for flavor in FLAVORS] == [False, False, True]


def test_a_flag_is_not_part_of_another(program):
    one = program("llama.cpp", "server")
    assert one.takes("--repack") and one.takes("--spec-ngram-simple-size-n")
    assert not one.takes("--spec-ngram-simple") and not one.takes("-repack")


def test_both_settings_of_repacking_with_the_default_first(program):
    shown = {f: [s.shown for s in program(f, "server").repacking()] for f in FLAVORS}
    assert shown["llama.cpp"] == ["repacked", "not repacked"]
    assert shown["ik_llama.cpp"] == ["not repacked", "repacked"]
    assert program("llama.cpp", "server").repacking()[1].flags == ("--no-repack",)
    assert program("ik_llama.cpp", "server").repacking()[1].flags == ("--run-time-repack",)


def test_without_a_choice_there_is_one_setting(tmp_path):
    path = tmp_path / "plain"
    path.write_text("#!/bin/sh\necho '--model FNAME'\n")
    path.chmod(0o755)
    assert Program("plain", path).repacking() == [Settings("")]
    with pytest.raises(ValueError, match="no flag for the sizes of n-grams"):
        Program("plain", path).ngrams(3, 8)


def test_sizes_of_ngrams_have_the_names_of_the_build(program):
    flags = {f: " ".join(program(f, "server").ngrams(3, 8).flags) for f in FLAVORS}
    kind = "--spec-type ngram-simple "
    assert flags["llama.cpp"] == kind + "--spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 8"
    assert flags["older llama.cpp"] == kind + "--spec-ngram-size-n 3 --spec-ngram-size-m 8"
    stage = "ngram-simple:n_max=8,ngram_size_n=3,ngram_size_m=8"
    assert flags["ik_llama.cpp"] == f"--spec-type {stage}"


@pytest.mark.parametrize("flavor", FLAVORS)
def test_a_server_starts_with_the_settings_of_each_way(program, flavor):
    peer = program(flavor, "server")
    ways = humaneval.peer_ways(peer)
    assert len(ways) == 5 and len({way.settings for way in ways}) == 5
    other = replace(ways[-1], settings=ways[-1].settings + peer.repacking()[1])
    for way in [*ways, other]:
        with humaneval.started(way) as server:
            answer = server.complete("some", 3, ())
        assert answer.count == 3
        assert answer.tokens == ([] if peer.of_ik else [0, 1, 2])
        assert all(flag in answer.text for flag in way.settings.flags)


def test_a_server_that_refuses_a_flag_is_quoted(program):
    peer = program("ik_llama.cpp", "server")
    refused = llama_server(peer.path, Path("some.gguf"), ["--spec-draft-n-max", "4"])
    with pytest.raises(
        RuntimeError, match="(?s)ended with 1.*unknown argument: --spec-draft-n-max"
    ):
        refused.__enter__()


class Timed:
    """A server whose answers take a time on its clock."""

    def __init__(self):
        self.now = 0.0

    def start(self, way: Way):
        self.seconds = 1.0 if "--no-repack" in way.settings.flags else 4.0
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def complete(self, prompt, new_tokens, stops):
        if new_tokens > 2:  # reading the prompt is not measured
            self.now += self.seconds
        return Answer("", [], new_tokens)


def test_a_way_has_the_faster_repacking_and_shows_both_speeds(program):
    way = humaneval.peer_ways(program("llama.cpp", "server"))[4]
    timed = Timed()
    chosen = humaneval.repacked(way, [PROBLEM] * 3, 12, timed.start, lambda: timed.now)
    assert chosen.name == way.name
    assert chosen.settings.flags == (*way.settings.flags, "--no-repack")
    assert chosen.settings.shown == (
        "n-grams, size n 3, size m 8, not repacked (trial: 12.0 tokens/s; repacked 3.0)"
    )


def test_the_table_states_the_settings_of_peers(program):
    way = humaneval.peer_ways(program("llama.cpp", "server"))[4]
    solved = [Solved([1, 2], 1.0, True)]
    text = humaneval.table([Result(AR, solved), Result(way, solved)], 0)
    head, _, ours, theirs = text.splitlines()[2:]
    assert head.endswith("| equal to AR | settings |")
    assert ours.endswith("| 1 of 1 |  |")
    assert theirs.endswith("| 1 of 1 | n-grams, size n 3, size m 8 |")


def test_answers_without_tokens_are_compared_by_text():
    ours = Result(AR, [Solved([1, 2, 3], 1.0, True, "a"), Solved([4], 1.0, True, "b")])
    way = Way("peer", "", "")
    theirs = Result(way, [Solved([], 1.0, True, "a", 3), Solved([], 1.0, True, "c", 5)])
    assert theirs.equal(ours) == 1
    assert theirs.speed == 4


def test_rows_of_both_formats():
    table = "|    64 |     16 |    8 |    640 |    1.500 |   341.33 |    2.000 |    64.00 |  3.5 | 182 |"
    rows = batched_bench_rows(
        f'{{"pl": 1, "speed_tg": 8.5}}\nmain: n_kv_max = 640\n{table}\n|--|--|\n'
    )
    assert rows[0] == {"pl": 1, "speed_tg": 8.5}
    assert (rows[1]["pl"], rows[1]["speed_pp"], rows[1]["speed_tg"]) == (8, 341.33, 64.0)


def test_each_peer_has_rows_with_its_own_fastest_settings(program, monkeypatch):
    monkeypatch.setattr(stored, "Worker", TimedWorker)
    monkeypatch.setattr(stored, "prompts", lambda tokens, start=0: iter(lambda: [0] * tokens, None))
    peers = [program("llama.cpp", "batched-bench"), program("ik_llama.cpp", "batched-bench")]
    rows = stored.compare(Path("some.gguf"), peers, turns=2).rows()
    assert all(len(row) == len(stored.HEAD) for row in rows)
    assert [row[1] for row in rows] == [
        n for n in ("1 stream", "8 streams", "prompt of 512") for _ in peers
    ]
    one, of_ik, _, _, prompt, prompt_of_ik = rows
    assert one[3] == "llama.cpp" and one[4].startswith("20.0") and one[6] == "1.35"
    assert one[7] == f"{stored.THREADS[0]} threads, repacked, poll 0"
    # Of another peer there is no goal.
    assert of_ik[3] == "ik_llama.cpp" and of_ik[4].startswith("60.0") and of_ik[6] == "-"
    assert of_ik[7] == f"{stored.THREADS[0]} threads, repacked"
    # Reading is fastest with the defaults.
    assert prompt[4].startswith("600.0") and prompt[7] == f"{stored.THREADS[0]} threads, repacked"
    assert prompt_of_ik[7] == f"{stored.THREADS[0]} threads, not repacked"


def test_the_threads_and_the_other_repacking_are_tried(program):
    for flavor in FLAVORS:
        peer = program(flavor, "batched-bench")
        trials = peer.trials([2, 1])
        assert trials[0].flags == ("--threads", "2")
        assert {s.shown for s in peer.repacking()} <= {s.shown.split(", ")[1] for s in trials}
        assert any("1" in s.flags for s in trials) and len(set(trials)) == len(trials)
        for settings in trials:  # the program takes them all
            stored.run_theirs(Path("some.gguf"), peer, settings, 64, 16, [1, 8])


def test_a_program_without_a_row_is_quoted(program, monkeypatch):
    peer = program("ik_llama.cpp", "batched-bench")
    with pytest.raises(RuntimeError, match=r"(?s)rows \[8\].*n_ctx_req is greater"):
        stored.run_theirs(Path("some.gguf"), peer, Settings(""), 64, 16, [16, 8])


def test_missing_peers_are_named(tmp_path, capsys):
    with pytest.raises(SystemExit, match="1"):
        stored.main(["some", "--peer", f"ik={tmp_path / 'none'}"])
    assert str(tmp_path / "none") in capsys.readouterr().out


def test_start_and_memory_of_any_server(program, monkeypatch):
    found = start.theirs(Path("some.gguf"), program("ik_llama.cpp", "server").path)
    assert found.seconds > 0 and found.resident > found.own > 0


def test_names_and_paths():
    assert named("ik=/a/b") == Program("ik", Path("/a/b"))
    assert named("/a/b", "llama-server") == Program("llama-server", Path("/a/b"))
    for wrong in ("/a/b", "=/a/b", "ik="):
        with pytest.raises(argparse.ArgumentTypeError, match="allowed: NAME=PATH"):
            named(wrong)
    parser = argparse.ArgumentParser()
    llama_programs.add_option(parser, "--peer", "more")
    assert parser.parse_args([]).peer == []
    given = parser.parse_args(["--peer", "a=/x", "--peer", "b=/y"]).peer
    assert [p.name for p in given] == ["a", "b"]


def test_evaluation_takes_several_servers():
    args = evaluate.parse(["--humaneval", "8", "--llama-server", "/a", "--llama-server", "ik=/b"])
    assert [(p.name, str(p.path)) for p in args.llama_server] == [
        ("llama-server", "/a"),
        ("ik", "/b"),
    ]
    assert humaneval.place_of(humaneval.Run(8, 8, (0,), peers=args.llama_server)) == (
        "humaneval llama-server"
    )
