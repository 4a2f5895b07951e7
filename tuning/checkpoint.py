"""Checkpoints that survive an interruption at any moment, and the shipped model folders."""

import shutil
from pathlib import Path

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaForCausalLM

from tuning.vocabulary import save_tokenizer


def save(accelerator: Accelerator, folder: Path) -> None:
    """Replaces the checkpoint in `folder` atomically."""
    new, old = folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")
    shutil.rmtree(new, ignore_errors=True)
    accelerator.save_state(str(new))
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def load(accelerator: Accelerator, folder: Path) -> bool:
    """Loads the last checkpoint of `save`; False if there is none."""
    for candidate in (folder, folder.with_name(folder.name + ".old")):
        if candidate.exists():
            accelerator.load_state(str(candidate))
            return True
    return False


def export(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes a Hugging Face model directory with bfloat16 weights; `model` is unchanged."""
    folder.mkdir(parents=True, exist_ok=True)
    shipped = type(model)(model.config)
    shipped.load_state_dict(model.state_dict())
    shipped.to(torch.bfloat16)
    shipped.config.dtype = "bfloat16"
    shipped.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.eos_token_id,
        do_sample=False,
    )
    shipped.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # it comes out readable by its owner only
    save_tokenizer(tokenizer, folder, model.config.max_position_embeddings)
