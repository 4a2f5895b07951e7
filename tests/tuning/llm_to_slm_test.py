"""LLM-to-SLM's training on models of a few thousand weights."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tuning import conditioned_samples, fusion, llm_to_slm, projector_file
from tuning.conditioned_samples import Reader, Samples, Text
from tuning.functions import Example
from tuning.shapes import llama, new_model
from tuning.vocabulary import train_tokenizer

LARGE = llama(hidden=24, layers=3, heads=3, key_value_heads=1, inner=32, vocabulary=60)
SMALL = llama(hidden=16, layers=2, heads=2, key_value_heads=1, inner=24, vocabulary=60)
SETTINGS = llm_to_slm.Settings(
    layer=2, samples=24, shortest_prompt=3, longest_prompt=12, answer=8, batch=8, steps=6
)


class Here(Reader):
    """A model that is loaded already."""

    def __init__(self, model):
        self.model = model


@pytest.fixture
def models():
    return new_model(LARGE, seed=1).eval(), new_model(SMALL, seed=2).eval()


@pytest.fixture
def texts():
    torch.manual_seed(3)
    lengths = torch.randint(3, 13, (SETTINGS.samples,)).tolist()
    return [
        Text(torch.randint(1, 60, (n,)).tolist(), torch.randint(1, 60, (8 - n % 3,)).tolist())
        for n in lengths
    ]


@pytest.fixture
def samples(models, texts, tmp_path):
    samples = Samples(texts)
    samples.fill(Here(models[0]), SETTINGS.layer, tmp_path / "rows.pt", at_once=10)
    return samples


def conditioned(small, samples, settings=SETTINGS):
    return llm_to_slm.Conditioned(small, *samples.standard(), settings)


def test_rows_are_computed_once(models, texts, samples, tmp_path):
    for i, text in enumerate(texts):
        rows = fusion.hidden_rows(models[0], torch.tensor([text.prompt]), SETTINGS.layer)[0]
        mine = samples.rows[samples.first[i] : samples.first[i + 1]]
        torch.testing.assert_close(mine.float(), rows, rtol=1e-2, atol=1e-4)
    assert [file.name for file in tmp_path.iterdir()] == ["rows.pt"]
    again = Samples(texts)
    source = again.fill(Here(None), SETTINGS.layer, tmp_path / "rows.pt")
    assert torch.equal(again.rows, samples.rows)
    assert source == projector_file.source_of(models[0])


def test_a_batch_has_texts_beside_their_rows(texts, samples):
    batch = samples.batch(torch.tensor([5, 2]))
    for i, n in enumerate((5, 2)):
        text = texts[n]
        whole = text.prompt + text.answer
        assert batch.ids[i, : len(whole)].tolist() == whole
        rows = samples.rows[samples.first[n] : samples.first[n + 1]].float()
        assert torch.equal(batch.rows[i, : len(text.prompt)], rows)
    assert batch.said.tolist() == texts[5].answer + texts[2].answer
    assert batch.distance[batch.says].tolist() == [
        *range(len(texts[5].answer)),
        *range(len(texts[2].answer)),
    ]


def test_another_prompts_rows_are_as_many(samples):
    some, others = conditioned_samples.others(samples)
    assert len(some) == len(set(some.tolist())) and sorted(some.tolist()) == sorted(others.tolist())
    assert (some != others).all()
    assert torch.equal(samples.prompt[some], samples.prompt[others])
    lengths = samples.prompt.tolist()
    assert set(some.tolist()) == {i for i, n in enumerate(lengths) if lengths.count(n) > 1}
    assert 0 < len(some) <= len(samples)
    batch, own = samples.batch(some, others), samples.batch(some)
    assert torch.equal(batch.ids, own.ids)
    for rows, text, other in zip(batch.rows, some.tolist(), others.tolist(), strict=True):
        read = samples.rows[samples.first[other] : samples.first[other + 1]].float()
        assert len(read) == samples.prompt[text]
        assert torch.equal(rows[: len(read)], read)


def test_a_prompt_of_unique_length_is_conditioned_on_no_other(texts):
    lone = [Text([1] * 3, [1]), Text([1] * 4, [1])]
    assert [len(part) for part in conditioned_samples.others(Samples(lone))] == [0, 0]
    some, others = conditioned_samples.others(Samples([*lone, Text([2] * 4, [1])]))
    assert (some.tolist(), others.tolist()) == ([1, 2], [2, 1])


def test_a_prompt_is_conditioned_on_others_of_its_kind():
    """Two kinds of the same length; one kind has a single sample."""
    kinds = ["name", "docstring", "name", "docstring", "docstring"]
    mixed = Samples([Text([i] * 4, [1], kind) for i, kind in enumerate(kinds)])
    some, others = conditioned_samples.others(mixed)
    assert sorted(some.tolist()) == [0, 1, 2, 3, 4] and (some != others).all()
    assert [kinds[i] for i in some.tolist()] == [kinds[i] for i in others.tolist()]
    assert llm_to_slm.matched_counts(mixed) == {"docstring": 3, "name": 2}
    alone = Samples([Text([1] * 4, [1], kind) for kind in ("name", "docstring")])
    assert [len(part) for part in conditioned_samples.others(alone)] == [0, 0]
    assert llm_to_slm.matched_counts(alone) == {}


def test_strangers_are_of_the_same_kind_and_about_as_long(texts):
    longer = [replace(text, prompt=text.prompt * 10) for text in texts * 3]
    mixed = Samples([replace(t, kind=k) for t, k in zip(longer, "aab" * 24, strict=True)])
    partner = conditioned_samples.strangers(mixed, seed=1)
    assert sorted(partner.tolist()) == list(range(len(mixed)))
    assert all(
        i != other and mixed.kinds[i] == mixed.kinds[other] for i, other in enumerate(partner)
    )
    less = mixed.prompt - mixed.prompt[partner]
    assert less.sort(descending=True).values[2] < 8  # but for the longest one of each kind
    again = (
        conditioned_samples.strangers(mixed, seed=1),
        conditioned_samples.strangers(mixed, seed=2),
    )
    assert torch.equal(again[0], partner) and not torch.equal(again[1], partner)
    lone = Samples([replace(texts[0], kind="name"), *(replace(t, kind="docstring") for t in texts)])
    with pytest.raises(SystemExit, match="--rows other: 1 sample name; allowed: 2 or more"):
        conditioned_samples.strangers(lone, seed=1)


def test_a_shorter_prompts_last_row_is_conditioned_again(texts, samples):
    by_length = sorted(range(len(texts)), key=lambda i: len(texts[i].prompt))
    short, long = by_length[0], by_length[-1]
    rows = samples.batch(torch.tensor([long]), torch.tensor([short])).rows[0]
    first, end = samples.first[short], samples.first[short + 1]
    assert len(rows) == len(texts[long].prompt) > end - first
    assert torch.equal(rows[: end - first], samples.rows[first:end].float())
    assert (rows[end - first :] == samples.rows[end - 1].float()).all()


def test_a_twin_is_conditioned_on_others_throughout(samples, tmp_path):
    settings = replace(SETTINGS, train="frozen", rows="other")
    twin = conditioned(new_model(SMALL, seed=2).eval(), samples, settings)
    batch, asked = samples.batch, []

    def noted(index, read=None):
        asked.append((index, read))
        return batch(index, read)

    samples.batch = noted
    llm_to_slm.train(twin, samples, settings, tmp_path / "twin")
    assert len(asked) == settings.steps and all((i != r).all() for i, r in asked)
    epochs = [
        sorted((int(i), int(r)) for pair in part for i, r in zip(*pair, strict=True))
        for part in (asked[:3], asked[3:])
    ]
    assert len(epochs[0]) == len(samples) and epochs[0] != epochs[1]
    asked.clear()
    measured = llm_to_slm.held_out_likelihoods(twin, samples)
    assert measured.keys() == {"llm_to_slm"} and all((i != r).all() for i, r in asked)
    everybody = torch.arange(len(samples))
    strangers = conditioned_samples.strangers(samples, settings.seed * 1000)
    again = llm_to_slm.likelihoods({"it": twin}, samples, everybody, strangers)["it"]["all"]
    own = llm_to_slm.likelihoods({"it": twin}, samples)["it"]["all"]
    assert again == measured["llm_to_slm"]["all"] != own


def test_each_answers_nats_are_kept(models, samples):
    pair, texts = conditioned(models[1], samples), {}
    measured = llm_to_slm.held_out_likelihoods(pair, samples, texts)
    assert texts.keys() == {"llm_to_slm"}  # of all texts alone
    total = sum(texts["llm_to_slm"]) / int(samples.answer.sum())
    assert total == pytest.approx(measured["llm_to_slm"]["all"], rel=1e-4)
    with torch.no_grad():
        batch = samples.batch(torch.tensor([7]))
        alone = llm_to_slm.answer_losses(pair(batch), batch).sum().item()
    assert texts["llm_to_slm"][7] == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize(
    "given, why",
    [
        (
            ["--rows", "other", "--unconditioned"],
            "--rows: other; allowed with --unconditioned: own",
        ),
        (["--rows", "other", "--output", "x"], "--rows: other; allowed with --output: own"),
        (["--rank", "0", "--train", "lora"], "--rank: 0; allowed: 1 or more"),
        (["--layer", "4"], "--layer: 4; allowed: 1 to 3"),
        (
            ["--unconditioned", "--train", "frozen"],
            "--unconditioned: nothing is trained; allowed with",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(given, why):
    with pytest.raises(SystemExit, match=why):
        llm_to_slm.settings_of(llm_to_slm.parse_arguments(given), 3)


def test_settings_are_those_asked_for():
    given = ["--rows", "other", "--rank", "4", "--train", "frozen"]
    found = llm_to_slm.settings_of(llm_to_slm.parse_arguments(given), 3)
    assert (found.rows, found.rank, found.train, found.layer) == ("other", 4, "frozen", 3)


def test_likelihoods_are_of_the_wanted_texts_and_rows(samples):
    def by_both(batch):
        logits = torch.zeros(int(batch.answer.sum()), 60)
        said = batch.rows[:, 0].sum(1) * batch.ids[:, 0]
        logits[:, 0] = said.repeat_interleave(batch.answer)
        return logits

    some, others = conditioned_samples.others(samples)
    measured = []
    for read in (some, others):
        nats = 0.0
        for text, other in zip(some.tolist(), read.tolist(), strict=True):
            said = samples.rows[samples.first[other]].float().sum() * samples.ids[text, 0]
            nats += int(samples.answer[text]) * float((said.exp() + 59).log())  # 0 is no answer
        seen = llm_to_slm.likelihoods({"it": by_both}, samples, some, read)["it"]
        assert seen["all"] == pytest.approx(nats / int(samples.answer[some].sum()), rel=1e-5)
        measured.append(seen["all"])
    assert measured[0] == llm_to_slm.likelihoods({"it": by_both}, samples, some)["it"]["all"]
    assert abs(measured[0] - measured[1]) > 1e-3


def test_another_tokenizers_rows_are_laid_by_bytes():
    words = train_tokenizer(["def count(self): return self.count\n"] * 50, 270)
    letters = train_tokenizer(["x"], 257)
    text = "def count(self)"
    samples = Samples([Text(letters.encode(text).ids, [1])])
    samples.read_with(words, letters)
    assert words.decode(samples.read[0]) == text and len(samples.read[0]) < len(text)
    said = "".join(words.decode([i]) for i in samples.read[0])
    row_of = samples.beside[0].tolist()
    assert row_of == sorted(row_of) and said == text
    assert len(row_of) == len(samples.ids[0]) - 1
    ends = [len(words.decode(samples.read[0][: row + 1])) for row in row_of]
    assert all(
        end >= len(letters.decode(samples.ids[0, : i + 1].tolist())) for i, end in enumerate(ends)
    )


def test_functions_stand_before_what_is_asked_of_them():
    tokenizer = train_tokenizer(["def f(a):\n    return a\n"] * 20, 264)
    examples = [
        Example("docstring", "docstring: def f(a):\n    return a", "Return the argument."),
        Example("name", "name: def _(a):\n    return a", "f"),
        Example("name", "name: def _(a):\n    return 1", "one"),
        Example("docstring", "docstring: def g(a):\n" + "    a\n" * 90, "Too long."),
    ]

    def of(tasks, count):
        return conditioned_samples.of_functions(
            examples, tasks, tokenizer, 0, count, (4, 120), 64, seed=1
        )

    (text,) = of(("docstring",), 9)
    asked = conditioned_samples.ASKED
    assert tokenizer.decode(text.prompt) == "def f(a):\n    return a" + asked["docstring"]
    assert tokenizer.decode(text.answer) == " Return the argument." and text.answer[-1] == 0
    both = of(("docstring", "name"), 3)
    assert sorted(text.kind for text in both) == ["docstring", "name"]  # of each as many
    named = next(text for text in both if text.kind == "name")
    said = (tokenizer.decode(named.prompt), tokenizer.decode(named.answer))
    behind = asked["name"]
    assert said in {
        ("def _(a):\n    return a" + behind, " f"),
        ("def _(a):\n    return 1" + behind, " one"),
    }
    assert len(of(("docstring", "name"), 4)) == 3


def test_likelihoods_of_several_kinds_are_reported_separately(texts):
    mixed = [replace(text, kind=kind) for text, kind in zip(texts, "aab" * 8, strict=True)]
    samples = Samples(mixed)

    def sure_of_a(batch):
        logits = torch.zeros(int(batch.answer.sum()), 60)
        where = torch.tensor([mixed[i].kind == "a" for i in shown]).repeat_interleave(batch.answer)
        logits[where, batch.said[where]] = 50
        return logits

    shown = [0, 1, 2, 3, 4, 5]
    seen = llm_to_slm.likelihoods({"it": sure_of_a}, samples, torch.tensor(shown))["it"]
    assert seen["a"] < 1e-6 and seen["b"] == pytest.approx(torch.tensor(60.0).log().item())
    alone = llm_to_slm.likelihoods({"it": sure_of_a}, Samples(texts), torch.tensor(shown))["it"]
    assert {"a", "b"}.isdisjoint(alone)


def test_fewer_samples_than_a_step_takes_are_refused(monkeypatch, texts):
    refusals = {(7, 8): "7 samples for --batch; allowed: 8", (8, 0): "0 samples for --checked"}
    for found, why in refusals.items():
        parts = [texts[:n] for n in found]
        monkeypatch.setattr(llm_to_slm, "texts_of", lambda *_, parts=parts: parts)
        settings = replace(SETTINGS, task="docstring", conditioned=False)
        with pytest.raises(SystemExit, match=f"--task docstring: found {why}"):
            llm_to_slm.read_samples(None, settings, SimpleNamespace(key="k"), None, True)


@torch.no_grad()
def test_a_new_projector_adds_nothing(models, samples):
    batch = samples.batch(torch.arange(4))
    pair = conditioned(models[1], samples)
    alone = models[1](input_ids=batch.ids).logits[batch.says]
    torch.testing.assert_close(pair(batch), alone)
    unconditioned = conditioned(models[1], samples, replace(SETTINGS, conditioned=False))
    assert torch.equal(unconditioned(batch), pair(batch))
    plain = conditioned(models[1], samples, replace(SETTINGS, linear=True))
    assert torch.equal(plain(batch), pair(batch)) and len(plain.projector) == 1
    for linear in (False, True):
        settings = replace(SETTINGS, fusion="replace", linear=linear)
        replaced = conditioned(models[1], samples, settings)
        assert not torch.allclose(replaced(batch), pair(batch))


@torch.no_grad()
def test_the_written_projector_takes_unchanged_rows(models, samples):
    pair = conditioned(models[1], samples)
    torch.nn.init.normal_(pair.projector[2].weight)
    rows = samples.batch(torch.arange(4)).rows
    standard = pair.projector((rows - pair.mean) / pair.deviation)
    torch.testing.assert_close(pair.folded()(rows), standard, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "what, rows", [("frozen", "own"), ("frozen", "other"), ("lora", "own"), ("full", "own")]
)
def test_an_interrupted_training_ends_as_an_uninterrupted_one(samples, tmp_path, what, rows):
    settings = replace(SETTINGS, train=what, rank=2, rows=rows)

    class Stop(Exception):
        pass

    def fresh():
        return conditioned(new_model(SMALL, seed=2).eval(), samples, settings)

    whole, cut, again = fresh(), fresh(), fresh()
    losses = llm_to_slm.train(whole, samples, settings, tmp_path / "whole", 3)
    batch, seen = samples.batch, []

    def failing(*asked):
        seen.append(asked)
        if len(seen) == 5:
            raise Stop
        return batch(*asked)

    samples.batch = failing
    with pytest.raises(Stop):
        llm_to_slm.train(cut, samples, settings, tmp_path / "cut", 3)
    samples.batch = batch
    assert llm_to_slm.train(again, samples, settings, tmp_path / "cut", 3) == losses
    ends, wants = again.state_dict(), whole.state_dict()
    assert ends.keys() == wants.keys()
    assert all(torch.equal(ends[name], wants[name]) for name in wants)
    assert not torch.equal(whole.projector[2].weight, torch.zeros(16, 16))
    moved = not torch.equal(
        whole.small.model.layers[0].mlp.up_proj.weight,
        new_model(SMALL, seed=2).model.layers[0].mlp.up_proj.weight,
    )
    assert moved == (what != "frozen")


def test_an_epoch_sees_every_text_once_and_little_padding(texts):
    samples = Samples(texts * 20)
    settings = replace(SETTINGS, batch=8)
    per_epoch = len(samples) // 8
    epochs = [
        [llm_to_slm.texts_of_step(samples, settings, step) for step in range(at, at + per_epoch)]
        for at in (0, per_epoch)
    ]
    for epoch in epochs:
        assert sorted(torch.cat(epoch).tolist()) == list(range(len(samples)))
    assert epochs[0][0].tolist() != epochs[1][0].tolist()
    lengths = [samples.length[batch] for batch in epochs[0]]
    padded = sum(int((length.max() - length).sum()) for length in lengths)
    assert padded < 0.1 * int(samples.length.sum())


def test_minutes_that_are_over_leave_a_checkpoint(samples, tmp_path):
    def fresh():
        return conditioned(new_model(SMALL, seed=2).eval(), samples)

    whole = llm_to_slm.train(fresh(), samples, SETTINGS, tmp_path / "whole")
    model = fresh()
    assert llm_to_slm.train(model, samples, SETTINGS, tmp_path / "cut", minutes=-1) == whole[:1]
    assert llm_to_slm.train(fresh(), samples, SETTINGS, tmp_path / "cut") == whole


def test_losses_are_of_the_answers_alone(samples):
    batch = samples.batch(torch.arange(4))
    logits = torch.zeros(4, batch.ids.shape[1], 60)
    losses = llm_to_slm.answer_losses(logits[batch.says], batch)
    assert len(losses) == samples.answer[:4].sum()
    prompt = batch.prompt[0]
    logits[0, prompt - 1, batch.ids[0, prompt]] = 50  # the row that says the first of them
    assert llm_to_slm.answer_losses(logits[batch.says], batch)[0] < 1e-6


def test_the_file_says_what_it_was_made_for(models, tmp_path):
    large, small = models
    projector = fusion.new_projector(24, 16, seed=1)
    source = projector_file.source_of(large)
    projector_file.save(tmp_path, projector, source, small, layer=2, fusion="add")
    about = json.loads((tmp_path / "adapter.json").read_text())
    assert about["layer"] == 2 and about["fusion"] == "add" and about["tokens"] == "shared"
    assert about["source"]["fingerprint"] == projector_file.fingerprint_of(large)
    assert (
        about["base"]["fingerprint"]
        == projector_file.fingerprint_of(small)
        != about["source"]["fingerprint"]
    )
    with torch.no_grad():
        small.model.norm.weight[0] += 1
    assert projector_file.fingerprint_of(small) != about["base"]["fingerprint"]
