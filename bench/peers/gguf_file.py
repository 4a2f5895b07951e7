"""Writes a Llama checkpoint of Hugging Face as a GGUF file, so that llama.cpp runs the same weights.

The file has no vocabulary, as the benchmarks use token ids, and only the metadata that llama.cpp needs.
"""

from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM

TYPES = {
    "F32": gguf.GGMLQuantizationType.F32,
    "F16": gguf.GGMLQuantizationType.F16,
    "BF16": gguf.GGMLQuantizationType.BF16,
    "Q8_0": gguf.GGMLQuantizationType.Q8_0,
}


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorders rows of a query or key projection for llama.cpp's rotary embedding.

    Hugging Face rotates dimension i with i + half, llama.cpp 2i with 2i + 1. weight: [heads * dim,
    hidden].
    """
    rows, hidden = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, hidden)
    return halves.swapaxes(1, 2).reshape(rows, hidden)


def write(source: Path, target: Path, kind: str) -> None:
    """Writes the checkpoint in `source` with matrices of type `kind` (TYPES); norms stay float32."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    c = model.config
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    heads, kv_heads = c.num_attention_heads, c.num_key_value_heads
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // heads
    out = gguf.GGUFWriter(target, "llama")
    out.add_context_length(c.max_position_embeddings)
    out.add_embedding_length(c.hidden_size)
    out.add_block_count(c.num_hidden_layers)
    out.add_feed_forward_length(c.intermediate_size)
    out.add_head_count(heads)
    out.add_head_count_kv(kv_heads)
    out.add_key_length(head_dim)
    out.add_value_length(head_dim)
    out.add_rope_dimension_count(head_dim)
    out.add_rope_freq_base(c.rope_parameters["rope_theta"])
    out.add_layer_norm_rms_eps(c.rms_norm_eps)
    out.add_vocab_size(c.vocab_size)
    out.add_tokenizer_model("no_vocab")

    def matrix(name: str, value: np.ndarray) -> None:
        # Widths that are no multiple of Q8_0's block of 32 are not quantized.
        use = TYPES[kind] if kind != "Q8_0" or value.shape[1] % 32 == 0 else TYPES["F16"]
        out.add_tensor(name, gguf.quants.quantize(value, use), raw_dtype=use)

    matrix("token_embd.weight", weights["model.embed_tokens.weight"])
    out.add_tensor("output_norm.weight", weights["model.norm.weight"])
    matrix("output.weight", weights["lm_head.weight"])
    for i in range(c.num_hidden_layers):
        layer, block = f"model.layers.{i}.", f"blk.{i}."
        out.add_tensor(block + "attn_norm.weight", weights[layer + "input_layernorm.weight"])
        out.add_tensor(
            block + "ffn_norm.weight", weights[layer + "post_attention_layernorm.weight"]
        )
        attention, mlp = layer + "self_attn.", layer + "mlp."
        matrix(block + "attn_q.weight", interleaved(weights[attention + "q_proj.weight"], heads))
        matrix(block + "attn_k.weight", interleaved(weights[attention + "k_proj.weight"], kv_heads))
        matrix(block + "attn_v.weight", weights[attention + "v_proj.weight"])
        matrix(block + "attn_output.weight", weights[attention + "o_proj.weight"])
        matrix(block + "ffn_gate.weight", weights[mlp + "gate_proj.weight"])
        matrix(block + "ffn_up.weight", weights[mlp + "up_proj.weight"])
        matrix(block + "ffn_down.weight", weights[mlp + "down_proj.weight"])
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
