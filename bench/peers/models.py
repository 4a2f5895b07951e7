"""Models and prompts of the benchmarks."""

import argparse
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from measure.paths import HOME, ROOT

VOCABULARY = 16384


@dataclass(frozen=True)
class Shape:
    """A Llama with random weights; its name has the approximate number of parameters."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    tied: bool = False


RANDOM = {
    "llama-25m": Shape(hidden=384, intermediate=1024, layers=7, heads=6),
    "llama-110m": Shape(hidden=768, intermediate=2048, layers=12, heads=12),
    "llama-350m": Shape(hidden=1024, intermediate=2816, layers=24, heads=16),
}


def random_llama(name: str = "llama-110m") -> Path:
    """A Hugging Face directory with a Llama of random weights in float32.

    Its tokenizer is that of code-large, padded with unused tokens. Cached in TANDEM_HOME.
    """
    folder = HOME / "benchmark" / name
    if (folder / "tokenizer.json").exists():
        return folder
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape = RANDOM[name]
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        max_position_embeddings=1024,
        tie_word_embeddings=shape.tied,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(110)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    beside = folder.with_suffix(".new")
    shutil.rmtree(beside, ignore_errors=True)
    model.save_pretrained(beside)
    source = ROOT / "models" / "code-large"
    shutil.copy(source / "tokenizer_config.json", beside)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    used = set(vocabulary.values()) | {token["id"] for token in tokenizer["added_tokens"]}
    vocabulary.update({f"<|unused{i}|>": i for i in range(VOCABULARY) if i not in used})
    (beside / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)
    return folder


def random_masks(model: Path, masks: int = 3, prompts: int = 16) -> Path:
    """Random BiTA masks for a model, to measure the cost of their rows."""
    folder = HOME / "benchmark" / f"{model.name}-masks"
    if not (folder / "adapter.safetensors").exists():
        from tuning import adapter_file, frozen_model
        from tuning.mask_rows import MaskParameters

        base = frozen_model.load_weights(model)
        own = MaskParameters(base, masks, prompts, seed=1)
        adapter_file.write(folder, "masks", base, own.tensors(base))
    return folder


def multiplied_weights(folder: Path) -> int:
    """Weights of a Llama that one token uses: all matrices except the embedding."""
    c = json.loads((folder / "config.json").read_text())
    hidden, layers = c["hidden_size"], c["num_hidden_layers"]
    queries = c["num_attention_heads"] * head_size(c) * hidden
    attention = 2 * queries + hidden * kept_numbers(folder) // layers
    return layers * (attention + 3 * hidden * c["intermediate_size"]) + c["vocab_size"] * hidden


def kept_numbers(folder: Path) -> int:
    """Numbers per token in the KV cache of a Llama."""
    c = json.loads((folder / "config.json").read_text())
    return c["num_hidden_layers"] * 2 * c["num_key_value_heads"] * head_size(c)


def head_size(config: dict) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def shipped_masks(name: str, model: Path) -> Path:
    """The BiTA masks of this model in models/, or random ones."""
    shipped = ROOT / "models" / f"{name}-bita"
    return shipped if shipped.exists() else random_masks(model)


def directories(names: list[str]) -> dict[str, Path]:
    """Paths of models: one of RANDOM, a folder in models/, or a GGUF file of scripts/models."""
    return {name: directory(name) for name in names}


def directory(name: str) -> Path:
    if name in RANDOM:
        return random_llama(name)
    fetched = HOME / "models" / f"{name}.gguf"
    return fetched if fetched.exists() else ROOT / "models" / name


def prompts(tokens: int, start: int = 0):
    """Yields distinct prompts of `tokens` token ids from the standard library.

    No two have a common prefix, so the prefix cache has no hits. The same holds for prompts of another
    `start`, unless the two differ by a multiple of 37.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "models" / "code-large")
    text = Path(argparse.__file__).read_text()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    while True:
        piece = [ids[(start + i) % len(ids)] for i in range(tokens - 1)]
        yield [tokenizer.bos_token_id] + piece
        start += 37
