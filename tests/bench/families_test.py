"""bench/peers/families.py: whose figures stand where, and what is said of an engine that is not there."""

import importlib

import pytest

from bench.peers import families
from bench.peers.engines import Tandem


def test_a_line_compares_with_the_best_peer():
    found = {
        "Tandem": [2.0, 3.0, 1.0],
        "EncoderTransformers": [9.0],
        "EncoderCTranslate2": [2.2, 2.2],
    }
    cells = families.line("t5-small", found)
    assert cells == [
        "t5-small",
        "2.00 (1.00-3.00)",
        "9.00 (9.00-9.00)",
        "2.20 (2.20-2.20)",
        "**1.10** (missed)",
    ]
    del found["EncoderCTranslate2"]
    assert families.line("t5-small", found)[3:] == ["-", "**4.50**"]
    assert families.line("gpt2", {"Tandem": [1.0]})[2:] == ["-", "-", "-"]
    assert families.line("gpt2", {"DecoderTransformers": [1.0]})[1:] == [
        "-",
        "1.00 (1.00-1.00)",
        "-",
        "-",
    ]


def test_workers_find_the_engines():
    for family in families.FAMILIES.values():
        for kind in family.engines():
            assert getattr(importlib.import_module(kind.__module__), kind.__name__) is kind


def test_the_page_has_all_families_and_conditions():
    results = {name: {"Tandem": [1.0]} for name in families.FAMILIES}
    text = families.page(results, "| command | `x` |", families.Length())
    assert "3 turns of 32 tokens" in text
    assert all(f"| {name} |" in text for name in families.FAMILIES)
    assert "| command | `x` |" in text


@pytest.mark.parametrize("name", families.FAMILIES)
def test_configurations_are_of_their_family(name):
    import transformers

    family = families.FAMILIES[name]
    config = getattr(transformers, family.kind)(**family.arguments)
    assert config.is_encoder_decoder == family.encoder
    assert family.engines()[0] is Tandem and len(family.engines()) == 3
    shallow = getattr(transformers, family.kind)(**family.shallow().arguments)
    assert shallow.num_hidden_layers == families.QUICK_LAYERS < config.num_hidden_layers
    assert shallow.hidden_size == config.hidden_size


def test_figures_of_a_quick_run_are_not_kept(capsys):
    with pytest.raises(SystemExit):
        families.main(["--quick", "--write"])
    assert "--quick" in capsys.readouterr().err
