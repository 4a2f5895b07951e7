"""LLM-to-SLM's forward pass (arXiv 2402.16844, METHODS section 5), without a server: what a large model's
rows of a prompt are, which of them stands beside each row of the small model's prompt, and what the small
model says when they are added to its inputs or put in their place.
"""

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


def piece_bytes(tokenizer: Tokenizer, ids: list[int]) -> np.ndarray:
    """Bytes of text that each token of a byte-level tokenizer stands for; of a special one, none."""
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return np.array([0 if i in special else len(tokenizer.id_to_token(i)) for i in ids])


def aligned_rows(large: np.ndarray, small: np.ndarray) -> np.ndarray:
    """Of each token of one cut of a text, which token of another has its last byte. large, small: bytes of each token; totals that differ are scaled."""
    large_ends, small_ends = np.cumsum(large), np.cumsum(small)
    ends = small_ends * max(1, int(large_ends[-1]))
    rows = np.searchsorted(large_ends * max(1, int(small_ends[-1])), ends)
    return np.minimum(rows, len(large) - 1)
