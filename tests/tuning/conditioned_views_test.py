"""tuning/conditioned_views.py: both arms of a pair see the same texts, and results are cached."""

import statistics

import pytest
import torch

from tuning import checkpoint, conditioned_views, corpus, frozen_model, llm_to_slm
from tuning.llm_to_slm import texts_of_step
from tuning.shapes import llama, new_model
from tuning.vocabulary import train_tokenizer


@pytest.fixture
def arguments(tmp_path, texts, monkeypatch):
    tokenizer = train_tokenizer(texts[:4], 280)
    for name, hidden, layers in (("large", 24, 3), ("small", 16, 2)):
        shape = llama(
            hidden=hidden, layers=layers, heads=2, key_value_heads=1, inner=32, vocabulary=280
        )
        checkpoint.export(new_model(shape, layers), tokenizer, tmp_path / name)
    documents = [corpus.Document(str(i), text) for i, text in enumerate(texts[:6])]
    monkeypatch.setattr(corpus, "read_documents", lambda _: documents)
    monkeypatch.setattr(corpus, "split", lambda found: (found[:4], found[4:]))
    monkeypatch.setattr(conditioned_views, "AT_ONCE", 8)
    given = ["--large", str(tmp_path / "large"), "--small", str(tmp_path / "small"), "--layer", "3"]
    given += ["--texts", "20", "--answer", "16", "--batch", "4", "--checked", "12"]
    given += ["--views", "8", "40", "--seeds", "2", "--work", str(tmp_path / "work")]
    return conditioned_views.parse_arguments(given)


def test_runs_come_in_pairs_that_differ_in_conditioning_alone(arguments):
    runs = conditioned_views.runs_of(arguments)
    assert len(runs) == 2 * 2 * 2 * 2
    for alone, told in zip(runs[::2], runs[1::2], strict=True):
        a, b = vars(alone.settings), vars(told.settings)
        assert {name for name in a if a[name] != b[name]} == {"conditioned"}
        assert alone.layers == told.layers and alone.views == told.views
        assert a["train"] == "lora" and told.settings.conditioned
    assert [run.views for run in runs] == [8] * 8 + [40] * 8
    assert {run.settings.steps for run in runs} == {2, 10}


def test_arms_are_trained_once_on_the_same_answers(arguments, monkeypatch):
    pair = conditioned_views.Pair(arguments)
    # The held-out prompts with the large model's answers, and with the source's own text.
    assert torch.equal(pair.held_out.prompt, pair.source.prompt)
    longest = int(pair.held_out.prompt.max())
    inside = torch.arange(longest) < pair.held_out.prompt[:, None]
    same = pair.held_out.ids[:, :longest] == pair.source.ids[:, :longest]
    assert bool(same[inside].all())
    assert not torch.equal(pair.held_out.ids, pair.source.ids)
    large = pair.large.model
    for i in (0, 13):
        prompt = int(pair.training.prompt[i])
        text = pair.training.ids[i, : prompt + int(pair.training.answer[i])]
        said = large(text[None]).logits[0].argmax(-1)[prompt - 1 : -1]
        assert torch.equal(said, text[prompt:]), "greedy"
    runs = [run for run in conditioned_views.runs_of(arguments) if run.views == 8]
    seen: dict[tuple, list] = {}
    step = texts_of_step

    def watched(samples, s, number):
        index = step(samples, s, number)
        seen.setdefault((s.seed, s.conditioned), []).append(index.tolist())
        return index

    monkeypatch.setattr(llm_to_slm, "texts_of_step", watched)
    found = {run: pair.measure(run) for run in runs if run.layers == 1}
    for seed in (1, 2):
        assert seen[seed, True] == seen[seed, False] and len(seen[seed, True]) == 2
    assert seen[1, True] != seen[2, True]
    lines = conditioned_views.lines_of(found)
    assert [line[:3] for line in lines] == [["1", "8", "2"]]
    by_seed = {
        told: [nats[name]["all"] for run, nats in found.items() if run.settings.conditioned == told]
        for told, name in ((True, conditioned_views.CONDITIONED), (False, conditioned_views.ALONE))
    }
    less = [a - b for a, b in zip(by_seed[True], by_seed[False], strict=True)]
    assert lines[0][5] == f"{statistics.fmean(less):+.3f} ± {statistics.stdev(less) / 2**0.5:.3f}"
    one_arm = {run: nats for run, nats in found.items() if run.settings.conditioned}
    assert conditioned_views.lines_of(one_arm) == []
    text = conditioned_views.section(pair, found, [["commit", "x"]])
    assert "| small, 1 |" in text and "1 layer: LoRA" in text
    monkeypatch.setattr(llm_to_slm, "train", None)
    assert {run: pair.measure(run) for run in found} == found
    done = [run for run in conditioned_views.runs_of(arguments) if pair.file_of(run).exists()]
    assert done == list(found)


def test_the_lower_layers_are_kept(arguments):
    whole = frozen_model.load_weights(arguments.small)
    ids = torch.arange(1, 9)[None]
    hidden = whole.base_model(ids, output_hidden_states=True).hidden_states
    assert len(hidden) == 3
    cut = conditioned_views.keep_lower(frozen_model.load_weights(arguments.small), 1)
    with torch.no_grad():
        expected = whole.get_output_embeddings()(whole.base_model.norm(hidden[1]))
        assert torch.allclose(cut(ids).logits, expected, atol=1e-5)
    same = conditioned_views.keep_lower(frozen_model.load_weights(arguments.small), 2)
    assert torch.equal(same(ids).logits, whole(ids).logits)
    with pytest.raises(SystemExit, match="--layers: 3; allowed: 1 to 2"):
        conditioned_views.keep_lower(whole, 3)


def test_errors_are_over_seeds():
    error = statistics.stdev([1, 3, 4, 8]) / 2
    assert conditioned_views.cell([1.0, 3.0, 4.0, 8.0]) == f"4.000 ± {error:.3f}"
    assert conditioned_views.cell([0.5], "+") == "+0.500"
