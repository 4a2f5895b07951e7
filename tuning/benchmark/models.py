"""What the benchmarks run: a directory per model, and prompts."""

import argparse
import json
import os
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(os.environ.get("TANDEM_HOME", Path.home() / ".cache" / "tandem"))
VOCABULARY = 16384


def random_llama() -> Path:
    """A Hugging Face directory with a random Llama of 110 million parameters in float32.

    768 wide, 12 layers, 12 heads, head matrix of its own. Its tokenizer is that of code-large, whose
    vocabulary is filled up with tokens that no text contains. Made once, and kept in TANDEM_HOME.
    """
    folder = HOME / "benchmark" / "llama-110m"
    if (folder / "tokenizer.json").exists():
        return folder
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
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


def directories(names: list[str]) -> dict[str, Path]:
    """The directories of these models: "llama-110m", or a folder in models/."""
    return {n: random_llama() if n == "llama-110m" else ROOT / "models" / n for n in names}


def prompts(tokens: int):
    """Endless prompts of so many token ids: pieces of the standard library, no two the same."""
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "models" / "code-large")
    text = Path(argparse.__file__).read_text()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    start = 0
    while True:
        piece = [ids[(start + i) % len(ids)] for i in range(tokens - 1)]
        yield [tokenizer.bos_token_id] + piece
        start += 37
