"""Bits per byte on held-out documents: a loss that does not depend on the tokenizer."""

import math
from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from tuning.vocabulary import END_OF_TEXT


class HeldOut:
    """Held-out texts as rows of `length` + 1 tokens that together score every token once.

    A document is END_OF_TEXT, its tokens, END_OF_TEXT. One longer than `length` is cut into rows
    that overlap by half, so that (but for the document's beginning) a scored token has at least
    `length` / 2 tokens of context; with `overlap=False` each row starts afresh, at half the cost.
    """

    def __init__(self, tokenizer: Tokenizer, texts: list[str], length: int, overlap: bool = True):
        end = tokenizer.token_to_id(END_OF_TEXT)
        self.bytes = sum(len(text.encode()) for text in texts)
        self.rows: list[tuple[list[int], int]] = []  # (tokens, how many first targets don't count)
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            ids = [end, *encoding.ids, end]
            scored = 0  # targets ids[1..scored] are done
            while scored < len(ids) - 1:
                first = max(0, scored - length // 2) if overlap else scored
                row = ids[first : first + length + 1]
                self.rows.append((row, scored - first))
                scored = first + len(row) - 1
        self.rows.sort(key=lambda row: len(row[0]))  # little padding within a batch
        self.tokens = sum(len(row) - 1 - skip for row, skip in self.rows)

    def batches(self, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """(inputs, targets, mask of targets that count), each [rows, longest], padded at the end.

        The attention is causal, so padding at the end changes nothing before it.
        """
        for first in range(0, len(self.rows), rows):
            chosen = self.rows[first : first + rows]
            longest = max(len(row) for row, _ in chosen) - 1
            inputs = torch.zeros(len(chosen), longest, dtype=torch.long)
            targets = torch.zeros_like(inputs)
            counts = torch.zeros_like(inputs, dtype=torch.bool)
            for i, (row, skip) in enumerate(chosen):
                inputs[i, : len(row) - 1] = torch.tensor(row[:-1])
                targets[i, : len(row) - 1] = torch.tensor(row[1:])
                counts[i, skip : len(row) - 1] = True
            yield inputs, targets, counts


@torch.no_grad()
def bits_per_byte(model: LlamaForCausalLM, held_out: HeldOut, rows: int = 8) -> float:
    """The mean number of bits that `model` needs per byte of the held-out documents."""
    device = next(model.parameters()).device
    nats = 0.0
    for inputs, targets, counts in held_out.batches(rows):
        hidden = model.model(input_ids=inputs.to(device), use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[counts.to(device)]).float()
        loss = torch.nn.functional.cross_entropy(
            logits, targets[counts].to(device), reduction="sum"
        )
        nats += loss.item()
    return nats / math.log(2) / held_out.bytes
