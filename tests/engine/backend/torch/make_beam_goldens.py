"""Adds to the golden decoders what Transformers' beam search makes of their prompts: beams.safetensors.

    python tests/engine/backend/torch/make_beam_goldens.py [--out tests/data/golden_models] [NAME ...]

The prompts are those of golden.safetensors, the search has 4 beams and length penalty 0.6; encoder-decoders
have theirs from make_encoder_decoder_goldens.py. A search whose two best hypotheses are too close for
float32 would be refused: the models' seeds are such that there is none.
"""

import argparse
import json
import pathlib

import torch
import transformers
from make_encoder_decoder_goldens import BEAM_TOKENS, MIN_BEAM_MARGIN
from make_goldens import MODELS
from safetensors.torch import load_file, save_file


@torch.inference_mode()
def search(model, prompt):
    """Tokens of the best beam, without what ended them, and how far the second is behind."""
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones([1, len(prompt)], dtype=torch.long),
        num_beams=4,
        num_return_sequences=2,
        length_penalty=0.6,
        do_sample=False,
        max_new_tokens=BEAM_TOKENS,
        pad_token_id=model.config.eos_token_id,
        return_dict_in_generate=True,
        output_scores=True,
    )
    tokens = out.sequences[0, len(prompt) :].tolist()
    eos = model.config.eos_token_id
    if eos in tokens:
        tokens = tokens[: tokens.index(eos)]
    return tokens, float(out.sequences_scores[0] - out.sequences_scores[1])


def make_beams(name, root):
    folder = root / name
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    golden = load_file(folder / "golden.safetensors")
    lengths = golden["prompt_lengths"].tolist()
    beams = torch.full([len(lengths), BEAM_TOKENS], -1, dtype=torch.int32)
    greedy, least = 0, float("inf")
    for i, (row, length) in enumerate(zip(golden["prompts"].tolist(), lengths, strict=True)):
        tokens, gap = search(model, row[:length])
        assert gap > MIN_BEAM_MARGIN, (name, i, gap)
        beams[i, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        greedy += tokens == golden["greedy"][i, : len(tokens)].tolist()
        least = min(least, gap)
    assert greedy < len(lengths) // 2, (name, greedy)  # a search finds better text
    notes = dict(transformers=transformers.__version__, smallest_margin=f"{least:.4g}")
    save_file(dict(beams=beams), folder / "beams.safetensors", dict(notes=json.dumps(notes)))
    (folder / "beams.safetensors").chmod(0o644)
    ended = int((beams[:, -1] < 0).sum())
    print(
        f"{name}: {ended} beams that end, {greedy} as greedy text, smallest gap of the best two {least:.4f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = pathlib.Path(__file__).resolve().parents[4] / "tests" / "data" / "golden_models"
    parser.add_argument("--out", type=pathlib.Path, default=default)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in args.names or MODELS:
        make_beams(name, args.out)


if __name__ == "__main__":
    main()
