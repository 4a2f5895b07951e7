"""bench/constrained.py: speeds while all streams run, ratios by turn, and an interrupted run."""

import json
from dataclasses import asdict
from pathlib import Path

import jsonschema
import pytest

from bench import constrained
from bench.constrained import AUTO, FREE, LLAMA, PLAIN, Answer, Measured


def measured(side, turn, rate, texts=("a",), streams=1):
    method = "autoregressive" if side.engine == "Tandem" else ""
    return Measured(
        side.name, streams, turn, rate, 0.5, 9.0, 40 * streams, [method], [*texts][:streams]
    )


def test_the_rate_counts_what_arrives_while_all_streams_run():
    assert constrained.rate([[(1.0, 5), (2.0, 3), (3.0, 4)]]) == 3.5
    early = [(0.0, 1), (1.0, 10), (2.0, 20), (3.0, 30)]
    late = [(1.0, 1), (1.5, 2), (5.0, 100)]
    assert constrained.rate([early, late]) == (20 + 30 + 2) / 2
    with pytest.raises(ValueError, match="before another began"):
        constrained.rate([[(0.0, 1), (1.0, 1)], [(1.0, 1), (2.0, 1)]])


def test_prompts_differ_within_and_between_turns():
    made = [p for turn in range(5) for n in (1, 8) for p in constrained.prompts(turn, n, True)]
    assert len(set(made)) == len(made) == 45
    assert made[0].startswith("<|im_start|>user\nTask 100. ") and made[0].endswith("assistant\n")
    assert "<|im" not in constrained.prompts(0, 1, False)[0]


def test_the_schema_has_answers_longer_than_are_measured():
    item = {"name": "C", "year": 1972, "license": "none", "tags": ["a", "b"], "summary": "x" * 20}
    jsonschema.validate([item] * 8, constrained.SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([item] * 7, constrained.SCHEMA)
    # The shortest answer: more characters than a tokenizer joins into 192 tokens.
    assert len(json.dumps([item] * 8, separators=(",", ":"))) > 700


def test_each_side_is_first_in_turn():
    sides = constrained.SIDES
    firsts = [constrained.in_order(sides, turn)[0] for turn in range(len(sides))]
    assert set(firsts) == set(sides)
    assert all(set(constrained.in_order(sides, turn)) == set(sides) for turn in range(7))


def test_events_of_llama_server():
    lines = [
        b'data: {"content":"[","tokens":[58],"stop":false}\n',
        b"\n",
        b'data: {"content":"{ a","tokens":[1,2],"stop":false}\n',
        b'data: {"content":"","tokens":[],"stop":true,"tokens_evaluated":7,"tokens_predicted":3}\n',
    ]
    times = iter((1.0, 2.0))
    answer = constrained.read_llama(lines, lambda: next(times))
    assert answer == Answer([(1.0, 1), (2.0, 2)], 7, "[{ a") and answer.tokens == 3
    with pytest.raises(RuntimeError, match="no slot"):
        constrained.read_llama([b'data: {"error":{"message":"no slot"}}\n'])


def test_requests_to_llama_server_have_the_same_schema():
    body = constrained.llama_body(LLAMA, "p", 5)
    assert body["json_schema"] == constrained.SCHEMA and "ignore_eos" not in body
    body = constrained.llama_body(constrained.LLAMA_FREE, "p", 5)
    assert "json_schema" not in body and body["ignore_eos"] and body["n_predict"] == 5


def test_the_draft_model_has_the_masks_that_are_given():
    given = ["--large", "l.gguf", "--small", "s.gguf"]

    def config_of(*more):
        return constrained.config_of(constrained.parse([*given, *more]), Path("tokens"))

    assert "masks" not in config_of()
    both = config_of("--small-masks", "folder")
    for file in ("l.gguf", "s.gguf", "folder"):
        assert f'path: "{Path.cwd()}/{file}"' in both
    assert 'small: "small" speculative { adapter: "masks" }' in both


def test_sides_have_tokens_of_their_own():
    tokens = {constrained.token_of(side) for side in constrained.SIDES}
    assert len(tokens) == len(constrained.SIDES) and min(map(len, tokens)) >= 16


def test_answers_of_another_length_are_refused():
    def ask(text):
        return Answer([(0.0, 1), (1.0, 3)], 9, "short")

    with pytest.raises(RuntimeError, match=r"4 tokens, not 5: 'short'"):
        constrained.measure(PLAIN, 0, ["p", "q"], 5, ask)
    found = constrained.measure(PLAIN, 2, ["p", "q"], 4, ask)
    assert found.rate == 6 and found.prompt_tokens == 18 and found.texts == ["short"] * 2


def test_ratios_are_medians_of_turns():
    found = [
        measured(side, turn, rate)
        for side, rates in ((FREE, (10, 20, 40)), (PLAIN, (9, 20, 30)), (AUTO, (18, 60, 30)))
        for turn, rate in enumerate(rates)
    ]
    text = constrained.markdown(found, (FREE, PLAIN, AUTO), [1], "conditions")
    assert f"| {PLAIN.name} / {FREE.name} | 0.90 (0.75-1.00) |" in text
    assert f"| {AUTO.name} / {PLAIN.name} | 2.00 (1.00-3.00) |" in text
    assert f"| {PLAIN.name} | 20.0 (9.0-30.0) | 500 | autoregressive |" in text
    assert LLAMA.name not in text and text.endswith("conditions")


def test_differing_answers_are_counted():
    found = [
        measured(PLAIN, 0, 1, ("a", "b"), 2),
        measured(AUTO, 0, 1, ("a", "c"), 2),
        measured(PLAIN, 1, 1),
        measured(AUTO, 1, 1),
        measured(AUTO, 2, 1),
    ]
    assert constrained.different(found) == 1


def test_an_interrupted_run_continues(tmp_path, capsys):
    path = tmp_path / "out"
    assert constrained.stored(path, {"large": "a"}) == []
    one = measured(PLAIN, 0, 9.5)
    path.write_text("\n".join(map(json.dumps, ({"large": "a"}, asdict(one)))) + "\n")
    assert constrained.stored(path, {"large": "a"}) == [one]
    with pytest.raises(SystemExit):
        constrained.stored(path, {"large": "b"})
    assert "other settings" in capsys.readouterr().err
