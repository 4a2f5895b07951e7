"""Prompts for training and evaluation of BiTA, and the model's answers."""

import argparse
import ast
import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from tuning import adapter_file, calibration, corpus, frozen_model, own_answers
from tuning.calibration import Sample
from tuning.frozen_model import FrozenModel
from tuning.windows import TokenStream

SHORTEST, LONGEST = 8, 96  # tokens of a code prompt
LONGEST_QUESTION = 64
LONGEST_FUNCTION = 160


def code(frozen: FrozenModel, texts: list[str], count: int, seed: int) -> list[list[int]]:
    """Prompts that start at a statement; see calibration.cut_prompts."""
    stream = TokenStream(frozen.tokenizer, texts)
    prompts = calibration.cut_prompts(stream, count, SHORTEST, LONGEST, seed)
    begins = frozen.tokenizer.encode("a").ids[0] == stream.end_of_text
    return prompts if begins else [prompt[1:] for prompt in prompts]


def function_heads(texts: Iterable[str]) -> Iterator[str]:
    """Functions of these files up to the end of their docstring, as in HumanEval."""
    for text in texts:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue  # the library's tests hold such files on purpose
        lines = text.splitlines()
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                yield "\n".join(lines[node.lineno - 1 : node.body[0].end_lineno])


def functions(frozen: FrozenModel, texts: list[str], count: int, seed: int) -> list[list[int]]:
    """function_heads() of at most LONGEST_FUNCTION tokens."""
    prompts = [
        ids
        for text in function_heads(texts)
        if len(ids := frozen.tokenizer.encode(text).ids) <= LONGEST_FUNCTION
    ]
    chosen = np.random.default_rng(seed).permutation(len(prompts))[:count]
    if len(chosen) < count:
        raise ValueError(
            f"function prompts: {count}; allowed: at most {len(prompts)} of these files"
        )
    return [prompts[i] for i in chosen]


def humaneval(frozen: FrozenModel, file: Path, count: int) -> list[list[int]]:
    with gzip.open(file, "rt") as lines:
        problems = [json.loads(line) for line in lines]
    return [frozen.tokenizer.encode(p["prompt"].rstrip()).ids for p in problems[:count]]


def written(frozen: FrozenModel, file: Path) -> list[Sample]:
    """Answers of another program, such as tandem-server: JSON lines with "prompt" and "answer"."""
    encode = frozen.tokenizer.encode
    samples = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            entry = json.loads(line)
            prompt, answer = str(entry["prompt"]), str(entry["answer"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f'{file}, line {number}: {line[:60]}; expected {{"prompt": .., "answer": ..}}'
            ) from error
        samples.append(Sample(encode(prompt).ids, encode(answer, add_special_tokens=False).ids))
    return samples


def answers(
    frozen: FrozenModel, settings, arguments: argparse.Namespace, chat: bool = False
) -> tuple[list[Sample], dict[str, list[Sample]]]:
    """(for training, held-out by sort of prompt), written once and kept in `arguments.work`. With
    `chat` there are held-out chat prompts even if none is trained on."""
    sample = adapter_file.fingerprint_of(frozen_model.tensors_of(frozen.model))

    def of(name: str, make_prompts, **what) -> list[Sample]:
        key = own_answers.identity(
            frozen, sample, name=name, seed=settings.seed, new_tokens=settings.new_tokens, **what
        )
        return own_answers.stored(
            arguments.work / f"{name}-{key}.npz",
            lambda: own_answers.write(
                frozen, make_prompts(), settings.new_tokens, frozen.ends, title=name
            ),
        )

    parts = corpus.split(corpus.read_documents(arguments.stdlib))
    texts = [[document.text for document in part] for part in parts]
    sets: list[dict[str, list[Sample]]] = []
    chat_checked = settings.checked if chat or settings.chat_prompts > 0 else 0
    for part, counts in enumerate(
        ((settings.code_prompts, settings.chat_prompts), (settings.checked, chat_checked))
    ):
        sets.append({})
        where = ("training", "held_out")[part]
        if counts[0] > 0:
            sets[part]["code"] = of(
                f"{where}-code",
                lambda part=part, n=counts[0]: code(frozen, texts[part], n, settings.seed),
                count=counts[0],
            )
        if part == 0 and settings.function_prompts > 0:
            sets[part]["functions"] = of(
                f"{where}-functions",
                lambda part=part: functions(
                    frozen, texts[part], settings.function_prompts, settings.seed
                ),
                count=settings.function_prompts,
            )
        if counts[1] > 0:
            sets[part]["chat"] = of(
                f"{where}-chat",
                lambda part=part, n=counts[1]: own_answers.questions(
                    frozen, n, LONGEST_QUESTION, 2 * settings.seed + part
                ),
                count=counts[1],
            )
    if arguments.humaneval:
        sets[1]["humaneval"] = of(
            "humaneval",
            lambda: humaneval(frozen, arguments.humaneval, settings.checked),
            count=settings.checked,
        )
    return [s for samples in sets[0].values() for s in samples], sets[1]
