"""tuning/evaluate/conditioned_functions.py: its questions, and its tables of the answers."""

import json

import pytest
from evaluate_test import messages  # noqa: F401

from tuning import conditioned_samples, functions
from tuning.evaluate import conditioned_functions
from tuning.evaluate.conditioned_functions import READING, WAYS
from tuning.functions import Example

EXAMPLES = [
    Example("docstring", "docstring: def f(a):\n    return a", "Return the argument."),
    Example("name", "name: def _(a):\n    return a", "same"),
    Example("name", "name: def _(a):\n    return 1", "one"),
]


class Server:
    """Says for a name `same`, and for a docstring part of the first one's."""

    def __init__(self, protocol):
        self.messages, self.asked = protocol, []

    def complete(self, request):
        self.asked.append(request)
        choice = self.messages.Choice()
        named = request.text.endswith(conditioned_samples.ASKED["name"])
        choice.text = " same" if named else " Return it."
        choice.finished.usage.completion_tokens = 1 if request.max_new_tokens == 1 else 4
        return choice


def test_all_are_asked_by_the_same_text(messages):  # noqa: F811
    server, done = Server(messages), []
    found = conditioned_functions.measure(server, EXAMPLES, 1, lambda: done.append(1))
    assert len(done) == len(EXAMPLES) * len(WAYS)
    asked = [(r.model, r.WhichOneof("method"), r.max_new_tokens, r.text) for r in server.asked]
    text = conditioned_samples.asked(EXAMPLES[2])
    assert text == "def _(a):\n    return 1" + conditioned_samples.ASKED["name"]
    assert all(asked.count((w.deployment, w.method, w.tokens, text)) == 1 for w in WAYS)
    assert all(list(r.stop_sequences) == ["\n"] and r.temperature == 0 for r in server.asked)
    assert all(f'name: "{way.deployment}"' in conditioned_functions.CONFIG for way in WAYS)
    answers = found[WAYS[1]]
    assert answers.names_right == 0.5 and answers.tokens == 12 and len(answers.seconds) == 3
    assert answers.rouge == pytest.approx(2 / 5)  # one word of two and three


def test_the_part_states_what_was_measured_and_trained(messages):  # noqa: F811
    found = conditioned_functions.measure(Server(messages), EXAMPLES, 1, lambda: None)
    for way, answers in found.items():
        answers.seconds = [0.25 if way == READING else 1.0] * 3
    nats = {"all": 2.0, "docstring": 2.5, "name": 1.5}
    settings = {"conditioned": True, "fusion": "add", "layer": 10, "train": "frozen"}
    settings |= {"steps": 9, "batch": 4, "samples": 36}
    report = {
        "settings": settings,
        "nats": {
            "small": nats,
            "llm_to_slm": nats | {"all": 1.75},
            "conditioned on another prompt": nats,
        },
    }
    text = conditioned_functions.markdown(found, [report])
    assert (
        "1 held-out functions without their docstrings" in text and "2 without their names" in text
    )
    assert "take 250 ms" in text
    assert "| LLM-to-SLM | 50.0 | 40.0 | 4.0 | 1000 | 250.0 |" in text
    conditioned = (
        "| conditioned, add, layer 10, small model frozen | 9 x 4 of 36 | 1.750 | 2.500 | 1.500 |"
    )
    assert conditioned in text
    assert "| matched texts, another prompt |  | 2.000 |" in text


def test_functions_are_as_long_as_those_of_the_training(monkeypatch):
    class Letters:
        def encode(self, text):
            return type("Encoding", (), {"ids": list(text)})

    longer = Example("name", "name: def _(a):\n" + "    a\n" * 50, "long")
    monkeypatch.setattr(conditioned_functions.frozen_model, "load_tokenizer", lambda _: Letters())
    monkeypatch.setattr(conditioned_functions.corpus, "read_documents", lambda _: [])
    monkeypatch.setattr(functions, "split", lambda *_: ([], [*EXAMPLES, longer]))
    settings = {"shortest_prompt": 1, "longest_prompt": 100}
    found = conditioned_functions.tasks(None, settings, 5, seed=1)
    assert sorted(e.target for e in found) == ["Return the argument.", "one", "same"]
    assert [e.task for e in conditioned_functions.tasks(None, settings, 1, seed=1)] == [
        "docstring",
        "name",
    ]


def test_trainings_say_who_conditioned_what():
    settings = {"conditioned": True, "fusion": "add", "layer": 10, "train": "frozen", "rank": 4}
    models = {"large": "a.gguf", "small": "b.gguf"}

    def name(models=models, **changed):
        return conditioned_functions.conditioning_of(
            {"settings": settings | changed, "models": models}
        )

    assert name() == name(rows="own") == "conditioned, add, layer 10"
    assert (
        conditioned_functions.conditioning_of({"settings": settings}) == name()
    )  # of an older report
    assert name(rows="other") == "conditioned on other functions, add, layer 10"
    assert name({"large": "b.gguf", "small": "b.gguf"}) == "conditioned on itself, add, layer 10"
    assert name(conditioned=False) == "unconditioned"
    nats = {"all": 2.0, "docstring": 2.5, "name": 1.5}
    lora = {"conditioned": False, "train": "lora", "steps": 9, "batch": 4, "samples": 36}
    report = {"settings": settings | lora, "nats": {"small": nats, "small, tuned alone": nats}}
    text = conditioned_functions.trainings([report])
    assert "| unconditioned, small model LoRA of rank 4 | 9 x 4 of 36 | 2.000 |" in text


def test_shipped_reports_are_of_the_same_texts():
    reports = json.loads((conditioned_functions.PROJECTOR / "training.json").read_text())
    assert all(report["nats"]["small"] == reports[0]["nats"]["small"] for report in reports)
    assert all(report["settings"]["seed"] == 1 for report in reports)
