"""Forward pass of LLM-to-SLM (arXiv 2402.16844) without a server: the large model's encoder states of a prompt,
their alignment with the small model's prompt, and the small model's outputs when they are added to its inputs or
replace them.
"""

import json
import re

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel


def new_projector(large: int, small: int, seed: int) -> nn.Sequential:
    """Linear, ReLU, Linear; the last one is zero, so that `add` begins as the plain small model."""
    torch.manual_seed(seed)
    projector = nn.Sequential(nn.Linear(large, small), nn.ReLU(), nn.Linear(small, small))
    nn.init.zeros_(projector[2].weight)
    nn.init.zeros_(projector[2].bias)
    return projector


def linear_projector(large: int, small: int, seed: int) -> nn.Sequential:
    """One matrix, which begins as that of `new_projector` ends: what a projector's depth is worth."""
    torch.manual_seed(seed)
    projector = nn.Sequential(nn.Linear(large, small))
    nn.init.zeros_(projector[0].weight)
    nn.init.zeros_(projector[0].bias)
    return projector


def folded(projector: nn.Sequential, mean: torch.Tensor, deviation: torch.Tensor) -> nn.Sequential:
    """The projector of rows as they are, from one that meets rows of mean 0 and deviation 1."""
    first, _, second = projector
    whole = new_projector(first.weight.shape[1], second.weight.shape[0], 0)
    with torch.no_grad():
        whole[0].weight.copy_(first.weight / deviation)
        whole[0].bias.copy_(first.bias - (first.weight / deviation) @ mean)
        whole[2].load_state_dict(second.state_dict())
    return whole


class _Read(Exception):
    """The layers behind the one that is read need not run."""


def hidden_rows(model: PreTrainedModel, ids: torch.Tensor, layer: int) -> torch.Tensor:
    """Of a decoder: hidden states after `layer` layers, before the last norm. Of a model with an encoder:
    what that says of its source. [batch, length, hidden]"""
    if model.config.is_encoder_decoder:
        return model.get_encoder()(input_ids=ids).last_hidden_state
    caught = []

    def catch(module, inputs, output):
        caught.append(output[0] if isinstance(output, tuple) else output)
        raise _Read

    body = model.base_model
    layers = body.h if hasattr(body, "h") else body.layers
    hook = layers[layer - 1].register_forward_hook(catch)
    try:
        body(input_ids=ids, use_cache=False)
    except _Read:
        pass
    finally:
        hook.remove()
    return caught[0]


def fused_rows(
    embedded: torch.Tensor, projected: torch.Tensor, prompt: torch.Tensor, fusion: str
) -> torch.Tensor:
    """Inputs of a model, [batch, length, hidden]: `embedded` are those of its tokens, of which the first
    `prompt` [batch] of each text meet `projected` [batch, rows, hidden]."""
    rows = projected.shape[1]
    is_prompt = (torch.arange(rows) < prompt[:, None]).unsqueeze(-1)
    kept = embedded[:, :rows] if fusion == "add" else torch.zeros_like(projected)
    fused = torch.where(is_prompt, kept + projected, embedded[:, :rows])
    return torch.cat([fused, embedded[:, rows:]], 1)


def fused_logits(
    small: PreTrainedModel,
    projected: torch.Tensor,
    ids: torch.Tensor,
    prompt: torch.Tensor,
    fusion: str,
    says: torch.Tensor | None = None,
) -> torch.Tensor:
    """Logits of a decoder, [batch, length, vocabulary], of the text `ids`; or, of the rows `says`
    [batch, length] alone, [rows, vocabulary].

    projected: [batch, rows, small's hidden], of the prompt's rows. prompt: [batch] tokens of each.
    """
    inputs = fused_rows(small.get_input_embeddings()(ids), projected, prompt, fusion)
    if says is None:
        return small(inputs_embeds=inputs, use_cache=False).logits
    return head_logits(small, says, inputs_embeds=inputs)


def head_logits(model: PreTrainedModel, says: torch.Tensor, **inputs) -> torch.Tensor:
    """Logits of some rows of a decoder, [rows, vocabulary]; the others cost no output matrix."""
    hidden = model.base_model(**inputs, use_cache=False).last_hidden_state
    return model.get_output_embeddings()(hidden[says])


def fused_memory_logits(
    small: PreTrainedModel,
    projected: torch.Tensor,
    source: torch.Tensor,
    ids: torch.Tensor,
    fusion: str,
) -> torch.Tensor:
    """Logits of a model with an encoder, whose encoder is fed: [batch, length, vocabulary] of `ids`, the
    start token first. projected: [batch, rows, hidden] for source [batch, rows], which is whole."""
    whole = torch.full((len(source),), source.shape[1])
    inputs = fused_rows(small.get_input_embeddings()(source), projected, whole, fusion)
    return small(inputs_embeds=inputs, decoder_input_ids=ids, use_cache=False).logits


def _byte_characters() -> dict[str, bytes]:
    """Byte-level vocabularies' characters: the printable ones stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    codes = dict(zip(printable, printable, strict=True)) | {
        b: 256 + i for i, b in enumerate(others)
    }
    return {chr(code): bytes([byte]) for byte, code in codes.items()}


class Pieces:
    """What each token adds to a text, as the server has it (Tokenizer::token_bytes)."""

    BYTES, BLANK = _byte_characters(), "\u2581"
    SENTENCE_PIECE = {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.added = tokenizer.get_added_tokens_decoder()
        decoder = tokenizer.decoder and json.loads(tokenizer.decoder.__getstate__())
        parts = decoder.get("decoders", [decoder]) if decoder else []
        names = [part["type"] for part in parts]
        self.byte_level = names == ["ByteLevel"]
        if not self.byte_level and not (names and self.SENTENCE_PIECE.issuperset(names)):
            raise SystemExit(
                f"the tokenizer's decoder: {', '.join(names) or 'none'}; allowed where the models have "
                f"different tokens: ByteLevel, or SentencePiece's {', '.join(sorted(self.SENTENCE_PIECE))}"
            )

    def is_special(self, token: int) -> bool:
        return token in self.added and self.added[token].special

    def bytes_of(self, token: int) -> bytes:
        text = self.tokenizer.id_to_token(token) or ""
        if token in self.added:
            return text.encode()
        if self.byte_level:
            return b"".join(self.BYTES.get(c) or c.encode() for c in text)
        if re.fullmatch("<0x[0-9A-F]{2}>", text):
            return bytes([int(text[3:5], 16)])
        return text.replace(self.BLANK, " ").encode()

    def ends(self, ids: list[int], text: str) -> list[int]:
        return piece_ends([(self.bytes_of(i), self.is_special(i)) for i in ids], text.encode())


def piece_ends(pieces: list[tuple[bytes, bool]], text: bytes) -> list[int]:
    """Where in `text` each token ends, by its bytes and whether it is a special one. As the server's
    (engine/host/models/alignment.cpp): what the text lacks, a blank before it or a special token, has no bytes."""
    ends, end = [], 0
    for piece, special in pieces:
        rest, word = text[end:], piece.removeprefix(b" ")
        behind = rest.lstrip(b" \t\r\n")
        if rest.startswith(piece):
            end += len(piece)
        elif behind.startswith(word):
            end += len(rest) - len(behind) + len(word)
        elif not special:
            end += len(piece)
        ends.append(end)
    return ends


def aligned_rows(large: list[int], small: list[int]) -> np.ndarray:
    """Of each token of one cut of a text, which token of another has its last byte. large, small: where
    each token ends; last ends that differ are scaled."""
    ends = np.array(small) * max(1, large[-1])
    rows = np.searchsorted(np.array(large) * max(1, small[-1]), ends)
    return np.minimum(rows, len(large) - 1)
