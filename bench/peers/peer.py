"""Transformers, with the CPU settings that its documentation recommends."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig


@dataclass(frozen=True)
class Variant:
    """A way to call generate; the fastest counts in each case."""

    attention: str
    cache: str

    def __str__(self):
        return f"{self.attention}, {self.cache} cache"


VARIANTS = [Variant("sdpa", "dynamic"), Variant("eager", "dynamic"), Variant("sdpa", "static")]


class Peer:
    def __init__(self, folder: Path):
        load = AutoModelForCausalLM.from_pretrained
        self.model = load(folder, dtype=torch.float32, attn_implementation="sdpa").eval()

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], new_tokens: int | list[int], variant: Variant):
        """New tokens of each prompt, and the seconds of the batch. `new_tokens`: for all or for each prompt.

        Shorter prompts are padded on the left and masked. All run until the longest answer is complete, and
        excess tokens are dropped.
        """
        wanted = [new_tokens] * len(prompts) if isinstance(new_tokens, int) else new_tokens
        self.model.set_attn_implementation(variant.attention)
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=max(wanted),
            eos_token_id=None,  # avoids the search for the end token
            pad_token_id=0,
            cache_implementation=None if variant.cache == "dynamic" else variant.cache,
        )
        self.model.generation_config = config
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        start = time.perf_counter()
        out = self.model.generate(ids, attention_mask=mask, generation_config=config)
        seconds = time.perf_counter() - start
        tokens = out[:, ids.shape[1] :]
        assert tokens.shape == (len(prompts), max(wanted))
        return [row[:n] for row, n in zip(tokens.tolist(), wanted, strict=True)], seconds
