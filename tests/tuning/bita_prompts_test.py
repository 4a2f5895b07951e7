"""tuning/bita_prompts.py: where prompts come from."""

import argparse

import pytest

from tuning import bita, bita_prompts, frozen_model, served_answers
from tuning.calibration import Sample

FILE = '''
import os

def first(a, b):
    """Adds."""
    return a + b

def without(a):
    return a

def third(text):
    """Says what it is.

    >>> third("a")
    """
    return text
'''


class Letters:
    """A tokenizer of characters."""

    class Encoded:
        def __init__(self, text):
            self.ids = [ord(c) for c in text]

    def encode(self, text, add_special_tokens=True):
        return self.Encoded(text)


def test_functions_end_with_their_docstring():
    frozen = frozen_model.FrozenModel(None, Letters(), (0,))
    files = [FILE, "no python (", "x = 1"]
    found = bita_prompts.functions(frozen, files, 2, seed=1)
    texts = {"".join(map(chr, ids)) for ids in found}
    assert texts == {
        'def first(a, b):\n    """Adds."""',
        'def third(text):\n    """Says what it is.\n\n    >>> third("a")\n    """',
    }
    assert bita_prompts.functions(frozen, files, 2, seed=1) == found
    with pytest.raises(ValueError, match="at most 2"):
        bita_prompts.functions(frozen, files, 3, seed=1)


def test_prompts_of_served_answers(tmp_path):
    head = 'def f{}(a):\n    """{}"""'
    for folder in ("a", "tests"):
        (tmp_path / "packages" / folder).mkdir(parents=True)
        for file in range(3):
            heads = [head.format(f"{folder}{file}{i}", "x" * 120) for i in range(4)]
            lines = [f"{text}\n    return a" for text in [*heads, head.format("short", "x")]]
            (tmp_path / "packages" / folder / f"{file}.py").write_text("\n".join(lines))

    def of(count, seed=1):
        return served_answers.prompts(served_answers.texts(tmp_path / "packages", seed), count)

    found = of(9)
    assert len(set(found)) == 9 and not any("tests" in text or "short" in text for text in found)
    assert all(text.endswith('"""\n') for text in found[:3]), "text"
    assert all(text.startswith("<|im_start|>system") for text in found[3:5]), "chat messages"
    assert found == of(9) and found[:4] == of(4) and found != of(9, seed=2)
    with pytest.raises(ValueError, match="--count: 10; allowed: at most 9"):
        of(10)


def test_answers_of_another_program_are_read(tmp_path):
    frozen = frozen_model.FrozenModel(None, Letters(), (0,))
    file = tmp_path / "answers.jsonl"
    file.write_text('{"prompt": "ab", "answer": "c"}\n{"prompt": "", "answer": "de"}\n')
    assert bita_prompts.written(frozen, file) == [Sample([97, 98], [99]), Sample([], [100, 101])]
    for line in ('{"prompt": "ab"}', "ab", "[1]"):
        file.write_text('{"prompt": "ab", "answer": "c"}\n' + line)
        with pytest.raises(ValueError, match="line 2.*expected"):
            bita_prompts.written(frozen, file)


def test_chat_prompts_can_be_held_out_without_being_trained_on(monkeypatch, tmp_path):
    """Who writes is replaced: this is about which sets of answers there are."""
    monkeypatch.setattr(bita_prompts.frozen_model, "tensors_of", lambda model: {})
    monkeypatch.setattr(bita_prompts.adapter_file, "fingerprint_of", lambda tensors: "sample")
    own = bita_prompts.own_answers
    monkeypatch.setattr(own, "identity", lambda frozen, sample, **what: what["name"])
    monkeypatch.setattr(own, "stored", lambda file, make: [file.stem])
    (tmp_path / "module.py").write_text(FILE)
    arguments = argparse.Namespace(stdlib=tmp_path, work=tmp_path, humaneval=None)
    frozen = frozen_model.FrozenModel(None, Letters(), (0,))

    def sets(chat_prompts: int, chat: bool):
        settings = bita.Settings(code_prompts=1, chat_prompts=chat_prompts, checked=1)
        return bita_prompts.answers(frozen, settings, arguments, chat)

    code = "training-code-training-code"
    assert sets(0, False) == ([code], {"code": ["held_out-code-held_out-code"]})
    training, held_out = sets(0, True)
    assert training == [code]
    assert held_out["chat"] == ["held_out-chat-held_out-chat"]
    training, held_out = sets(1, False)
    assert training == [code, "training-chat-training-chat"]
    assert held_out["chat"] == ["held_out-chat-held_out-chat"]
