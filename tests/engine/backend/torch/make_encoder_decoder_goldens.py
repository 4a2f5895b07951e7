"""Makes the golden encoder-decoders: tiny random checkpoints and what Transformers computes with them.

    python tests/engine/backend/torch/make_encoder_decoder_goldens.py [--out FOLDER] [NAME ...]

As make_goldens.py does for decoders; prompts are sources here, and tokens those of the decoder. Besides
greedy tokens there is the best of 4 beams (length penalty 0.6), of a search with a gap between its two best.
"""

import json
import shutil

import torch
import transformers
from make_goldens import PROMPT_LENGTHS, margin, run, write

NEW_TOKENS = 40
BEAM_TOKENS = 24
STEP_LOGITS = [0, 3, 5, 9, 14, 19]
MIN_MARGIN = 2e-3  # of greedy tokens' logits
MIN_BEAM_MARGIN = 1e-4  # between the scores of the best two
MAX_ERROR = 1.5e-5

COMMON = dict(d_model=32, d_kv=8, d_ff=56, num_heads=4, decoder_start_token_id=0, pad_token_id=0)

MODELS = {
    # The first T5: plain ReLU, one matrix for embeddings and head, whose inputs are scaled; float32.
    "t5": dict(
        seed=113,
        std=0.22,
        embedding_std=0.5,
        dtype=torch.float32,
        config=transformers.T5Config(
            vocab_size=96,
            num_layers=3,
            num_decoder_layers=2,
            relative_attention_num_buckets=16,
            relative_attention_max_distance=40,
            **COMMON,
        ),
    ),
    # T5 v1.1 and Flan-T5: gated GELU by tanh, own head matrix, inner width other than the model's, the
    # buckets that real models have; bfloat16, config.json in the spelling of Transformers 4.
    "t5_v1_1": dict(
        seed=103,
        std=0.16,
        embedding_std=1.0,
        head_std=0.2,
        dtype=torch.bfloat16,
        config=transformers.T5Config(
            vocab_size=112,
            num_layers=2,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
            **(COMMON | dict(d_kv=12)),
        ),
    ),
    # mT5: as v1.1; float16.
    "mt5": dict(
        seed=107,
        std=0.16,
        embedding_std=1.0,
        head_std=0.2,
        dtype=torch.float16,
        config=transformers.MT5Config(vocab_size=128, num_layers=2, **COMMON),
    ),
}


def make_model(spec):
    torch.manual_seed(spec["seed"])
    model = transformers.AutoModelForSeq2SeqLM.from_config(spec["config"], dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("norm.weight"):
                p.uniform_(0.5, 1.5)
            elif name.endswith("relative_attention_bias.weight"):
                p.normal_(0, 1)
            elif name == "shared.weight":
                p.normal_(0, spec["embedding_std"])
            else:
                p.normal_(0, spec["std"])
        if "head_std" not in spec:  # a head that is the embedding would repeat what it reads
            signs = torch.randint(0, 2, [spec["config"].d_model]) * 2 - 1
            model.decoder.final_layer_norm.weight.mul_(signs)
        if "head_std" in spec:
            head = torch.empty_like(model.lm_head.weight).normal_(0, spec["head_std"])
            model.lm_head.weight = torch.nn.Parameter(head)
    return model.to(spec["dtype"])


def save(model, spec, folder):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    if "head_std" in spec:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        config["tie_word_embeddings"] = False
        config.pop("scale_decoder_outputs", None)
        config["torch_dtype"] = config.pop("dtype")
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


@torch.inference_mode()
def decode(model, source, steps):
    """Greedy tokens [steps], and the logits of each [steps, vocab]."""
    memory = model.encoder(torch.tensor([source]))
    last, past = model.config.decoder_start_token_id, None
    rows, tokens = [], []
    while len(tokens) < steps:
        out = model(
            encoder_outputs=memory,
            decoder_input_ids=torch.tensor([[last]]),
            past_key_values=past,
            use_cache=True,
        )
        past = out.past_key_values
        rows.append(out.logits[0, -1].float())
        last = int(rows[-1].argmax())
        tokens.append(last)
    return tokens, torch.stack(rows)


def best_beam(out, begin, eos):
    """Tokens of the best beam, without what ended them, and how far the second is behind."""
    tokens = out.sequences[0, begin:].tolist()
    if eos in tokens:
        tokens = tokens[: tokens.index(eos)]
    return tokens, float(out.sequences_scores[0] - out.sequences_scores[1])


@torch.inference_mode()
def search(model, source):
    """Tokens of the best beam, without what ended them, and how far the second is behind."""
    out = model.generate(
        torch.tensor([source]),
        attention_mask=torch.ones([1, len(source)], dtype=torch.long),
        num_beams=4,
        num_return_sequences=2,
        length_penalty=0.6,
        do_sample=False,
        max_new_tokens=BEAM_TOKENS,
        return_dict_in_generate=True,
        output_scores=True,
    )
    return best_beam(out, 1, model.config.eos_token_id)


def make_goldens(name, spec, root):
    folder = root / name
    save(make_model(spec), spec, folder)
    load = transformers.AutoModelForSeq2SeqLM.from_pretrained
    model = load(folder, dtype=torch.float32, attn_implementation="eager").eval()
    exact = load(folder, dtype=torch.float64, attn_implementation="eager").eval()
    tied = model.lm_head.weight.data_ptr() == model.shared.weight.data_ptr()
    assert tied == ("head_std" not in spec), name

    generator = torch.Generator().manual_seed(1000 + spec["seed"])
    n, vocab = len(PROMPT_LENGTHS), spec["config"].vocab_size
    prompts = torch.full([n, max(PROMPT_LENGTHS)], -1, dtype=torch.int32)
    greedy = torch.empty([n, NEW_TOKENS], dtype=torch.int32)
    beams = torch.full([n, BEAM_TOKENS], -1, dtype=torch.int32)
    tensors, distinct, error, redrawn = {}, [], 0.0, 0
    for i, length in enumerate(PROMPT_LENGTHS):
        while True:
            source = torch.randint(2, vocab, [length], generator=generator).tolist()
            tokens, steps = decode(model, source, NEW_TOKENS)
            beam, gap = search(model, source)
            if margin(steps) > MIN_MARGIN and gap > MIN_BEAM_MARGIN:
                break
            redrawn += 1
        with torch.inference_mode():
            truth = exact(
                input_ids=torch.tensor([source]),
                decoder_input_ids=torch.tensor([[0] + tokens[:-1]]),
            ).logits[0]
        error = max(error, float((steps - truth).abs().max()))
        distinct.append(len(set(tokens)))
        prompts[i, :length] = torch.tensor(source, dtype=torch.int32)
        greedy[i] = torch.tensor(tokens, dtype=torch.int32)
        beams[i, : len(beam)] = torch.tensor(beam, dtype=torch.int32)
        if i in STEP_LOGITS:
            tensors[f"step_logits.{i}"] = steps.contiguous()
    assert error < MAX_ERROR, (name, error)
    mean_distinct = sum(distinct) / n
    assert mean_distinct > 10 and sum(d > 2 for d in distinct) > n - 2, (name, distinct)
    assert len({tuple(row.tolist()) for row in greedy}) > n - 2, name  # sources matter
    tensors |= dict(
        prompt_lengths=torch.tensor(PROMPT_LENGTHS, dtype=torch.int32),
        prompts=prompts,
        greedy=greedy,
        beams=beams,
    )
    notes = dict(
        transformers=transformers.__version__,
        torch=torch.__version__.split("+")[0],
        seed=str(spec["seed"]),
        largest_error=f"{error:.2g}",
    )
    write(tensors, notes, folder)
    ended = int((beams[:, -1] < 0).sum())
    print(
        f"{name}: {sum(p.numel() for p in model.parameters())} parameters, largest error {error:.1e}, "
        f"distinct tokens {min(distinct)}..{max(distinct)} (mean {mean_distinct:.1f}), {ended} beams that "
        f"end, {redrawn} sources drawn again"
    )


if __name__ == "__main__":
    run(__doc__, MODELS, make_goldens)
