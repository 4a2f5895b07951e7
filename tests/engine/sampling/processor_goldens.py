"""Rows of logits, what a request asks for, and what Transformers makes of both.

    python3 tests/engine/sampling/processor_goldens.py

writes processor_golden.txt, a few cases of each kind; transformers_test.py makes thousands. Needs torch
and transformers (5.23 wrote the stored file).

Transformers itself puts its processors and warpers in order (GenerationMixin._get_logits_processor), so
that order is part of what is compared. It has no presence and frequency penalty: these are written here
after OpenAI's definition and passed to it as a processor of the caller's. Everything is computed in
float64. A case whose survivors differ in float32 lies on a threshold that rounding decides, and another
one is made in its place.

Format, by lines; all fields of a case but `kind` may be missing:
    row VOCAB X0 X1 ...          logits, exact in float32
    fed PROMPT_TOKENS T0 T1 ...  the tokens before, of which the first are the prompt's
    case KIND FIELD=VALUE ... = Y0 Y1 ...   of the row and tokens above. With a temperature: the
                                 probabilities; without: the processed logits
"""

import argparse
import pathlib
import types

import numpy as np
import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor

TARGET = pathlib.Path(__file__).with_name("processor_golden.txt")

KINDS = [
    "logit_bias",
    "bad_token_ids",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "processors",
    "warpers",
    "all",
]
PROCESSORS = KINDS[:6]
WARPERS = KINDS[6:11]


class Penalties(LogitsProcessor):
    """OpenAI's: mu[j] - c[j] * frequency - (c[j] > 0) * presence, with c[j] counted in the output."""

    def __init__(self, presence, frequency, prompt_tokens):
        self.presence, self.frequency, self.prompt_tokens = presence, frequency, prompt_tokens

    def __call__(self, input_ids, scores):
        count = torch.bincount(input_ids[0, self.prompt_tokens :], minlength=scores.shape[-1])
        return scores - count * self.frequency - (count > 0) * self.presence


def processor_list(case, prompt_tokens):
    ends = case.get("ends", [])
    config = GenerationConfig(
        do_sample="temperature" in case,
        temperature=case.get("temperature", 1.0),
        top_k=case.get("top_k", 0) if "temperature" in case else None,
        top_p=case.get("top_p", 1.0),
        min_p=case.get("min_p"),
        typical_p=case.get("typical_p", 1.0),
        repetition_penalty=case.get("repetition_penalty", 1.0),
        sequence_bias={(t,): x for t, x in case.get("logit_bias", {}).items()} or None,
        bad_words_ids=[[t] for t in case.get("bad_token_ids", [])] or None,
        min_new_tokens=case.get("min_new_tokens"),
        eos_token_id=ends or None,
    )
    config._eos_token_tensor = torch.tensor(ends) if ends else None
    model = types.SimpleNamespace(config=types.SimpleNamespace(is_encoder_decoder=False))
    model._merge_criteria_processor_list = types.MethodType(
        GenerationMixin._merge_criteria_processor_list, model
    )
    penalties = Penalties(
        case.get("presence_penalty", 0.0), case.get("frequency_penalty", 0.0), prompt_tokens
    )
    return GenerationMixin._get_logits_processor(
        model,
        config,
        input_ids_seq_length=prompt_tokens,
        logits_processor=[penalties],
        device="cpu",
        model_kwargs={},
    )


def answer(case, row, tokens, prompt_tokens, dtype):
    """What Transformers draws from, or processed logits. [vocab], and which tokens survive."""
    scores = torch.tensor(row[None].astype(dtype))
    scores = processor_list(case, prompt_tokens)(torch.tensor([tokens]), scores)
    survives = scores[0] > -torch.inf
    return (torch.softmax(scores, -1) if "temperature" in case else scores)[0], survives


def random_fields(names, vocab, rng):
    """Numbers are rounded to what float32 holds exactly: the engine keeps them in it."""

    def number(low, high):
        return float(np.float32(rng.uniform(low, high)))

    case = {}
    free = list(rng.permutation(vocab))  # tokens that no other field took; one is left over
    for name in names:
        if name == "logit_bias":
            ids = rng.choice(vocab, min(vocab, int(rng.integers(1, 5))), replace=False)
            case[name] = {int(t): number(-8, 8) for t in ids}
        elif name == "bad_token_ids":
            case[name] = [int(free.pop()) for _ in range(int(rng.integers(1, 4))) if len(free) > 1]
        elif name == "min_new_tokens":
            case[name] = int(rng.integers(1, 12))
            case["ends"] = [
                int(free.pop()) for _ in range(int(rng.integers(1, 3))) if len(free) > 1
            ]
        elif name == "repetition_penalty":
            case[name] = number(0.5, 3)
        elif name in ("presence_penalty", "frequency_penalty"):
            case[name] = number(-2, 2)
        elif name == "temperature":
            case[name] = number(0.3, 2.5)
        elif name == "top_k":
            case[name] = int(rng.integers(1, vocab + 3))
        elif name in ("top_p", "typical_p"):
            case[name] = number(0.05, 0.99)
        elif name == "min_p":
            case[name] = number(0.005, 0.5)
    if any(name in WARPERS for name in case):
        case.setdefault("temperature", 1.0)
    return {name: value for name, value in case.items() if value}


def names_of(kind, rng):
    if kind in PROCESSORS + WARPERS:
        return [kind]
    pool = {"processors": PROCESSORS, "warpers": WARPERS, "all": PROCESSORS + WARPERS}[kind]
    return [name for name in pool if rng.random() < 0.7] or [pool[0]]


def text(value):
    if isinstance(value, dict):
        return ",".join(f"{t}:{x:.9g}" for t, x in value.items())
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:.9g}"


def write(path, per_kind, seed, max_vocab):
    """Writes `per_kind` rows for each kind. Returns how many lay on a threshold and were made again."""
    rng = np.random.default_rng(seed)
    again = 0
    with open(path, "w", encoding="utf-8") as out:
        for kind in KINDS:
            written = 0
            while written < per_kind:
                vocab = int(rng.integers(4, max_vocab + 1))
                row = rng.normal(0, rng.choice([0.5, 2.0, 5.0]), vocab).astype(np.float32)
                tokens = rng.integers(0, vocab, int(rng.integers(1, 24))).tolist()
                prompt_tokens = int(rng.integers(1, len(tokens) + 1))
                case = random_fields(names_of(kind, rng), vocab, rng)
                exact, survives = answer(case, row, tokens, prompt_tokens, np.float64)
                if not torch.equal(
                    survives, answer(case, row, tokens, prompt_tokens, np.float32)[1]
                ):
                    again += 1
                    continue
                print("row", vocab, *(f"{x:.9g}" for x in row), file=out)
                print("fed", prompt_tokens, *tokens, file=out)
                fields = [f"{name}={text(value)}" for name, value in case.items()]
                print("case", kind, *fields, "=", *(f"{x:.8g}" for x in exact.tolist()), file=out)
                written += 1
    return again


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=TARGET)
    parser.add_argument("--rows", type=int, default=8, help="of each kind")
    args = parser.parse_args()
    again = write(args.out, args.rows, seed=20, max_vocab=24)
    print(f"{args.rows * len(KINDS)} cases, {again} made again")


if __name__ == "__main__":
    main()
