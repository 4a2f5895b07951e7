"""Shapes of the encoder-decoder demo models, and new models of a shape."""

import torch
from transformers import T5Config, T5ForConditionalGeneration


def t5(hidden: int, encoder: int, decoder: int, heads: int, inner: int, vocabulary: int):
    """A T5 1.0 configuration: padding, which also starts the decoder, is id 0, the end id 1."""
    return T5Config(
        vocab_size=vocabulary,
        d_model=hidden,
        d_kv=hidden // heads,
        d_ff=inner,
        num_layers=encoder,
        num_decoder_layers=decoder,
        num_heads=heads,
        feed_forward_proj="relu",
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )


EMBEDDING_STD = 0.25

# As many layers in both halves: Transformers 5.23 makes a decoder's cache by the encoder's number.
SHAPES = {
    "large": dict(hidden=192, encoder=4, decoder=4, heads=3, inner=768),
    "small": dict(hidden=96, encoder=1, decoder=1, heads=3, inner=384),
}


def new_model(config: T5Config, seed: int) -> T5ForConditionalGeneration:
    """Random weights; matrices that write into the residual stream start small, by its depth, and so
    does the embedding, which would say at first that each token follows itself."""
    torch.manual_seed(seed)
    model = T5ForConditionalGeneration(config)
    with torch.no_grad():
        model.shared.weight.mul_(EMBEDDING_STD)
        for stack, branches in ((model.encoder, 2), (model.decoder, 3)):
            for name, parameter in stack.named_parameters():
                if name.endswith(("Attention.o.weight", "DenseReluDense.wo.weight")):
                    parameter.mul_((branches * len(stack.block)) ** -0.5)
    return model


def multiplications_per_token(config: T5Config, source: int, target: int) -> int:
    """Multiply-adds of one decoding pass over one row that sees `target` rows and `source` of the
    memory, head included."""
    inner = config.num_heads * config.d_kv
    layer = 6 * config.d_model * inner + 2 * config.d_model * config.d_ff
    attention = 2 * inner * (source + target)
    return config.num_decoder_layers * (layer + attention) + config.d_model * config.vocab_size
