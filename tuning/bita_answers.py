"""Tokens per pass of BiTA's masks by the number of training answers (arXiv 2401.12522).

    python -m tuning.bita_answers SmolLM2.gguf --adapter models/smollm2-135m-bita --humaneval HumanEval.jsonl.gz --write

Each training has the same number of steps, and each smaller set of answers is a part of the next one. `--adapter` adds
masks that were trained longer. Held-out prompts are the same for all. Finished trainings are cached, so an interrupted
run resumes.
"""

import argparse
import datetime
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from measure import machine
from measure.paths import ROOT
from measure.report import put, table
from tuning import (
    bita,
    bita_prompts,
    bita_trees,
    corpus,
    frozen_model,
    mask_rows,
    medusa,
    own_answers,
)
from tuning.calibration import Sample
from tuning.frozen_model import FrozenModel
from tuning.schedule import Budget

PAGE = ROOT / "docs" / "reports" / "bita.md"
TREES = (("efficient", 5), ("spine", 2), ("chain", 1))
FUNCTIONS = 4  # one prompt in this many is a function with its docstring, the others pieces of code
SETTINGS = bita.Settings(
    new_tokens=64,
    samples_per_batch=8,
    groups=32,
    depths="cycled",
    rate=0.02,
    warmup_steps=8,
)


def nested(samples: list[Sample], counts: list[int], seed: int) -> dict[int, list[Sample]]:
    """For each count a random part of `samples`, which is a part of those of larger counts."""
    order = np.random.default_rng(seed).permutation(len(samples))
    return {count: [samples[i] for i in order[:count]] for count in counts}


def trained(
    frozen: FrozenModel,
    settings: bita.Settings,
    samples: list[Sample],
    held_out: dict[str, list[Sample]],
    steps: int,
    work: Path,
) -> dict:
    """Tokens, views and minutes of a training, and ranks of held-out answers by text; from its file in `work` if it
    has finished. A view is one answer in one step."""
    key = bita.identity(
        frozen, settings, samples, steps=steps, held_out=own_answers.lists(held_out)
    )
    file = work / f"answers-{key}" / "ranks.json"
    if not file.exists():
        training = bita.Training(frozen, settings, file.parent)
        training.load()
        training.learn(samples, Budget(steps=steps), dict)
        training.save()
        found = {
            "tokens": sum(len(s.output) for s in samples),
            "views": steps * settings.samples_per_batch,
            "minutes": training.seconds / 60,
            "ranks": {
                text: [r.tolist() for r in bita.held_out_ranks(frozen.model, training.own, some)]
                for text, some in held_out.items()
            },
        }
        file.write_text(json.dumps(found))
    found = json.loads(file.read_text())
    found["ranks"] = {
        text: [np.array(r).reshape(-1, settings.masks) for r in ranks]
        for text, ranks in found["ranks"].items()
    }
    return found


def shipped(frozen: FrozenModel, adapter: Path, held_out: dict[str, list[Sample]]) -> dict:
    """As trained(), of an adapter with its training.json."""
    own = mask_rows.shipped(frozen.model, adapter)
    last = json.loads((adapter / "training.json").read_text())
    trainings = [*last.get("earlier", []), last]
    return {
        "tokens": sum(t["tokens"] for t in trainings),
        "views": sum(t["steps"] * t["settings"]["samples_per_batch"] for t in trainings),
        "minutes": sum(t["minutes"] for t in trainings),
        "ranks": {t: bita.held_out_ranks(frozen.model, own, some) for t, some in held_out.items()},
    }


def curve_table(found: dict[str, dict], masks: int) -> str:
    """`found`: of trained() or shipped(), by name."""
    texts = list(next(iter(found.values()))["ranks"])
    rows = []
    for name, one in found.items():
        cells = [name, f"{one['tokens']:,}", f"{one['views']:,}"]
        for text in texts:
            for kind, candidates in TREES:
                tree = bita_trees.tree(kind, masks, candidates)
                mean, error = medusa.tokens_per_pass(tree, one["ranks"][text])
                cells.append(f"{mean:.2f} ± {error:.2f}")
        rows.append(cells)
    names = [f"{kind}, k = {candidates}" for kind, candidates in TREES]
    head = ["answers", "tokens", "views", *(f"{t}: {name}" for t in texts for name in names)]
    return table(head, rows)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a Hugging Face directory or a GGUF file")
    parser.add_argument("--answers", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--steps", type=int, default=100, help="of each training")
    parser.add_argument("--adapter", type=Path, help="masks of this model: a further row")
    parser.add_argument("--checked", type=int, default=48, help="held-out prompts of each sort")
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--humaneval", type=Path, help="HumanEval.jsonl.gz: held-out prompts too")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/tandem/bita")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    given = parse_arguments(arguments)
    if given.threads:
        torch.set_num_threads(given.threads)
    counts = sorted(given.answers)
    if counts[0] < SETTINGS.samples_per_batch:
        raise SystemExit(
            f"--answers: {counts[0]}; allowed: {SETTINGS.samples_per_batch} (a batch) and more"
        )
    functions = counts[-1] // FUNCTIONS
    settings = replace(
        SETTINGS,
        code_prompts=counts[-1] - functions,
        function_prompts=functions,
        checked=given.checked,
    )
    dtype = torch.bfloat16 if given.precision == "bf16" else torch.float32
    frozen = frozen_model.load(given.model, dtype)
    samples, held_out = bita_prompts.answers(frozen, settings, given)
    found = {}
    for count, part in nested(samples, counts, settings.seed).items():
        print(f"{count} answers", flush=True)
        found[str(count)] = trained(frozen, settings, part, held_out, given.steps, given.work)
    if given.adapter:
        found[f"of {given.adapter.name}"] = shipped(frozen, given.adapter, held_out)
    minutes = ", ".join(f"{one['minutes']:.0f}" for one in found.values())
    command = " ".join(sys.argv[1:]).replace(str(Path.home()), "~")
    conditions = [
        ["command", f"`python -m tuning.bita_answers {command}`"],
        ["commit", machine.commit(ROOT)],
        ["date", str(datetime.date.today())],
        ["processor", f"{machine.processor()}, {given.threads or machine.cores()} threads"],
        ["steps, answers of a step", f"{given.steps}, {settings.samples_per_batch}"],
        ["minutes", minutes],
        ["held-out", f"{given.checked} prompts of each sort, {settings.new_tokens} tokens"],
    ]
    curve = curve_table(found, settings.masks)
    text = f"{curve}\n\n{table(['condition', ''], conditions)}"
    print(text)
    if given.write:
        put(PAGE, "answers", text + "\n")


if __name__ == "__main__":
    main()
