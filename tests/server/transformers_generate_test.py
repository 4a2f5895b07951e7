"""A real model behind the real server, with logits processors: the tokens of Transformers' generate().

Greedy, in float32 on both sides. Where the two largest of Transformers' processed logits are nearer to
each other than rounding errors, a text is compared up to there.
"""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = Path(__file__).resolve().parents[2] / "models/code-small"
CONFIG = f"""
models {{ name: "small" path: "{SMALL}" dtype: DTYPE_FP32 }}
deployments {{ name: "small" large: "small" }}
"""
PROMPTS = [
    "def quicksort(items):\n",
    "import os\n\n\nclass Reader:\n    def __init__(self, path):\n",
    "for i in range(10):\n    print(i)\nfor i in range(10):\n    print(i)\n",
    "# the sum of a list, of a list, of a list\n",
    '"""Tests."""\n\nimport unittest\n',
    "x",
]
NEW_TOKENS = 36
MIN_MARGIN = 1e-3
FEW = 3  # tokens that are banned, or get a bias

# Arguments of generate() and of the server. BANNED and BIASED stand for the tokens that the text
# has most of without any of this; a bias on the end of the text makes it come early.
CASES = {
    "repetition_penalty": ({"repetition_penalty": 1.3}, ["--repetition-penalty=1.3"]),
    "rewarded_repetition": ({"repetition_penalty": 0.8}, ["--repetition-penalty=0.8"]),
    "early_end": ({"sequence_bias": "END"}, ["--logit-bias=END"]),
    "min_new_tokens": (
        {"sequence_bias": "END", "min_new_tokens": 20},
        ["--logit-bias=END", "--min-new-tokens=20"],
    ),
    "bad_words": ({"bad_words_ids": "BANNED"}, ["--bad-token-ids=BANNED"]),
    "all": (
        {
            "repetition_penalty": 1.2,
            "min_new_tokens": 30,
            "bad_words_ids": "BANNED",
            "sequence_bias": "BIASED",
        },
        [
            "--repetition-penalty=1.2",
            "--min-new-tokens=30",
            "--bad-token-ids=BANNED",
            "--logit-bias=BIASED",
        ],
    ),
}


@pytest.fixture(scope="module")
def model():
    return transformers.AutoModelForCausalLM.from_pretrained(SMALL, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(SMALL)


@pytest.fixture(scope="module")
def prompts(model, tokenizer):
    """Token ids, and what follows them when nothing is asked for."""
    every = [tokenizer(prompt, add_special_tokens=False).input_ids for prompt in PROMPTS]
    return [(ids, generate(model, ids)[0]) for ids in every]


@pytest.fixture(scope="module")
def small_server(start_server):
    return start_server(CONFIG)


def generate(model, ids, **fields):
    """Greedy tokens, and how many of them no rounding can change."""
    out = model.generate(
        torch.tensor([ids]),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **fields,
    )
    sure = 0
    for scores in out.scores:
        best = scores[0].topk(2).values
        if best[0] - best[1] < MIN_MARGIN:
            break
        sure += 1
    tokens = out.sequences[0, len(ids) :].tolist()
    return tokens, sure


def arguments_of(fields, flags, plain, end):
    """The case's arguments of generate() and of `tandem`, for a prompt that gives `plain` without."""
    usual = sorted({*plain} - {end}, key=lambda t: (-plain.count(t), t))
    banned = usual[:FEW]
    bias = {"END": {end: 12.0}, "BIASED": {t: -2.5 for t in usual[FEW : 2 * FEW]}}
    arguments, options = {}, []
    for name, value in fields.items():
        if name == "bad_words_ids":
            value = [[t] for t in banned]
        elif name == "sequence_bias":
            value = {(t,): x for t, x in bias[value].items()} or None
        arguments[name] = value
    for flag in flags:
        name, value = flag.split("=")
        if name == "--bad-token-ids":
            options.append(f"{name}={','.join(map(str, banned))}")
        elif name == "--logit-bias":
            options += [f"{name}={t}={x}" for t, x in bias[value].items()]
        else:
            options.append(flag)
    return arguments, options


@pytest.mark.parametrize("name", CASES)
def test_tokens_are_those_of_generate(model, tokenizer, prompts, small_server, tandem, name):
    compared = total = changed = 0
    lengths = []
    for ids, plain in prompts:
        arguments, options = arguments_of(*CASES[name], plain, tokenizer.eos_token_id)
        expected, sure = generate(model, ids, **arguments)
        run = tandem(
            "generate",
            "--model=small",
            f"--token-ids={','.join(map(str, ids))}",
            f"--max-new-tokens={NEW_TOKENS}",
            "--include-eos-token",
            "--format=json",
            *options,
            address=small_server.grpc,
        )
        assert run.returncode == 0, run.stderr.decode()
        got = json.loads(run.stdout)["token_ids"]
        assert got[:sure] == expected[:sure], ids
        if sure == len(expected):
            assert got == expected, ids
        compared += sure
        total += len(expected)
        changed += expected != plain
        lengths.append(len(expected))
    assert compared > 0.8 * total
    assert changed >= len(PROMPTS) / 2
    if name == "early_end":
        assert min(lengths) < 20
    if "min_new_tokens" in name:
        assert 20 < min(lengths) < NEW_TOKENS  # it ends once it may
