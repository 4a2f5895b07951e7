"""What comparisons make of what llama.cpp's programs and bench_step say of GGUF files."""

import argparse
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_engine import TimedWorker

from bench.peers import stored, stored_openvino, stored_step, worker
from measure.llama_programs import Settings
from tuning import gguf_perplexity


def test_what_is_not_built_is_named_with_the_command_for_it(tmp_path, monkeypatch, capsys):
    for module in (stored, stored_openvino):
        monkeypatch.setattr(module, "OURS", [tmp_path / "bench_client"])
        with pytest.raises(SystemExit, match="1"):
            module.main(["some"])
        said = capsys.readouterr().out
        assert str(tmp_path / "bench_client") in said and "scripts/build release" in said


def test_perplexity_is_read_from_what_the_program_says():
    # All three windows: ln 2, ln 8 and 0.
    said = "...[1]2.0000,[2]4.0000,[3]2.5198,\nFinal estimate: PPL = 2.5198 +/- 0.1\n"
    losses = gguf_perplexity.window_losses(said, 3)
    assert losses == pytest.approx([0.6931, 2.0794, 0.0], abs=1e-3)
    with pytest.raises(SystemExit, match="0 of 3 windows"):
        gguf_perplexity.window_losses("out of memory", 3)


def test_distances_from_fp32_have_standard_errors():
    said = gguf_perplexity.beside([1.0, 1.0, 0.7], [1.0, 1.0, 1.0])
    assert said == "2.4596 (-9.516% +- 10.000%)"
    # 0.2 too much beside 0.1 too little: 0.1 further.
    more = gguf_perplexity.further([0.0, 0.0], [0.1, 0.3], [-0.1, -0.1])
    assert more == pytest.approx((0.1, 0.1))


def test_windows_are_whole_and_begin_as_the_file_says(monkeypatch):
    documents = [SimpleNamespace(text=name * 600) for name in "abc"]
    monkeypatch.setattr(gguf_perplexity.corpus, "standard_library", list)
    monkeypatch.setattr(gguf_perplexity.corpus, "read_documents", lambda _: documents)
    monkeypatch.setattr(gguf_perplexity.corpus, "split", lambda all: ([], all))
    letters = [lambda text: [ord(c) for c in text], -1]
    text, windows = gguf_perplexity.held_out(*letters, 2 * gguf_perplexity.LENGTH)
    assert [len(w) for w in windows] == [gguf_perplexity.LENGTH] * 2
    assert [w[0] for w in windows] == [-1, -1]
    assert text == "a" * 600 + "b" * 600  # no more than is asked for
    assert windows[1][1] == ord("a") and windows[1][-1] == ord("b")


@pytest.fixture
def openvino(monkeypatch):
    """Its plain pipeline is faster, and its own model twice as fast as the file."""

    class Engine(TimedWorker):
        def __init__(self, kind, source, precision, environment):
            self.slower = {"batching": 4, "plain": 2}.get(precision, 1)
            if source.name == "own":
                assert not environment
                self.slower /= 2
            if (environment or {}).get("GGUF_READER") == "LEGACY" and precision == "plain":
                raise worker.Failed("OpenVino ended with 1:\nmuch\na type that it does not read")

        def ask(self, _, prompts, new_tokens):
            return prompts, self.slower * super().ask(_, prompts, new_tokens)[1]

    monkeypatch.setattr(stored_openvino, "Worker", Engine)
    monkeypatch.setattr(
        stored_openvino, "prompts", lambda tokens, start=0: iter(lambda: [0] * tokens, None)
    )


def test_another_engine_has_its_fastest_settings_and_what_does_not_load_is_reported(openvino):
    rows, refused = stored_openvino.compare(Path("some.gguf"), turns=2)
    assert [row[1] for row in rows] == ["1 stream", "8 streams", "prompt of 512"]
    assert {row[4] for row in rows} == {"**2.00**"}
    assert {row[5] for row in rows} == {"the file's, converted"}
    assert {row[6] for row in rows} == {"plain, frontend reader"}
    assert refused == [
        "some, the file's, converted, plain, legacy reader: a type that it does not read"
    ]


def test_its_own_model_has_rows_that_say_that_it_rounds_anew(openvino):
    rows, _ = stored_openvino.compare(Path("some.gguf"), turns=2, int4=Path("own"))
    figures = ["1 stream", "8 streams", "prompt of 512"]
    assert [row[1] for row in rows] == figures * 2
    assert [row[5] for row in rows[3:]] == ["own int4, rounded anew"] * 3
    assert [row[4] for row in rows] == ["**2.00**"] * 3 + ["**1.00**"] * 3
    assert {row[6] for row in rows[3:]} == {"plain"}


def test_the_folder_of_its_own_model_must_have_one(tmp_path):
    (tmp_path / "openvino_model.xml").touch()
    assert stored_openvino.named_folder(f"some={tmp_path}") == ("some", tmp_path)
    for wrong in (str(tmp_path), f"={tmp_path}", f"some={tmp_path}/none"):
        with pytest.raises(argparse.ArgumentTypeError, match="allowed: MODEL=FOLDER"):
            stored_openvino.named_folder(wrong)


STEPS = """table,model,x,milliseconds
weights,m,8e+07,0
parts,m:product:1 row,1,6
parts,m:head:1 row,1,2
parts,m:attention:1 row,1,1
parts,m:rope, K and V:1 row,1,1
parts,m:product:64 rows, 1 read,64,30
"""


def test_a_step_is_held_against_reading_its_weights():
    assert stored_step.weight_bytes(STEPS) == 80_000_000
    passes = stored_step.milliseconds(STEPS)
    assert passes["1 row"] == {"product": 6, "head": 2, "attention": 1, "rope, K and V": 1}
    for name in stored_step.PASSES:
        passes.setdefault(name, {"product": 15})
    cells = stored_step.row("m", 80_000_000, passes, probe=12.5e9)
    assert cells[1:7] == ["80", "10.00", "60 %", "20 %", "10 %", "10 %"]
    assert cells[7:9] == ["10.0", "80 %"], "80 MB in 8 ms, of 12.5 GB/s"
    assert cells[9:] == ["1.50", "1.50", "1.50", "1.50", "3.00"]
    head = stored_step.page([cells], "about").splitlines()[2]
    assert head.count("|") == len(cells) + 1


def test_settings_that_a_peer_does_not_run_are_left_out(monkeypatch, capsys):
    class Peer:
        name = "peer"

        def trials(self, threads):
            return [Settings("defaults"), Settings("bf16"), Settings("fast")]

    def theirs(file, peer, settings, new):
        if settings.shown == broken:
            raise RuntimeError("ended with -6\nmore")
        return dict.fromkeys(stored.GOALS, 2.0 if settings.shown == "fast" else 1.0)

    monkeypatch.setattr(stored, "theirs", theirs)
    broken = "bf16"
    measured = stored.tried(Path("x.gguf"), Peer())
    assert [settings.shown for settings in measured.theirs] == ["defaults", "fast"]
    assert "peer, bf16: left out: ended with -6\n" in capsys.readouterr().err
    broken = "defaults"
    with pytest.raises(RuntimeError):
        stored.tried(Path("x.gguf"), Peer())
