"""Greedy answers of a model behind tandem-server, for `tuning.bita --answers`. Faster than own_answers.py.

    python -m tuning.served_answers qwen2.5-coder-1.5b.gguf --count 1156 --output answers.jsonl

Prompts are functions of Python files up to the end of their docstrings, of the installed packages by default.
With --exercises, the model writes them itself; those like a HumanEval problem are left out. Two of five are chat
messages by Qwen's template, as in `tuning.evaluate --humaneval --chat`.
"""

import argparse
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from measure.paths import ROOT
from measure.serving import at_once, server
from tuning import bita_prompts, exercises
from tuning.evaluate.humaneval import CHAT, STOPS, read_problems

SHORTEST, LONGEST = 120, 700  # characters of a function's head
BINARY = ROOT / "build" / "release" / "bin" / "tandem-server"


def texts(folder: Path, seed: int) -> Iterator[str]:
    """The Python files in random order, without tests."""
    files = sorted(f for f in folder.rglob("*.py") if "/test" not in f"/{f.relative_to(folder)}")
    for i in np.random.default_rng(seed).permutation(len(files)):
        yield files[i].read_text(errors="replace")


def prompts(files: Iterator[str], count: int) -> list[str]:
    """The first `count` distinct functions, at most three of a file; two of five as chat messages."""
    heads: dict[str, None] = {}
    for text in files:
        of_file = [h for h in bita_prompts.function_heads([text]) if SHORTEST < len(h) < LONGEST]
        heads.update(dict.fromkeys(of_file[:3]))
        if len(heads) >= count:
            break
    else:
        raise ValueError(f"--count: {count}; allowed: at most {len(heads)} of these files")
    return as_prompts([*heads][:count])


def as_prompts(heads: list[str]) -> list[str]:
    """Two of five as chat messages."""
    return [CHAT.format(head) if i % 5 >= 3 else head + "\n" for i, head in enumerate(heads)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a Hugging Face directory or a GGUF file")
    parser.add_argument("--output", type=Path, required=True, help="JSON lines: prompt, answer")
    parser.add_argument("--count", type=int, required=True, help="prompts")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument(
        "--exercises",
        action="store_true",
        help="let the model write the prompts itself, by examples",
    )
    parser.add_argument("--packages", type=Path, default=Path(sysconfig.get_path("purelib")))
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--binary", type=Path, default=BINARY)
    arguments = parser.parse_args()
    asked: list[str] = []
    if not arguments.exercises:
        asked = prompts(texts(arguments.packages, arguments.seed), arguments.count)
    with (
        server(arguments.binary, {"large": arguments.model}) as client,
        arguments.output.open("w") as file,
    ):
        m = client.messages

        def written(prompt: str, **fields) -> str:
            request = m.GenerateRequest(
                model="large",
                text=prompt,
                repetition_penalty=1,
                autoregressive=m.Autoregressive(),
                **fields,
            )
            return client.complete(request).text

        def exercise(number: int) -> str:
            text = exercises.request(number, arguments.seed)
            return written(
                text,
                temperature=1,
                top_p=0.95,
                seed=number,
                max_new_tokens=110,
                stop_sequences=STOPS,
            )

        def answer(prompt: str) -> str:
            text = written(prompt, temperature=0, max_new_tokens=arguments.new_tokens)
            return json.dumps({"prompt": prompt, "answer": text})

        if arguments.exercises:
            tried = tqdm(at_once(exercise, range(2 * arguments.count), arguments.streams))
            heads = exercises.collect(tried, [p.prompt for p in read_problems()])
            asked = as_prompts([exercises.with_imports(h) for h in heads[: arguments.count]])
        for line in tqdm(at_once(answer, asked, arguments.streams), total=len(asked)):
            file.write(line + "\n")


if __name__ == "__main__":
    main()
