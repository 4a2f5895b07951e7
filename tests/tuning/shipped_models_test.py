"""models/: what is shipped loads, is small enough for the repository, and writes Python."""

import ast
import json

import pytest
import torch
from conftest import ROOT
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tuning import corpus, functions, seq2seq, seq2seq_shapes
from tuning.pairs import read_pairs
from tuning.shapes import SHAPES, llama, multiplications_per_token

MODELS = ROOT / "models"
DOCSTRINGS = "docstring-large", "docstring-small"  # tuning/seq2seq.py
CONDITIONED = (
    "docstring-small-conditioned",
    "docstring-small-conditioned/projector",
)  # tuning/conditioned_encoders.py
MASKS = (  # tuning/bita.py
    "code-large-bita",
    "qwen2.5-coder-0.5b-bita",
    "qwen2.5-coder-0.5b-drafts",
    "qwen2.5-coder-1.5b-bita",
    "smollm2-135m-bita",
)
SHIPPED_HEADS = {"code-large-heads": (4, 5, 6, 7)}  # tuning/early_heads.py
# Of the others the records of their training are here, the weights are not.
HEADS = {
    **SHIPPED_HEADS,
    "smollm2-135m-heads": (15, 18, 22, 26),
    "qwen2.5-coder-0.5b-heads": (12, 16, 18, 20),
    "qwen2.5-coder-1.5b-heads": (14, 21),
}


@pytest.fixture(scope="module")
def pair():
    return {
        role: AutoModelForCausalLM.from_pretrained(MODELS / f"code-{role}").eval()
        for role in SHAPES
    }


def test_weights_are_small_enough_for_the_repository():
    weights = list(MODELS.rglob("*.safetensors"))
    heads = {f"{name}/layer-{layer}" for name, layers in SHIPPED_HEADS.items() for layer in layers}
    assert {file.parent.relative_to(MODELS).as_posix() for file in weights} == {
        *(f"code-{role}" for role in SHAPES),
        *DOCSTRINGS,
        *CONDITIONED,
        *MASKS,
        *heads,
    }
    archives = list(MODELS.rglob("*.tar.xz"))
    unpacked = [file.parent / file.name.removesuffix(".tar.xz") for file in archives]
    stored = {*weights, *archives} - {*unpacked}
    assert sum(file.stat().st_size for file in stored) < 40e6
    for head in heads:
        assert (MODELS / head / "adapter.safetensors").stat().st_size < 4e6


@pytest.mark.parametrize("name", HEADS)
def test_heads_help(name):
    report = json.loads((MODELS / name / "training.json").read_text())
    for texts in report["shared"]:
        for layer in HEADS[name]:
            shared, trained = (report[kind][texts][str(layer)] for kind in ("shared", "trained"))
            assert all(b >= a for a, b in zip(shared, trained, strict=True)), (texts, layer)
            assert trained[0] > shared[0] + 0.02


@pytest.mark.parametrize("name", ["smollm2-135m-conditioned"])
def test_the_record_of_a_conditioned_training_shows_its_gain(name):
    """In training.json: conditioned on its own prompt the model beats one conditioned on another prompt,
    and the unconditioned model."""
    for report in json.loads((MODELS / name / "training.json").read_text()):
        nats = report["nats"]
        if not report["settings"]["conditioned"] or report["settings"].get("rows") == "other":
            continue  # a control: never conditioned on its own prompt
        own, other = (
            nats["the same texts, conditioned on their own"],
            nats["conditioned on another prompt"],
        )
        assert own["all"] < other["all"] - 0.05
        assert nats["llm_to_slm"]["all"] < nats["small"]["all"] - 0.05


def test_all_have_the_same_tokenizer():
    folders = [f"code-{role}" for role in SHAPES]
    assert len({(MODELS / folder / "tokenizer.json").read_bytes() for folder in folders}) == 1


@pytest.mark.parametrize("role", SHAPES)
def test_configuration_is_the_shape(role, pair):
    config = pair[role].config
    expected = llama(**SHAPES[role], vocabulary=4096).to_dict()
    differing = {
        name
        for name, value in expected.items()
        if config.to_dict().get(name) != value
        and name not in ("architectures", "dtype", "transformers_version", "_name_or_path")
    }
    assert not differing
    assert pair[role].dtype == torch.bfloat16
    tokenizer = AutoTokenizer.from_pretrained(MODELS / f"code-{role}")
    assert len(tokenizer) == config.vocab_size == 4096
    assert tokenizer("x").input_ids[0] == config.bos_token_id == 0
    generation = json.loads((MODELS / f"code-{role}" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == tokenizer.eos_token_id == 0


def test_a_small_pass_costs_at_most_a_sixth(pair):
    cost = {
        role: multiplications_per_token(model.config, context=256) for role, model in pair.items()
    }
    assert 6 * cost["small"] <= cost["large"]


def test_the_large_one_writes_indented_python(pair):
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "code-large")
    model = pair["large"].float()
    prompt = "class Stack:\n    def __init__(self):\n"
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    written = model.generate(ids, max_new_tokens=64, do_sample=False)[0]
    text = tokenizer.decode(written, skip_special_tokens=True)
    assert text.startswith(prompt + "        ")
    # The last line may be cut short; some beginning of what is before it must be valid Python.
    lines = text.split("\n")[:-1]
    assert any(parses("\n".join(lines[:count])) for count in range(4, len(lines) + 1)), text


def held_out_docstrings(tokenizer, count):
    documents = corpus.read_documents(corpus.standard_library())
    held_out = functions.examples(
        [d for d in documents if corpus.is_held_out(d.path, seq2seq.HELD_OUT_SHARE)]
    )
    pairs = read_pairs(
        [example for example in held_out if example.task == functions.DOCSTRING],
        tokenizer,
        seq2seq.LONGEST_SOURCE,
        seq2seq.LONGEST_TARGET,
    )
    return pairs[:: len(pairs) // count][:count]


def test_the_pair_with_encoders_describes_functions():
    tokenizer = Tokenizer.from_file(str(MODELS / "docstring-large" / "tokenizer.json"))
    models = {name: seq2seq.load(MODELS / name) for name in DOCSTRINGS}
    pairs = held_out_docstrings(tokenizer, 24)
    large, small = (models[name] for name in DOCSTRINGS)
    answers = list(seq2seq.write(large, [pair.source for pair in pairs], seq2seq.LONGEST_TARGET))
    texts = tokenizer.decode_batch(answers)
    assert sum(answer[-1] == 1 for answer in answers) > 20  # they end
    assert len(set(texts)) > 12 and all(text.isprintable() for text in texts)
    wanted = {functions.DOCSTRING: pairs}
    losses = [seq2seq.held_out_loss(model, wanted, False)["docstring"] for model in (large, small)]
    assert losses[0] < losses[1]


@pytest.mark.parametrize("name", DOCSTRINGS)
def test_models_with_encoders_are_of_their_shape(name):
    config = AutoConfig.from_pretrained(MODELS / name)
    shape = seq2seq_shapes.SHAPES[name.split("-")[1]]
    assert (config.d_model, config.num_layers, config.num_decoder_layers) == (
        shape["hidden"],
        shape["encoder"],
        shape["decoder"],
    )
    tokenizer = AutoTokenizer.from_pretrained(MODELS / name)
    assert len(tokenizer) == config.vocab_size == 4096
    assert tokenizer("x").input_ids[-1] == config.eos_token_id == tokenizer.eos_token_id
    report = json.loads((MODELS / name / "training.json").read_text())
    assert report["docstrings_rouge_l"] > 0.1


def parses(source):
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True
