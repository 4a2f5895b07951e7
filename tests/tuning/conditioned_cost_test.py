"""tuning/evaluate/conditioned_cost.py: its projectors, its requests, and the ratios that it reports."""

import json

import pytest
import torch
from evaluate_test import messages  # noqa: F401
from safetensors.torch import load_file
from tokenizers import processors

from tuning import checkpoint, corpus, projector_file
from tuning.evaluate import conditioned_cost
from tuning.evaluate.conditioned_cost import LARGE, READING, SMALL, THIRD, WAYS, WHOLE, Pair
from tuning.shapes import llama, new_model
from tuning.vocabulary import train_tokenizer


def pair_in(folder, texts, sizes=(300, 280)):
    folders = []
    for name, hidden, layers, size in zip("ls", (24, 16), (4, 2), sizes, strict=True):
        shape = llama(
            hidden=hidden, layers=layers, heads=2, key_value_heads=1, inner=32, vocabulary=size
        )
        folders.append(folder / name)
        checkpoint.export(new_model(shape, 1), train_tokenizer(texts[:4], size), folders[-1])
    return Pair("tiny", *folders)


@pytest.mark.parametrize("sizes, tokens", [((300, 280), "aligned"), ((280, 280), "shared")])
def test_projectors_are_for_the_pair_and_add_nothing(tmp_path, texts, sizes, tokens):
    pair = pair_in(tmp_path, texts, sizes)
    assert conditioned_cost.write_projectors(pair, tmp_path) == ["whole", "third"]
    for name, layer in (("whole", 4), ("third", 2)):
        about = json.loads((tmp_path / name / "adapter.json").read_text())
        assert (about["layer"], about["tokens"], about["fusion"]) == (layer, tokens, "add")
        assert about["source"]["layers"] == 4 and about["source"]["hidden_size"] == 24
        numbers = load_file(tmp_path / name / "adapter.safetensors")
        assert numbers["0.weight"].shape == (16, 24)
        assert (
            torch.count_nonzero(numbers["2.weight"]) == torch.count_nonzero(numbers["2.bias"]) == 0
        )
    large = conditioned_cost.Reader(pair.large)
    assert about["source"] == projector_file.source_of(large.model)


def test_encoders_are_read_at_their_end_alone(tmp_path):
    shape = dict(d_model=24, d_ff=16, num_heads=2)
    shapes = [shape | {"num_layers": 3}, shape | {"num_layers": 1}]
    pair = conditioned_cost.random_t5(tmp_path, shapes, words=4200)
    tokenizer = conditioned_cost.frozen_model.load_tokenizer(pair.small)
    own = conditioned_cost.frozen_model.load_tokenizer(
        conditioned_cost.ROOT / "models/docstring-small"
    )
    assert tokenizer.get_vocab_size() == 4200  # a head of which all is read
    text = "docstring: def f(a):\n    return a"
    assert tokenizer.encode(text).ids == own.encode(text).ids
    assert conditioned_cost.write_projectors(pair, tmp_path) == ["whole"]
    about = json.loads((tmp_path / "whole/adapter.json").read_text())
    assert (about["layer"], about["tokens"]) == (3, "shared")
    text = conditioned_cost.deployment_file(pair, tmp_path, ["whole"])
    assert f'extras {{ name: "whole" path: "{tmp_path}/whole" }}' in text
    assert text.count("deployments {") == 2 and "{{" not in text


def test_prompts_have_as_many_tokens_as_asked(tmp_path, texts, monkeypatch):
    pair = pair_in(tmp_path, texts)
    tokenizer = conditioned_cost.frozen_model.load_tokenizer(pair.small)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer.save(str(pair.small / "tokenizer.json"))
    documents = [corpus.Document("a", texts[0]), corpus.Document("b", "x = 1\n")]
    monkeypatch.setattr(corpus, "read_documents", lambda _: documents)
    monkeypatch.setattr(corpus, "split", lambda found: ([], found))
    (prompt,) = conditioned_cost.cut_prompts(tmp_path, pair, 1, seed=1)
    assert texts[0].startswith(prompt)
    ids = tokenizer.encode(texts[0], add_special_tokens=False).ids[: conditioned_cost.TOKENS]
    assert len(ids) == 100 and prompt == tokenizer.decode(ids)
    with pytest.raises(SystemExit, match="allowed: 1 to 1"):
        conditioned_cost.cut_prompts(tmp_path, pair, 2, seed=1)


class Server:
    """Answers with numbers from 0; another one, if asked to, where a small model is conditioned."""

    def __init__(self, protocol, wrong=0):
        self.messages, self.wrong, self.asked = protocol, wrong, []

    def complete(self, request):
        self.asked.append(request)
        choice = self.messages.Choice()
        for i in range(request.max_new_tokens):
            choice.tokens.add(id=i + self.wrong * request.HasField("llm_to_slm"))
        return choice


def test_every_prompt_is_asked_by_all_ways(messages):  # noqa: F811
    server, done = Server(messages), []
    seconds = conditioned_cost.measure(server, WAYS, ["a", "b", "c"], 1, lambda: done.append(1))
    assert all(len(seconds[way]) == 3 for way in WAYS) and len(done) == 15
    asked = [(r.model, r.WhichOneof("method"), r.max_new_tokens, r.text) for r in server.asked]
    assert all(asked.count((w.deployment, w.method, w.tokens or 100, "b")) == 1 for w in WAYS)
    assert all(r.ignore_eos and r.temperature == 0 for r in server.asked)
    with pytest.raises(RuntimeError, match="adds nothing changed"):
        conditioned_cost.measure(Server(messages, wrong=1), WAYS, ["a"], 1, lambda: None)


def test_answers_have_the_length_of_the_run(messages):  # noqa: F811
    server = Server(messages)
    seconds = conditioned_cost.measure(server, WAYS, ["a"], 1, lambda: None, new_tokens=7)
    assert {r.max_new_tokens for r in server.asked} == {1, 7}
    seconds = {way: [7.0] for way in seconds}
    cells = conditioned_cost.line(Pair("x", None, None), seconds, new_tokens=7)
    assert cells[1] == "1000.00" and cells[3] == "7000.0"  # a token, the prompt


def test_ratios_are_of_the_same_prompt():
    seconds = {
        LARGE: [8, 8, 4],
        READING: [1, 1, 1],
        SMALL: [1, 1, 3],
        WHOLE: [2, 4, 4],
        THIRD: [1, 1, 1],
    }
    cells = conditioned_cost.line(Pair("x", None, None), seconds)
    assert cells[0] == "x" and cells[3] == "1000.0"
    assert cells[5] == "1.00 (1.00-2.00)"  # over what the small one and the reading take
    assert cells[6] == "2.00 (1.00-4.00)"
    assert cells[8] == "8.00 (4.00-8.00)"
    assert len(cells) == len(conditioned_cost.HEAD)
    cells = conditioned_cost.line(
        Pair("x", None, None), {w: seconds[w] for w in WAYS if w != THIRD}
    )
    assert cells[-2:] == ["-", "-"] and len(cells) == len(conditioned_cost.HEAD)
