"""Gain of conditioning by the size of the small model and by sample views (arXiv 2402.16844, figure 4 and table 11).

    python -m tuning.conditioned_views --threads 1 --write

The small models are the lower layers of `--small`. Each is trained with low-rank additions (LoRA), once alone and once
conditioned on the large model. Both trainings of a pair have the same answers in the same order and the same first
values of LoRA. The large model wrote the answers greedily. A seed selects the order, the texts of a short training, and
the first values. Held-out texts are the same for all.

Prints nats per token of held-out answers, and the differences of pairs: mean ± standard error over seeds. Results are
cached, so an interrupted run resumes.
"""

import argparse
import datetime
import itertools
import json
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from measure import machine
from measure.paths import ROOT
from measure.report import put, table
from tuning import (
    conditioned_samples,
    corpus,
    frozen_model,
    fusion,
    llm_to_slm,
    low_rank,
    own_answers,
    projector_file,
)
from tuning.conditioned_ablation import LOW_RANK_RATE, MATCHED
from tuning.conditioned_samples import Reader, Samples, Text, key_of
from tuning.frozen_model import FrozenModel
from tuning.llm_to_slm import Conditioned, Settings
from tuning.windows import TokenStream

PAGE = ROOT / "docs" / "reports" / "llm_to_slm.md"
PART = "views of llm to slm"
TEXTS_SEED = 1
AT_ONCE = 512  # prompts whose answers are kept in one file
CONDITIONED, ALONE = "llm_to_slm", "small, tuned alone"  # as in llm_to_slm.held_out_likelihoods


@dataclass(frozen=True)
class Run:
    """A training: lower layers of the small model, and Settings."""

    layers: int
    settings: Settings

    @property
    def views(self) -> int:
        return self.settings.steps * self.settings.batch


def keep_lower(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """Drops the layers above the first `layers` of a decoder; the last norm and the output matrix stay."""
    have = model.config.num_hidden_layers
    if not 1 <= layers <= have:
        raise SystemExit(f"--layers: {layers}; allowed: 1 to {have}")
    model.base_model.layers = model.base_model.layers[:layers]
    model.config.num_hidden_layers = layers
    return model


def answered(large: FrozenModel, texts: list[Text], new_tokens: int, work: Path) -> list[Text]:
    """The prompts of `texts` with the large model's greedy answers, in files in `work`."""
    found = []
    for at in range(0, len(texts), AT_ONCE):
        prompts = [text.prompt for text in texts[at : at + AT_ONCE]]
        name = key_of(prompts, new_tokens, projector_file.fingerprint_of(large.model))
        samples = own_answers.stored(
            work / f"answers-{name}.npz",
            lambda prompts=prompts: own_answers.write(large, prompts, new_tokens, large.ends),
        )
        found += [Text(s.prompt, s.output) for s in samples]
    return found


def runs_of(arguments: argparse.Namespace) -> list[Run]:
    """Pairs of trainings, of every seed the shortest ones first."""
    basic = Settings(
        layer=arguments.layer,
        train="lora",
        small_rate=LOW_RANK_RATE,
        **{name: getattr(arguments, name) for name in ("rate", "batch", "answer", "checked")},
        samples=arguments.texts,
    )
    pairs = itertools.product(
        arguments.views, range(1, arguments.seeds + 1), arguments.layers, (False, True)
    )
    return [
        Run(
            layers,
            replace(basic, seed=seed, conditioned=is_conditioned, steps=views // basic.batch),
        )
        for views, seed, layers, is_conditioned in pairs
    ]


class Pair:
    """The models, and texts for training and checking that all runs share."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.work = arguments.work
        self.large = Reader(arguments.large, torch.float32)
        large = FrozenModel(
            self.large.model, self.large.tokenizer, frozen_model.ends_of(self.large.model)
        )
        parts = corpus.split(corpus.read_documents(arguments.stdlib))
        prompts = Settings.shortest_prompt, Settings.longest_prompt
        counts = arguments.texts, arguments.checked
        streams = [TokenStream(large.tokenizer, [d.text for d in part]) for part in parts]
        training, held_out = (
            conditioned_samples.continuations(stream, n, prompts, arguments.answer, TEXTS_SEED)
            for stream, n in zip(streams, counts, strict=True)
        )
        self.training = self.read(answered(large, training, arguments.answer, self.work))
        self.held_out = self.read(answered(large, held_out, arguments.answer, self.work))
        self.source = self.read(held_out)  # the same prompts with the source's own continuations

    def read(self, texts: list[Text]) -> Samples:
        samples = Samples(texts)
        name = key_of(samples.read, self.arguments.layer, self.large.key)
        samples.fill(self.large, self.arguments.layer, self.work / f"rows-{name}.pt")
        return samples

    def small(self, layers: int) -> PreTrainedModel:
        return keep_lower(frozen_model.load_weights(self.arguments.small), layers)

    def file_of(self, run: Run) -> Path:
        """Where its results are."""
        small = projector_file.fingerprint_of(self.small(run.layers))
        answers = [self.training.ids.tolist(), self.held_out.ids.tolist()]
        key = key_of(asdict(run.settings), small, self.large.key, answers)
        return self.work / f"views-{key}.json"

    def measure(self, run: Run) -> dict[str, dict]:
        """Nats per token of the trained model by what it is conditioned on; "source": of the source's own
        continuations. From a file if the run is done."""
        file = self.file_of(run)
        if file.exists():
            return json.loads(file.read_text())
        conditioned = Conditioned(self.small(run.layers), *self.training.standard(), run.settings)
        checkpoint = file.with_suffix(".pt")
        llm_to_slm.train(conditioned, self.training, run.settings, checkpoint, save_every=128)
        measured = llm_to_slm.held_out_likelihoods(conditioned, self.held_out)
        measured |= llm_to_slm.likelihoods({"source": conditioned}, self.source)
        file.write_text(json.dumps(measured))
        checkpoint.unlink(missing_ok=True)
        return measured

    def untrained(self) -> dict[str, tuple[int, float, float]]:
        """(parameters, nats per token of held-out answers, of the source) by model."""
        models = {"large": self.large.model}
        models |= {f"small, {n}": self.small(n) for n in self.arguments.layers}
        found = {}
        for name, model in models.items():
            one = {name: lambda b, m=model: fusion.head_logits(m, b.says, input_ids=b.ids)}
            both = [
                llm_to_slm.likelihoods(one, s)[name]["all"] for s in (self.held_out, self.source)
            ]
            found[name] = (sum(p.numel() for p in model.parameters()), *both)
        return found

    def trained_parameters(self, layers: int) -> tuple[int, int]:
        """(of LoRA, of the projector)."""
        s = Settings(layer=self.arguments.layer)
        small = self.small(layers)
        projector = Conditioned(small, *self.training.standard(), s).projector
        added = low_rank.add(small, s.rank, 1)
        return sum(p.numel() for p in added), sum(p.numel() for p in projector.parameters())


def cell(values: list[float], sign: str = "") -> str:
    """Mean ± standard error over seeds; of one seed, its value."""
    mean = f"{statistics.fmean(values):{sign}.3f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.3f}"


def lines_of(found: dict[Run, dict[str, dict]]) -> list[list[str]]:
    """One row per size and number of views for which both arms are finished."""
    arms: dict[tuple[int, int], dict[int, dict[bool, dict]]] = {}
    for run, nats in found.items():
        seeds = arms.setdefault((run.layers, run.views), {})
        seeds.setdefault(run.settings.seed, {})[run.settings.conditioned] = nats
    lines = []
    for (layers, views), seeds in sorted(arms.items()):
        pairs = [both for both in seeds.values() if len(both) == 2]
        if not pairs:
            continue
        alone = [both[False][ALONE]["all"] for both in pairs]
        conditioned = [both[True][CONDITIONED]["all"] for both in pairs]
        begin = [both[True][CONDITIONED]["1 to 4"] - both[False][ALONE]["1 to 4"] for both in pairs]
        own, other = ([both[True][who]["all"] for both in pairs] for who in MATCHED)
        source = [both[True]["source"]["all"] - both[False]["source"]["all"] for both in pairs]

        def less(a: list[float], b: list[float]) -> list[float]:
            return [x - y for x, y in zip(a, b, strict=True)]

        cells = [cell(alone), cell(conditioned)]
        cells += [cell(d, "+") for d in (less(conditioned, alone), begin, less(own, other), source)]
        lines.append([str(layers), f"{views:,}", str(len(pairs)), *cells])
    return lines


HEAD = ["layers", "sample views", "seeds", "LoRA", "LoRA, conditioned", "difference"]
HEAD += ["of tokens 1 to 4", "own prompt - another prompt", "difference on the source"]


def section(pair: Pair, found: dict[Run, dict[str, dict]], conditions: list[list[str]]) -> str:
    given = pair.arguments
    sizes = [[n, f"{p:,}", f"{a:.3f}", f"{b:.3f}"] for n, (p, a, b) in pair.untrained().items()]
    trained = [
        f"{layers} {'layer' if layers == 1 else 'layers'}: LoRA {lora:,}, projector {projector:,}"
        for layers in given.layers
        for lora, projector in [pair.trained_parameters(layers)]
    ]
    conditions = [
        *conditions,
        ["texts", f"{given.texts:,}, held-out {given.checked}; batches of {given.batch}"],
        [
            "tokens",
            f"prompts {Settings.shortest_prompt} to {Settings.longest_prompt}, answers {given.answer}",
        ],
        ["conditioned on", f"layer {given.layer} of the large model"],
        ["trained parameters", "; ".join(trained)],
    ]
    return f"""{table(["unchanged model", "parameters", "nats/token", "on the source"], sizes)}

{table(HEAD, lines_of(found))}

{table(["condition", ""], conditions)}
"""


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", type=Path, default=ROOT / "models/code-large")
    parser.add_argument("--small", type=Path, default=ROOT / "models/code-small")
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2], help="of the small model")
    parser.add_argument("--layer", type=int, default=8, help="of the large model: whose states")
    parser.add_argument("--views", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--seeds", type=int, default=3)
    sizes = {"texts": 4096, "answer": Settings.answer, "batch": Settings.batch, "checked": 512}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=Settings.rate, help="of the projector")
    parser.add_argument(
        "--finished", action="store_true", help="trains no more, reports what is done"
    )
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument(
        "--work", type=Path, default=Path.home() / ".cache/tandem/conditioned_views"
    )
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    pair, found = Pair(arguments), {}
    for run in runs_of(arguments):
        if arguments.finished and not pair.file_of(run).exists():
            continue
        found[run] = pair.measure(run)
        brief = {name: round(nats["all"], 4) for name, nats in found[run].items()}
        s = run.settings
        print(run.layers, run.views, s.seed, s.conditioned, json.dumps(brief), flush=True)
    conditions = [
        ["command", "`python -m tuning.conditioned_views " + " ".join(sys.argv[1:]) + "`"],
        ["commit", machine.commit(ROOT)],
        ["date", str(datetime.date.today())],
        ["processor", f"{machine.processor()}, {arguments.threads or machine.cores()} threads"],
    ]
    text = section(pair, found, conditions)
    print(text)
    if arguments.write:
        put(PAGE, PART, text)


if __name__ == "__main__":
    main()
