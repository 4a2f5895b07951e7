"""LLM-to-SLM's training on models with encoders of a few thousand weights."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT
from tokenizers import Tokenizer

from tuning import conditioned_encoders, fusion, projector_file, seq2seq
from tuning.conditioned_encoders import Conditioned, SourceRows
from tuning.functions import DOCSTRING, NAME
from tuning.pairs import Pair, encode
from tuning.seq2seq_shapes import new_model, t5
from tuning.vocabulary import train_source_tokenizer

LARGE = t5(hidden=24, encoder=3, decoder=3, heads=2, inner=32, vocabulary=300)
SMALL = t5(hidden=16, encoder=1, decoder=1, heads=2, inner=24, vocabulary=300)


@pytest.fixture(scope="module")
def pairs():
    random = np.random.default_rng(1)
    made = []
    for task, kind, length in ((NAME, 2, 3), (DOCSTRING, 3, 5)):
        for i in range(1024):
            source = random.integers(4, 36, length + i % 2).tolist()
            made.append(Pair(task, [kind, *source, 1], [source[-1], 1]))
    return made


@pytest.fixture(scope="module")
def large():
    return new_model(LARGE, 1).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def rows(large, pairs, tmp_path_factory):
    return SourceRows.read(large, pairs, tmp_path_factory.mktemp("rows"), at_once=50)


def fresh(rows, kind="add", large_outputs=False):
    conditioned = Conditioned(new_model(SMALL, 2), rows, kind, seed=3)
    if large_outputs:
        torch.nn.init.normal_(conditioned.projector[2].weight)
    return conditioned.eval()


@torch.no_grad()
def test_rows_are_what_the_encoder_says_and_computed_once(large, pairs, rows, tmp_path):
    some = pairs[:3] + pairs[-3:]
    inputs, _ = encode(some)
    beside = rows.beside(inputs, (inputs != 0).sum(1))
    for row, pair in zip(beside, some, strict=True):
        said = fusion.hidden_rows(large, torch.tensor([pair.source]), 3)[0]
        torch.testing.assert_close(row[: len(pair.source)], said, rtol=1e-2, atol=1e-2)
    SourceRows.read(large, some, tmp_path)
    (file,) = tmp_path.iterdir()
    marked = torch.zeros_like(torch.load(file))
    torch.save(marked, file)
    assert not SourceRows.read(large, some[::-1], tmp_path).rows.any()
    other = new_model(LARGE, 7).requires_grad_(False)
    assert SourceRows.read(other, some, tmp_path).rows.any()


@torch.no_grad()
def test_a_new_projector_adds_nothing(pairs, rows):
    conditioned = fresh(rows)
    inputs, labels = encode(pairs[:4] + pairs[-4:])
    asked = dict(input_ids=inputs, attention_mask=inputs != 0, labels=labels)
    alone = conditioned.small(**asked).logits
    torch.testing.assert_close(conditioned(**asked).logits, alone)
    assert not torch.allclose(fresh(rows, "replace")(**asked).logits, alone)


@pytest.mark.parametrize("kind", ["add", "replace"])
@torch.no_grad()
def test_it_is_the_forward_that_the_server_is_held_to(pairs, rows, kind):
    """In a batch with padding, and with the projector that is written."""
    conditioned = fresh(rows, kind, large_outputs=True)
    some = pairs[:2] + pairs[-2:]
    inputs, labels = encode(some)
    logits = conditioned(inputs, inputs != 0, labels).logits
    for i, pair in enumerate(some):
        source = torch.tensor([pair.source])
        said = rows.beside(source, torch.tensor([len(pair.source)]))
        starts = torch.tensor([[0, *pair.target[:-1]]])
        wanted = fusion.fused_memory_logits(
            conditioned.small, conditioned.folded()(said), source, starts, kind
        )
        torch.testing.assert_close(logits[i], wanted[0], rtol=1e-3, atol=1e-3)
    (first, *_) = seq2seq.write(conditioned, [pair.source for pair in some], 3)
    assert first[0] == int(logits[0, 0].argmax())


@pytest.mark.parametrize("train", ["frozen", "full"])
def test_an_interrupted_training_ends_as_an_uninterrupted_one(pairs, rows, tmp_path, train):
    given = SimpleNamespace(steps=6, bfloat16=False)

    def trainer(file):
        conditioned = fresh(rows)
        conditioned.small.requires_grad_(train == "full")
        return conditioned_encoders.trainer_of(
            conditioned, pairs, conditioned_encoders.LEARNING, given, tmp_path / file
        )

    whole = trainer("whole.pt")
    losses = [whole.step() for _ in range(6)]
    assert whole.step() is None
    first = trainer("parts.pt")
    parts = [first.step() for _ in range(2)]
    first.save()
    second = trainer("parts.pt")
    assert second.resumed
    assert parts + [second.step() for _ in range(4)] == losses
    projector, small = whole.model.projector, whole.model.small
    assert projector[2].weight.any()
    moved = not torch.equal(small.shared.weight, new_model(SMALL, 2).shared.weight)
    assert moved == (train == "full")


def test_what_is_written_is_a_pair(texts, large, rows, tmp_path):
    tokenizer = train_source_tokenizer(texts, size=300)
    given = SimpleNamespace(
        unconditioned=False,
        write_small=tmp_path / "small",
        output=tmp_path / "projector",
        fusion="add",
    )
    conditioned = fresh(rows)
    data = seq2seq.Data(tokenizer, [], {})
    conditioned_encoders.write(given, conditioned, data, large)
    small = seq2seq.load(tmp_path / "small")
    assert torch.equal(small.shared.weight, conditioned.small.shared.weight)  # both rounded
    about = json.loads((tmp_path / "projector/adapter.json").read_text())
    assert about["base"]["fingerprint"] == projector_file.fingerprint_of(small)
    assert about["source"] == projector_file.source_of(large)
    assert (about["layer"], about["fusion"], about["tokens"]) == (3, "add", "shared")


def test_all_docstrings_and_some_names(pairs):
    some = conditioned_encoders.some_of(pairs, 5, seed=1)
    assert [p.task for p in some] == [DOCSTRING] * 1024 + [NAME] * 5
    assert (
        conditioned_encoders.some_of(pairs, 5, seed=1)
        == some
        != conditioned_encoders.some_of(pairs, 5, 2)
    )


def arguments(*more):
    given = conditioned_encoders.parse_arguments(["--steps", "9", *more])
    given.bfloat16 = False
    return given


def test_other_settings_models_or_pairs_have_another_checkpoint(pairs):
    def key(*more, models=("a", "b"), some=pairs[:4]):
        return conditioned_encoders.identity(arguments(*more), list(models), some)

    assert key() == key("--report", "x.json")
    retold = [*pairs[:3], Pair(pairs[3].task, pairs[3].source, [*pairs[3].target, 1])]
    keys = [
        key(),
        key(models=("a", "c")),
        key(some=pairs[:3]),
        key(some=pairs[1:5]),
        key(some=retold),
        key("--matrix-rate", "0.01"),
        key("--vector-rate", "0.01"),
        key("--projector-rate", "0.01"),
        key("--batch-names", "16"),
        key("--batch-docstrings", "16"),
        key("--dropout", "0"),
        key("--seed", "2"),
        key("--unconditioned"),
    ]
    assert len(set(keys)) == len(keys)


def test_reports_and_trainings_go_by_the_options():
    given = arguments("--batch-names", "16", "--matrix-rate", "0.5", "--dropout", "0", "--seed=3")
    recipe = conditioned_encoders.recipe_of(given)
    assert (recipe.names, recipe.docstrings, recipe.seed) == (16, 32, 3)
    assert (recipe.matrix_rate, recipe.vector_rate) == (
        0.5,
        conditioned_encoders.LEARNING.vector_rate,
    )
    settings = conditioned_encoders.settings_of(given, 77)
    assert (settings["names"], settings["matrix_rate"], settings["samples"]) == (16, 0.5, 77)
    assert (settings["dropout"], settings["most_names"]) == (0, 8192)
    assert conditioned_encoders.recipe_of(arguments()) == conditioned_encoders.LEARNING


def test_the_shipped_commands_make_their_rows():
    reports = json.loads((ROOT / "models/docstring-small-conditioned/training.json").read_text())
    for report in reports:
        given = conditioned_encoders.parse_arguments(report["command"])
        given.bfloat16 = given.precision == "bf16"
        recorded = report["settings"]
        made = conditioned_encoders.settings_of(given, recorded["samples"])
        same = recorded.keys() & made.keys() - {"report_every"}  # minutes of the clock
        assert {name: made[name] for name in same} == {name: recorded[name] for name in same}
        assert {"matrix_rate", "names", "docstrings", "steps", "conditioned", "precision"} <= same
        assert made["dropout"] == recorded.get("dropout", 0)
        # Before a projector had a rate of its own it learned at that of the vectors.
        if made["conditioned"]:
            rate = recorded.get("projector_rate", recorded["vector_rate"])
            assert made["projector_rate"] == rate
    wrote = {str(conditioned_encoders.parse_arguments(r["command"]).write_small) for r in reports}
    assert {"models/docstring-small-conditioned", "models/docstring-small-tuned"} < wrote


@pytest.fixture(scope="module")
def two_tokenizers(tmp_path_factory):
    """Folders of models, and of another model whose ids mean other texts."""
    folders = []
    for name, text in (("models", "def f(a): return a\n"), ("other", "class B: pass\n")):
        folder = tmp_path_factory.mktemp(name)
        train_source_tokenizer([text] * 20, size=262).save(str(folder / "tokenizer.json"))
        folders.append(folder)
    return folders


def test_a_small_model_of_other_tokens_is_refused(two_tokenizers):
    one, other = two_tokenizers
    with pytest.raises(SystemExit) as refused:
        conditioned_encoders.shared_tokenizer(one, other)
    for folder in two_tokenizers:
        assert str(folder / "tokenizer.json") in str(refused.value)
    again = conditioned_encoders.shared_tokenizer(one, one)
    assert (
        again.encode("def f").ids
        == Tokenizer.from_file(str(one / "tokenizer.json")).encode("def f").ids
    )


def test_pairs_are_in_the_models_tokens(two_tokenizers, tmp_path):
    """Also where the folder of data holds others, or none."""
    library, work = tmp_path / "library", tmp_path / "work"
    library.mkdir()
    work.mkdir()
    function = 'def add(a, b):\n    """Return the sum of both."""\n    return a + b\n'
    for i in range(3):
        (library / f"module_{i}.py").write_text(function.replace("add", f"add_{i}"))
    one, other = (
        conditioned_encoders.shared_tokenizer(folder, folder) for folder in two_tokenizers
    )
    other.save(str(work / "tokenizer.json"))
    before = (work / "tokenizer.json").read_bytes()
    for tokenizer in (one, other, one):
        data = seq2seq.Data.read(library, work, tokenizer=tokenizer)
        assert data.tokenizer is tokenizer
        seen = [pair for some in (data.training, *data.held_out.values()) for pair in some]
        targets = {tokenizer.decode(pair.target) for pair in seen}
        assert "Return the sum of both." in targets and targets & {f"add_{i}" for i in range(3)}
    assert (work / "tokenizer.json").read_bytes() == before
    assert len(list(work.glob("pairs-*.json"))) == 2


def test_what_was_measured_is_kept(tmp_path):
    file = tmp_path / "work/seen.json"
    assert conditioned_encoders.kept(file, lambda: {"nats": 3.5}) == {"nats": 3.5}
    assert conditioned_encoders.kept(file, lambda: {"nats": 1.0}) == {"nats": 3.5}


@pytest.mark.parametrize(
    "arguments, why",
    [
        (["--unconditioned", "--train", "frozen"], "--unconditioned"),
        (["--unconditioned", "--output", "x"], "--unconditioned"),
        (["--output", "x"], "--write-small: missing"),
    ],
)
def test_what_cannot_be_is_refused(arguments, why, capsys):
    with pytest.raises(SystemExit):
        conditioned_encoders.parse_arguments(["--steps", "1", *arguments])
    assert why in capsys.readouterr().err
