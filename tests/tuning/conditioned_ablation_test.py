"""tuning/conditioned_ablation.py: what differs between its variants, and what is kept of them."""

import pytest
import torch

from tuning import checkpoint, conditioned_ablation, corpus, llm_to_slm
from tuning.shapes import llama, new_model
from tuning.vocabulary import train_tokenizer


def test_variants_differ_from_the_first_conditioned_one_in_one_thing():
    found = conditioned_ablation.variants(8)
    assert [change["layer"] for change in found.values() if "layer" in change] == [2, 4, 6]
    assert found["add, last layer"] == {}
    for name, change in found.items():
        rate = {"small_rate"} if change.get("train") == "lora" else set()
        others = change.keys() - rate
        assert len(others) <= 1 or name == "unconditioned, LoRA of the small model"
    assert [c["layer"] for c in conditioned_ablation.variants(2).values() if "layer" in c] == [1]


@pytest.fixture
def pair(tmp_path, texts, monkeypatch):
    tokenizer = train_tokenizer(texts[:4], 280)
    for name, hidden, layers in (("large", 24, 3), ("small", 16, 1)):
        shape = llama(
            hidden=hidden, layers=layers, heads=2, key_value_heads=1, inner=32, vocabulary=280
        )
        checkpoint.export(new_model(shape, layers), tokenizer, tmp_path / name)
    documents = [corpus.Document(str(i), text) for i, text in enumerate(texts[:6])]
    monkeypatch.setattr(corpus, "read_documents", lambda _: documents)
    monkeypatch.setattr(corpus, "split", lambda found: (found[:4], found[4:]))
    given = ["--large", str(tmp_path / "large"), "--small", str(tmp_path / "small")]
    given += ["--samples", "12", "--answer", "16", "--batch", "4", "--steps", "3", "--checked", "8"]
    arguments = conditioned_ablation.parse_arguments([*given, "--work", str(tmp_path / "work")])
    return conditioned_ablation.Pair(arguments)


def test_a_variant_is_trained_once(pair, monkeypatch):
    seen = {}
    for name in ("add, layer 1", "add, linear projector", "unconditioned"):
        change = conditioned_ablation.variants(pair.layers)[name]
        seen[name] = pair.measure(pair.settings(**change))
    nats = {name: next(iter(said.values()))["all"] for name, said in seen.items()}
    assert len(set(nats.values())) == 3  # each is another training
    alone = pair.untrained(pair.settings())
    assert alone.keys() == {"small", "large"}
    text = conditioned_ablation.section(alone, seen, pair.settings(), [["commit", "x"]])
    unconditioned = next(line for line in text.splitlines() if line.startswith("| unconditioned |"))
    assert f"| {nats['unconditioned']:.3f} |" in unconditioned and unconditioned.endswith(
        "| - | - |"
    )
    other = seen["add, layer 1"]["conditioned on another prompt"]["all"]
    line = next(line for line in text.splitlines() if line.startswith("| add, layer 1 |"))
    own = seen["add, layer 1"]["the same texts, conditioned on their own"]["all"]
    assert (
        line.endswith(f"| {own:.3f} | {other:.3f} |") and f"| {nats['add, layer 1']:.3f} |" in line
    )
    monkeypatch.setattr(llm_to_slm, "train", None)
    change = conditioned_ablation.variants(pair.layers)["add, layer 1"]
    again = pair.measure(pair.settings(**change))
    assert again == seen["add, layer 1"]


def test_what_is_frozen_stays(pair):
    models = []
    for train in ("frozen", "lora"):
        s = pair.settings(train=train)
        small = conditioned_ablation.frozen_model.load(pair.arguments.small)
        before = small.model.state_dict()["model.layers.0.mlp.up_proj.weight"].clone()
        training, _ = pair.read(s, small)
        conditioned = conditioned_ablation.Conditioned(small.model, *training.standard(), s)
        llm_to_slm.train(conditioned, training, s, pair.arguments.work / f"{train}.pt")
        after = small.model.state_dict()["model.layers.0.mlp.up_proj.weight"]
        models.append(torch.equal(before, after))
    assert models == [True, False]
