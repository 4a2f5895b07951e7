"""Trains the projector of LLM-to-SLM (arXiv 2402.16844): the large model reads, the small writes.

    python -m tuning.llm_to_slm --large models/code-large --small models/code-small \\
        --layer 8 --fusion add --output models/code-small-projector

The large model is frozen, and its hidden rows of each prompt are computed once and kept in bf16;
the small one too, unless --train-small has it trained along and written to a folder of its own.
The loss is that of the text behind the prompt. An interrupted training goes on where it was saved.
"""

import argparse
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PreTrainedModel

from tuning import calibration, corpus, projector_file
from tuning.schedule import cosine_factor
from tuning.windows import TokenStream


@dataclass(frozen=True)
class Settings:
    """What shapes a training beside the models and the documents; rates as in the paper."""

    layer: int
    fusion: str = "add"
    seed: int = 1
    samples: int = 3072
    length: int = 160  # tokens of a prompt and what follows it
    shortest_prompt: int = 16
    longest_prompt: int = 112
    batch: int = 32
    steps: int = 384
    rate: float = 1e-3
    weight_decay: float = 0.1
    warmup: float = 0.1
    checked: int = 256  # held-out samples


def new_projector(large: int, small: int, seed: int) -> nn.Sequential:
    """Linear, ReLU, Linear; the last one is zero, so that `add` begins as the plain small model."""
    torch.manual_seed(seed)
    projector = nn.Sequential(nn.Linear(large, small), nn.ReLU(), nn.Linear(small, small))
    nn.init.zeros_(projector[2].weight)
    nn.init.zeros_(projector[2].bias)
    return projector


def hidden_rows(model: PreTrainedModel, ids: torch.Tensor, layer: int) -> torch.Tensor:
    """Hidden states after `layer` layers, before the last norm. [batch, length, hidden]"""
    caught = []
    hook = model.model.layers[layer - 1].register_forward_hook(
        lambda module, inputs, output: caught.append(
            output[0] if isinstance(output, tuple) else output
        )
    )
    try:
        model.model(input_ids=ids, use_cache=False)
    finally:
        hook.remove()
    return caught[0]


def fused_logits(
    small: PreTrainedModel,
    projected: torch.Tensor,
    ids: torch.Tensor,
    prompt: torch.Tensor,
    fusion: str,
) -> torch.Tensor:
    """Logits of the small model, [batch, length, vocabulary], of the text `ids`.

    projected: [batch, rows, small's hidden], of the prompt's rows. prompt: [batch] tokens of each.
    """
    inputs = small.get_input_embeddings()(ids)
    rows = projected.shape[1]
    is_prompt = (torch.arange(rows) < prompt[:, None]).unsqueeze(-1)
    kept = inputs[:, :rows] if fusion == "add" else torch.zeros_like(projected)
    fused = torch.where(is_prompt, kept + projected, inputs[:, :rows])
    return small(inputs_embeds=torch.cat([fused, inputs[:, rows:]], 1), use_cache=False).logits


def answer_loss(logits: torch.Tensor, ids: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
    """Mean negative log-likelihood in nats of the tokens behind the prompts."""
    behind = torch.arange(1, ids.shape[1]) >= prompt[:, None]
    return nn.functional.cross_entropy(logits[:, :-1][behind].float(), ids[:, 1:][behind])


class Samples:
    """Texts cut into a prompt and what follows, with the large model's rows of the prompts."""

    def __init__(self, stream: TokenStream, count: int, settings: Settings, seed: int):
        length = settings.length
        texts = calibration.cut_prompts(stream, count, length, length, seed)
        random = np.random.default_rng(seed)
        self.ids = torch.tensor(texts)
        self.prompt = torch.from_numpy(
            random.integers(settings.shortest_prompt, settings.longest_prompt + 1, count)
        )
        self.rows = torch.empty(0)

    def read(self, large: PreTrainedModel, settings: Settings, file: Path, rows: int = 64) -> None:
        """Fills `rows`: [samples, longest prompt, hidden] in bf16, from `file` where it is there."""
        longest = settings.longest_prompt
        if file.exists():
            self.rows = torch.load(file)
            return
        parts = []
        with torch.no_grad():
            for at in tqdm(range(0, len(self.ids), rows), unit="batch", desc="reading"):
                ids = self.ids[at : at + rows, :longest]
                parts.append(hidden_rows(large, ids, settings.layer).bfloat16())
        self.rows = torch.cat(parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".part")
        torch.save(self.rows, partial)
        partial.replace(file)

    def batch(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.ids[index], self.prompt[index], self.rows[index].float()


def train(
    small: PreTrainedModel,
    projector: nn.Sequential,
    samples: Samples,
    settings: Settings,
    train_small: bool,
    checkpoint: Path,
    save_every: int = 16,
) -> None:
    """Trains in place. Which samples a step sees depends on the seed and the step alone."""
    small.requires_grad_(train_small)
    trained = [*projector.parameters(), *(small.parameters() if train_small else [])]
    optimizer = torch.optim.AdamW(trained, settings.rate, weight_decay=settings.weight_decay)
    warmup = round(settings.warmup * settings.steps)
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        first = saved["step"]
        projector.load_state_dict(saved["projector"])
        optimizer.load_state_dict(saved["optimizer"])
        if train_small:
            small.load_state_dict(saved["small"])
    per_epoch = len(samples.ids) // settings.batch
    bar = tqdm(range(first, settings.steps), unit="step", initial=first, total=settings.steps)
    for step in bar:
        epoch = torch.Generator().manual_seed(settings.seed * 1000 + step // per_epoch)
        order = torch.randperm(len(samples.ids), generator=epoch)
        at = step % per_epoch * settings.batch
        ids, prompt, rows = samples.batch(order[at : at + settings.batch])
        loss = answer_loss(
            fused_logits(small, projector(rows), ids, prompt, settings.fusion), ids, prompt
        )
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * cosine_factor(step / settings.steps, step, warmup)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        if (step + 1) % save_every == 0:
            state = {"step": step + 1, "projector": projector.state_dict()}
            state["optimizer"] = optimizer.state_dict()
            if train_small:
                state["small"] = small.state_dict()
            torch.save(state, checkpoint.with_suffix(".part"))
            checkpoint.with_suffix(".part").replace(checkpoint)


@torch.no_grad()
def likelihoods(
    large: PreTrainedModel,
    small: PreTrainedModel,
    projector: nn.Sequential,
    samples: Samples,
    settings: Settings,
) -> dict[str, float]:
    """Nats per token behind held-out prompts: the small model alone, told, and the large one."""
    sums = {"small": 0.0, "llm_to_slm": 0.0, "large": 0.0}
    parts = torch.arange(len(samples.ids)).split(32)
    tokens = 0
    for index in parts:
        ids, prompt, rows = samples.batch(index)
        n = int((settings.length + 1 - prompt).sum())
        tokens += n
        told = fused_logits(small, projector(rows), ids, prompt, settings.fusion)
        for name, logits in (
            ("small", small(input_ids=ids, use_cache=False).logits),
            ("llm_to_slm", told),
            ("large", large(input_ids=ids, use_cache=False).logits),
        ):
            sums[name] += answer_loss(logits, ids, prompt).item() * n
    return {name: total / tokens for name, total in sums.items()}


def key_of(*parts) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", type=Path, default=root / "models/code-large")
    parser.add_argument("--small", type=Path, default=root / "models/code-small")
    parser.add_argument("--layer", type=int, help="of the large model (default: its last)")
    parser.add_argument("--fusion", choices=["add", "replace"], default="add")
    parser.add_argument("--train-small", type=Path, help="train it along, and write it here")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=Settings.samples)
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/tandem/llm_to_slm")
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    large, small = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).requires_grad_(False).eval()
        for path in (arguments.large, arguments.small)
    )
    settings = Settings(
        layer=arguments.layer or large.config.num_hidden_layers,
        fusion=arguments.fusion,
        seed=arguments.seed,
        samples=arguments.samples,
        steps=arguments.steps,
    )
    if not 1 <= settings.layer <= large.config.num_hidden_layers:
        raise SystemExit(
            f"--layer: {settings.layer}; allowed: 1 to {large.config.num_hidden_layers}"
        )
    tokenizer = Tokenizer.from_file(str(arguments.large / "tokenizer.json"))
    if (
        tokenizer.get_vocab()
        != Tokenizer.from_file(str(arguments.small / "tokenizer.json")).get_vocab()
    ):
        raise SystemExit("--small: its tokens are not those of --large")
    training, held_out = corpus.split(corpus.read_documents(arguments.stdlib))
    reader, writer = projector_file.sample_of(large), projector_file.sample_of(small)
    run = key_of(asdict(settings), reader, writer, bool(arguments.train_small))
    samples = {}
    for part, documents, count in (
        ("training", training, settings.samples),
        ("held_out", held_out, settings.checked),
    ):
        stream = TokenStream(tokenizer, [document.text for document in documents])
        samples[part] = Samples(stream, count, settings, settings.seed)
        text = settings.length, settings.shortest_prompt, settings.longest_prompt, settings.seed
        name = key_of(part, count, settings.layer, text, reader, len(stream))
        samples[part].read(large, settings, arguments.work / f"rows-{name}.pt")
    projector = new_projector(large.config.hidden_size, small.config.hidden_size, settings.seed)
    checkpoint = arguments.work / f"training-{run}.pt"
    train(small, projector, samples["training"], settings, bool(arguments.train_small), checkpoint)
    small.requires_grad_(False)
    if arguments.train_small:
        small.save_pretrained(arguments.train_small)
        tokenizer.save(str(arguments.train_small / "tokenizer.json"))
    projector_file.save(arguments.output, projector, large, small, settings.layer, settings.fusion)
    measured = likelihoods(large, small, projector, samples["held_out"], settings)
    print(json.dumps({key: round(value, 4) for key, value in measured.items()}))


if __name__ == "__main__":
    main()
