"""tuning/evaluate/humaneval: problems become requests and programs, answers become figures."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from measure.llama_programs import Program
from measure.llama_server import Answer
from measure.serving import stubs
from tuning.evaluate import humaneval
from tuning.evaluate.humaneval import AR, WAYS, Problem, Result, Solved, Way
from tuning.evaluate.sandbox import Outcome, run

DOUBLE = Problem(
    "HumanEval/7",
    'def double(x):\n    """Twice x."""\n',
    "def check(candidate):\n    assert candidate(2) == 4\n",
    "double",
    "    return 2 * x\n",
)


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    return stubs(str(tmp_path_factory.mktemp("stubs")))[0]


class Client:
    """Answers with what the method of a request is down for."""

    def __init__(self, messages, answers):
        self.messages, self.answers, self.asked = messages, answers, []

    def complete(self, request):
        self.asked.append(request)
        text = self.answers[request.WhichOneof("method")]
        tokens = [SimpleNamespace(id=ord(c)) for c in text]
        return SimpleNamespace(text=text, tokens=tokens)


def test_problems_are_read_from_the_fetched_file(tmp_path):
    entry = {
        "task_id": DOUBLE.name,
        "prompt": DOUBLE.prompt,
        "test": DOUBLE.tests,
        "entry_point": DOUBLE.entry_point,
        "canonical_solution": DOUBLE.solution,
    }
    path = tmp_path / "problems.gz"
    with gzip.open(path, "wt") as file:
        file.write(json.dumps(entry) + "\n\n")
    assert humaneval.read_problems(path) == [DOUBLE]


def test_programs_pass_exactly_when_the_tests_do():
    assert run(DOUBLE.program("    return x + x")).passed
    assert not run(DOUBLE.program("    return x")).passed


def test_requests_carry_the_way_the_seed_and_the_contract(messages):
    client = Client(messages, {})
    for way in WAYS:
        request = humaneval.request_of(client, way, DOUBLE, 9, 0.8)
        assert request.seed == 7 and request.max_new_tokens == 9
        assert request.text == DOUBLE.prompt and "\ndef " in request.stop_sequences
        assert request.temperature == pytest.approx(0.8)
        exact = request.require_contract == messages.CONTRACT_EXACT
        assert exact == way.promises_exact
    adaptive = next(way for way in WAYS if "adaptive" in way.name)
    drafts = humaneval.request_of(client, adaptive, DOUBLE, 9, 0)
    assert drafts.speculative.draft_tokens == 8
    assert drafts.speculative.pace == messages.PACE_ADAPTIVE
    assert drafts.top_p == 1
    assert humaneval.request_of(client, AR, DOUBLE, 9, 1, top_p=0.5).top_p == 0.5


def test_ways_are_judged_on_the_same_problems_and_held_against_ar(messages):
    ngram = Way("n-grams", "Ngram", promises_exact=True)
    bild = Way("BiLD", "Bild")
    client = Client(messages, {"autoregressive": "good", "ngram": "good", "bild": "bad"})
    results = humaneval.measure(
        client,
        (AR, ngram, bild),
        [DOUBLE] * 3,
        9,
        0,
        judge=lambda program: Outcome("good" in program, ""),
    )
    assert [r.share for r in results] == [1, 1, 0]
    assert [r.equal(results[0]) for r in results] == [3, 3, 0]
    assert humaneval.unequal(results) == []
    client.answers["ngram"] = "goof"
    results = humaneval.measure(
        client, (AR, ngram), [DOUBLE], 9, 0, judge=lambda _: Outcome(True, "")
    )
    assert humaneval.unequal(results) == ["n-grams"]


def test_every_way_draws_from_the_nucleus(messages):
    client = Client(messages, {"autoregressive": "good", "bild": "good"})
    ways = (AR, Way("BiLD", "Bild"))
    judge = lambda _: Outcome(True, "")  # noqa: E731
    humaneval.measure(client, ways, [DOUBLE], 9, 1, judge=judge, top_p=0.5)
    measured = [r.top_p for r in client.asked if r.max_new_tokens == 9]
    assert measured == [0.5, 0.5]


def test_llama_server_is_asked_for_its_ways_alone(messages):
    class Llama:
        asked = 0

        def complete(self, prompt, new_tokens, stops):
            assert prompt == DOUBLE.prompt and "\ndef " in stops
            self.asked += 1
            return Answer("good", [103], 1)

    llama, way = Llama(), Way("peer", "", "", peer=Program("peer", Path("none")))
    client = Client(messages, {"autoregressive": "bad", "bild": "bad"})
    results = humaneval.measure(
        client,
        (AR, way),
        [DOUBLE],
        9,
        0,
        judge=lambda p: Outcome("good" in p, ""),
        llamas={way: llama},
    )
    assert llama.asked == 2, "once to read the prompt"
    assert [r.share for r in results] == [0, 1]
    assert len(client.asked) == 2


def test_ways_are_chosen_by_parts_of_their_names():
    assert humaneval.chosen(None, WAYS) == list(WAYS)
    names = [way.name for way in humaneval.chosen("bild,auto", WAYS)]
    assert names == ["autoregressive", "auto", *(w.name for w in WAYS if "BiLD" in w.name)]
    names = [way.name for way in humaneval.chosen("0.69), parallel,min p 0.5, parallel", WAYS)]
    assert names == [
        "autoregressive",
        "speculative, γ 8, min p 0.5, parallel drafting",
        "BiLD (0.6, 0.69), parallel drafting",
    ]


def test_the_page_has_a_place_for_each_table():
    page = humaneval.PAGE.read_text()
    for place in ("humaneval", "humaneval batch", "humaneval llama-server"):
        assert "| new |" in humaneval.put(page, "| new |", place)
    with pytest.raises(ValueError, match="must have one"):
        humaneval.put("no place", "", "humaneval")


def test_the_table_has_shares_with_their_errors():
    solved = [Solved([1, 2], 1.0, i < 3) for i in range(4)]
    slow = [Solved([1, 3], 2.0, False) for _ in range(4)]
    text = humaneval.table([Result(AR, solved), Result(WAYS[1], slow)], 0.8)
    assert "| autoregressive | 75.0 ± 21.7 % | 2.0 | 1.00 | 4 of 4 |" in text
    assert "| small model alone | 0.0 ± 0.0 % | 1.0 | 0.50 (0.50-0.50) | 0 of 4 |" in text
    assert text.startswith("Temperature 0.8, one seed")
    assert humaneval.table([Result(AR, solved)], 1, 0.8).startswith("Temperature 1, top p 0.8,")


def test_the_interval_of_a_speed_up_pairs_the_problems():
    # Problems of very different lengths, each in half of the time or in the same.
    ar = Result(AR, [Solved([1] * n, n, True) for n in (10, 20, 40, 80)])
    twice = Result(WAYS[1], [Solved([1] * n, n / 2, True) for n in (10, 20, 40, 80)])
    assert twice.speed_up(ar) == pytest.approx((2, 2, 2))
    mixed = Result(
        WAYS[1], [Solved([1] * n, n / (1 + i % 2), True) for i, n in enumerate([20] * 8)]
    )
    even = Result(AR, [Solved([1] * 20, 20, True) for _ in range(8)])
    ratio, least, most = mixed.speed_up(even)
    assert ratio == pytest.approx(4 / 3)
    assert 1 <= least < 4 / 3 < most <= 2
    assert mixed.speed_up(even) == (ratio, least, most)  # a fixed seed


def test_missing_parts_are_reported(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(humaneval, "PROBLEMS", tmp_path / "none")
    assert humaneval.main(None, humaneval.Run(1, 8, (0,)), "", None) == 1
    assert "scripts/models fetch" in capsys.readouterr().out


def test_a_problem_as_a_chat_message_is_judged_by_the_block_of_its_answer(messages):
    helper = "import math\n\ndef half(x):\n    return x / 2\n\n"
    problem = replace(DOUBLE, prompt=helper + DOUBLE.prompt, chat=True)
    request = humaneval.request_of(Client(messages, {}), AR, problem, 9, 0)
    assert request.text.startswith("<|im_start|>system\n") and DOUBLE.prompt.strip() in request.text
    assert request.text.endswith("<|im_start|>assistant\n") and not request.stop_sequences
    code = "def double(x):\n    return math.floor(4 * half(x))\n"
    assert run(problem.program(f"Here it is:\n```python\n{code}```\nIt doubles.")).passed
    assert run(problem.program(f"```\n{code}")).passed  # cut off by the limit
    assert run(problem.program(code)).passed
    assert not run(problem.program(code.replace("4", "3"))).passed


def test_without_stops_an_answer_has_no_end_but_its_limit(messages):
    request = humaneval.request_of(Client(messages, {}), AR, replace(DOUBLE, stopped=False), 9, 0)
    assert request.text == DOUBLE.prompt and not request.stop_sequences
