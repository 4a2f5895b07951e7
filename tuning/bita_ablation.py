"""Tables of BiTA: tokens per pass on held-out text, by prompting, prompt rows, masks and trees.

    python -m tuning.bita_ablation models/code-large --adapter models/code-large-bita --steps 48 --write

Measures the given adapter with all trees and numbers of masks. Then trains variants for the same number of
steps on the same answers: deep, shallow and no prompts, more and fewer prompt rows and masks. Results are
cached, so an interrupted run resumes.
"""

import argparse
import dataclasses
import json
from pathlib import Path

import torch

from measure.paths import ROOT
from measure.report import put, table
from tuning import (
    bita,
    bita_prompts,
    bita_trees,
    corpus,
    frozen_model,
    mask_rows,
    own_answers,
)
from tuning.frozen_model import FrozenModel
from tuning.mask_rows import MaskParameters
from tuning.schedule import Budget

PAGE = ROOT / "docs" / "reports" / "bita.md"
# What a table's row is measured with: kind and candidates.
TREES = (
    ("efficient", 5),
    ("efficient", 3),
    ("spine", 5),
    ("spine", 2),
    ("triangle", 5),
    ("full", 2),
    ("chain", 1),
    ("straightforward", 1),
)
# Variants of deep prompts with 16 rows and 3 masks.
VARIANTS = (
    ("shallow prompts", {"prompting": "shallow"}),
    ("no prompts", {"prompts": 0}),
    ("P = 4", {"prompts": 4}),
    ("deep prompts, P = 16, M = 3", {}),
    ("P = 64", {"prompts": 64}),
    ("M = 1", {"masks": 1}),
    ("M = 2", {"masks": 2}),
    ("M = 5", {"masks": 5}),
    ("rank 16 for mask rows", {"rank": 16}),
)


def tokens_per_pass(ranks: list, kind: str, masks: int, candidates: int) -> float:
    """With the first `masks` of the masks that the ranks are of."""
    tree = bita_trees.tree(kind, masks, candidates)
    return bita_trees.tokens_per_pass(tree, [answer[:, :masks] for answer in ranks])[0]


def tree_table(ranks: dict[str, list], masks: int) -> str:
    rows = []
    for kind, candidates in TREES:
        for m in range(masks, 0, -1):
            tree = bita_trees.tree(kind, m, candidates)
            cells = [f"{tokens_per_pass(r, kind, m, candidates):.2f}" for r in ranks.values()]
            rows.append([f"{kind}, k = {candidates}", str(m), str(tree.rows(m)), *cells])
    return table(["tree", "M", "rows of a pass", *ranks], rows)


def variant_table(found: dict[str, dict]) -> str:
    texts = list(next(iter(found.values()))["efficient"])
    rows = []
    for name, by_tree in found.items():
        both = [f"{by_tree[tree][text]:.2f}" for tree in ("efficient", "chain") for text in texts]
        rows.append([name, *both])
    heads = [f"{tree}, {text}" for tree in ("efficient, k = 5", "chain") for text in texts]
    return table(["", *heads], rows)


def measure(frozen: FrozenModel, own: MaskParameters, held_out: dict) -> dict[str, list]:
    return {
        name: bita.held_out_ranks(frozen.model, own, samples) for name, samples in held_out.items()
    }


def train(frozen: FrozenModel, settings: bita.Settings, samples, held_out, steps: int, work: Path):
    """Tokens of a pass of one variant, by tree and text; from its file in `work` where one is there
    of the same model, settings, answers and steps."""
    key = bita.identity(frozen, settings, samples, held_out=own_answers.lists(held_out))
    work = work / key
    file = work / f"steps-{steps}.json"
    if file.exists():
        return json.loads(file.read_text())
    training = bita.Training(frozen, settings, work)
    training.load()
    training.learn(samples, Budget(steps=steps), dict)
    training.save()
    ranks = measure(frozen, training.own, held_out)
    found = {
        kind: {
            text: tokens_per_pass(r, kind, settings.masks, candidates) for text, r in ranks.items()
        }
        for kind, candidates in (("efficient", 5), ("chain", 1))
    }
    file.write_text(json.dumps(found))
    return found


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a Hugging Face directory or a GGUF file")
    parser.add_argument("--adapter", type=Path, required=True, help="that ships for it")
    parser.add_argument("--steps", type=int, default=0, help="of each variant; 0: none is trained")
    parser.add_argument(
        "--variants", nargs="+", default=[n for n, _ in VARIANTS], help="default: all"
    )
    parser.add_argument("--code-prompts", type=int, default=256)
    parser.add_argument("--function-prompts", type=int, default=0)
    parser.add_argument("--checked", type=int, default=32, help="held-out prompts of each sort")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--humaneval", type=Path, help="HumanEval.jsonl.gz: held-out prompts too")
    parser.add_argument(
        "--chat", action="store_true", help="held-out questions too, which the model asks itself"
    )
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/tandem/bita")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    frozen = frozen_model.load(arguments.model, dtype)
    whole = bita.Settings(
        code_prompts=arguments.code_prompts if arguments.steps else 0,
        function_prompts=arguments.function_prompts if arguments.steps else 0,
        checked=arguments.checked,
        new_tokens=arguments.new_tokens,
    )
    samples, held_out = bita_prompts.answers(frozen, whole, arguments, arguments.chat)
    own = mask_rows.shipped(frozen.model, arguments.adapter)
    masks = len(own.masks)
    text = tree_table(measure(frozen, own, held_out), masks)
    if arguments.steps:
        found = {}
        for name, change in VARIANTS:
            if name not in arguments.variants:
                continue
            settings = dataclasses.replace(whole, **change)
            folder = arguments.work / f"{arguments.adapter.name}-{name.replace(' ', '-')}"
            found[name] = train(frozen, settings, samples, held_out, arguments.steps, folder)
        text += f"\n\nVariants, {arguments.steps} steps each:\n\n{variant_table(found)}\n"
    print(text)
    if arguments.write:
        put(PAGE, arguments.adapter.name, text)


if __name__ == "__main__":
    main()
