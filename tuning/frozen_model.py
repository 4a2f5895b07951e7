"""A frozen model from a Hugging Face directory or a GGUF file, with its tokenizer."""

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
)


@dataclass(frozen=True)
class FrozenModel:
    """`model` in fp32 or another type; a GGUF file's tensors are dequantized.

    `ends`: tokens that end an answer.
    """

    model: PreTrainedModel
    tokenizer: Tokenizer
    ends: tuple[int, ...]

    @property
    def shape(self) -> dict[str, int]:
        return shape_of(self.model)


def shape_of(model: PreTrainedModel) -> dict[str, int]:
    """What an adapter's file says of its base model's shape."""
    config = model.config
    heads = config.num_attention_heads
    layers = config.num_hidden_layers
    if config.is_encoder_decoder:  # its decoder's
        layers = config.num_decoder_layers
    own_dim = getattr(config, "head_dim", None) or getattr(config, "d_kv", None)
    return {
        "vocab_size": model.get_input_embeddings().weight.shape[0],
        "hidden_size": config.hidden_size,
        "layers": layers,
        "heads": heads,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": own_dim or config.hidden_size // heads,
    }


def load_weights(path: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    if path.suffix == ".gguf":
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
    else:
        whole = AutoConfig.from_pretrained(path).is_encoder_decoder
        kind = AutoModelForSeq2SeqLM if whole else AutoModelForCausalLM
        model = kind.from_pretrained(path, dtype=dtype)
    read_last_rows_in_place(model)
    return model.requires_grad_(False).eval()


def read_last_rows_in_place(model: PreTrainedModel) -> None:
    """The last row of each text is a view with gaps, for which PyTorch copies the output matrix once
    for each text: 64 texts of a vocabulary of 152k tokens took 17 GB."""
    model.get_output_embeddings().register_forward_pre_hook(
        lambda _, inputs: tuple(part.contiguous() for part in inputs)
    )


def load(path: Path, dtype: torch.dtype = torch.float32) -> FrozenModel:
    model, tokenizer = load_weights(path, dtype), load_tokenizer(path)
    return FrozenModel(model, tokenizer, ends_of(model))


def ends_of(model: PreTrainedModel) -> tuple[int, ...]:
    ends = model.generation_config.eos_token_id
    if ends is None:
        ends = model.config.eos_token_id
    return tuple(ends) if isinstance(ends, list) else (int(ends),)


def load_tokenizer(path: Path) -> Tokenizer:
    if path.suffix == ".gguf":
        return gguf_tokenizer(path)
    return Tokenizer.from_file(str(path / "tokenizer.json"))


def layer_matrices(model: PreTrainedModel) -> dict[str, torch.nn.Linear]:
    """The matrices of the layers by name, in order: all but the head."""
    parts = model.model.layers.named_modules(prefix="model.layers")
    return {name: part for name, part in parts if isinstance(part, torch.nn.Linear)}


def tensors_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The tensors by name; a tied output matrix and an encoder's or decoder's copies of the embedding are
    left out."""
    tensors = dict(model.state_dict())
    for copy in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        tensors.pop(copy, None)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head.weight.data_ptr() == embedding.weight.data_ptr():
        tensors.pop("lm_head.weight", None)
    return tensors


def gguf_tokenizer(path: Path) -> Tokenizer:
    """Transformers' conversion, with what it leaves out: Qwen 2's NFC, SmolLM2's single digits."""
    import gguf
    from transformers.integrations.gguf.gguf_tokenizer_mapping import (
        GGUF_TOKENIZER_MAPPING,
        convert_gguf_tokenizer,
    )

    fields = {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}
    known = {
        name: fields[f"tokenizer.{key}"]
        for key, name in GGUF_TOKENIZER_MAPPING["tokenizer"].items()
        if f"tokenizer.{key}" in fields
    }
    tokenizer, _ = convert_gguf_tokenizer(fields["general.architecture"], known)
    if known["pre_tokenizer_type"] == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    if known["pre_tokenizer_type"] == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return tokenizer
