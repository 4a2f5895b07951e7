"""Shapes of the two demo models, and new models of a shape."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT_LENGTH = 1024


def llama(hidden: int, layers: int, heads: int, key_value_heads: int, inner: int, vocabulary: int):
    """A Llama configuration with tied embeddings; END_OF_TEXT is id 0 and begins and ends text."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        max_position_embeddings=CONTEXT_LENGTH,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )


# A pass of `small` costs less than a sixth of a pass of `large` in multiplications, and as it has a
# quarter of the layers also in the fixed costs per layer.
SHAPES = {
    "large": dict(hidden=320, layers=8, heads=5, key_value_heads=1, inner=864),
    "small": dict(hidden=160, layers=2, heads=5, key_value_heads=1, inner=448),
}


def new_model(config: LlamaConfig, seed: int) -> LlamaForCausalLM:
    """Random weights; matrices that write into the residual stream start small, by its depth."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            for matrix in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
                matrix.mul_((2 * config.num_hidden_layers) ** -0.5)
    return model


def multiplications_per_token(config: LlamaConfig, context: int) -> int:
    """Multiply-adds of one decoding pass over one row that sees `context` tokens, head included."""
    head_size = config.hidden_size // config.num_attention_heads
    queries = config.num_attention_heads * head_size
    keys = config.num_key_value_heads * head_size
    layer = config.hidden_size * (2 * queries + 2 * keys + 3 * config.intermediate_size)
    attention = 2 * queries * context
    return config.num_hidden_layers * (layer + attention) + config.hidden_size * config.vocab_size
