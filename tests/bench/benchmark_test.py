"""The parts of the benchmarks that need neither a server nor time."""

import itertools

import pytest

from bench.peers import cli, models, throughput_page
from measure import machine


def test_the_fastest_variant_counts():
    case = throughput_page.Case(
        "m", 8, ours=[90, 100, 120], theirs={"a": [10, 60, 70], "b": [50, 50, 99]}
    )
    assert case.best() == "a"
    assert case.ratio() == pytest.approx(100 / 60)


def test_page():
    cases = [
        throughput_page.Case(
            "m", 1, [20, 30, 40], {"a": [10, 10, 10]}, same_tokens=3, all_tokens=4
        ),
        throughput_page.Case("m", 8, [], {"a": [10, 20, 15]}, sequential=7.0),
    ]
    page = throughput_page.markdown("| command | `x` |", cases)
    assert "| m | 1 | 30.0 (20.0-40.0) | 10.0 (10.0-10.0) | **3.00** | a | - | 75.0% |" in page
    assert "| m | 8 | - | 15.0 (10.0-20.0) | - | a | 7.0 | - |" in page
    assert "| command | `x` |" in page


def test_a_run_states_its_conditions_and_writes_its_report(monkeypatch, tmp_path, capsys):
    loads = iter([0.01, 0.024])
    monkeypatch.setattr(machine, "load", lambda: next(loads))
    run = cli.Run("scripts/bench_x", ["--write"], True)
    assert run.about("Medians.").startswith("`scripts/bench_x --write`. Commit ")
    assert run.about("Medians.").endswith("load before: 1%. Medians.")
    text = run.conditions("1 thread", [("turns", "3")])
    assert "| command | `scripts/bench_x --write` |" in text
    assert "cores, 1 thread |" in text
    assert "| machine busy before and after | 1%, 2% |\n| turns | 3 |" in text

    page = tmp_path / "page.md"
    page.write_text("<!-- x: begin -->old<!-- x: end -->")
    cli.publish("new", False, page, "x")
    assert "old" in page.read_text()
    cli.publish("new", True, page, "x")
    assert "new" in page.read_text() and "old" not in page.read_text()
    assert capsys.readouterr().out == "new\nnew\n"


def test_a_busy_machine_ends_a_run_that_would_write(monkeypatch):
    monkeypatch.setattr(machine, "load", lambda: 0.5)
    assert cli.Run("x", [], False).busy == [0.5]
    with pytest.raises(SystemExit):
        cli.Run("x", [], True)


def test_missing_files_are_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cli, "HOME", tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/a.gguf").touch()
    assert cli.gguf_files([], [], "make") == [tmp_path / "models/a.gguf"]
    with pytest.raises(SystemExit):
        cli.gguf_files(["b"], [tmp_path / "program"], "make program")
    printed = capsys.readouterr().out
    assert "b.gguf" in printed and "make program" in printed


def test_mixed_work_has_many_lengths_and_is_the_same_in_every_run():
    from bench.peers import ar

    args = ar.parse(["--mixed"])
    first, second = itertools.islice(ar.works(40, args), 2)
    lengths = [len(p) for p in first.prompts]
    assert min(lengths) >= 16 and max(lengths) <= 256 and len(set(lengths)) > 10
    assert min(first.new_tokens) >= 32 and max(first.new_tokens) <= 128
    assert len(set(first.new_tokens)) > 10
    assert first.total() == sum(first.new_tokens)
    assert [len(p) for p in second.prompts] != lengths
    assert next(ar.works(40, args)) == first


def test_transformers_pads_and_cuts(tmp_path):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from bench.peers.peer import VARIANTS, Peer

    torch.manual_seed(1)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=64, num_attention_heads=2, initializer_range=0.5, **shape)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    peer = Peer(tmp_path)
    prompts, wanted = [[1, 2, 3, 4, 5, 6, 7], [8, 9], [10, 11, 12, 13]], [3, 9, 6]
    for variant in VARIANTS:
        together, _ = peer.generate(prompts, wanted, variant)
        alone = [peer.generate([p], n, variant)[0][0] for p, n in zip(prompts, wanted, strict=True)]
        assert together == alone
        assert [len(tokens) for tokens in together] == wanted


def test_match_counts_until_the_first_difference():
    from bench.peers.ar import match

    assert match([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 9, 6]]) == (4, 6)


def test_prompts_are_long_enough_and_differ():
    some = list(itertools.islice(models.prompts(64), 200))
    assert all(len(prompt) == 64 and prompt[0] == 0 for prompt in some)
    assert len({tuple(prompt) for prompt in some}) == len(some)


def test_stubs_speak_the_protocol(tmp_path):
    from measure import serving

    messages, services = serving.stubs(str(tmp_path))
    request = messages.GenerateRequest(model="m", token_ids=messages.TokenIds(ids=[1, 2]))
    assert request.WhichOneof("prompt") == "token_ids"
    assert hasattr(services, "GenerationStub")


def test_a_token_is_counted_from_the_step_that_it_names():
    import numpy as np

    from bench.peers import streams

    steps = np.arange(200, dtype=np.int64) * 10 + 5
    records = np.zeros(4, dtype=streams.RECORD)
    # From step 150 at once; from 149 when 150 was there; from 56, when 150 has its name plus one
    # step less than a whole round; from the first.
    records["arrival"] = [1506, 1506, 1506, 7]
    records["token"] = [32 + step % 95 for step in (150, 149, 56, 0)]
    assert streams.delays(steps, records).tolist() == [1, 11, 941, 2]
    records["token"][3] = 33
    with pytest.raises(ValueError, match="before the step"):
        streams.delays(steps, records)


def streams_of(cpu, p99, open_bytes):
    from bench.peers import streams

    turns = [
        streams.Turn(49.5, 1.25, p99 * f, 30, cpu * f, 9, 32 << 20, 40960) for f in (0.5, 1, 2)
    ]
    return streams.Server("s", turns, open_bytes)


def test_page_of_many_streams():
    from bench.peers import streams

    args = streams.parse([])
    servers = [streams_of(12, 8, 20480), streams_of(10, 4, 16384)]
    page = streams.markdown("| command | `x` |", servers, args)
    assert "Server CPU per token is **1.20** times the bare streamer's." in page
    assert "takes 4.0 KiB more than a bare one" in " ".join(page.split())
    assert "| delay of a token, 99 %, ms | 8.00 (4.00-16.00) | 4.00 (2.00-8.00) |" in page
    assert "| memory per stream of 10,000, KiB | 20.0 | 16.0 |" in page
    assert "| command | `x` |" in page
    assert streams.failures(servers) == []


def test_missed_goals_of_many_streams_are_reported():
    from bench.peers import streams

    servers = [streams_of(13, 21, 20481), streams_of(10, 4, 16384)]
    said = streams.failures(servers)
    assert len(said) == 3
    assert said[0] == "p99 of the delay: 21.0 ms; allowed: 20.0 ms"
    assert said[1] == "CPU per token over the bare streamer's: 1.30; allowed: 1.25"
    assert said[2] == "bytes of a stream above a bare one: 4097; allowed: 4096"
