"""Adds to the golden decoders what Transformers' beam search makes of their prompts: beams.safetensors.

    python tests/engine/backend/torch/make_beam_goldens.py [--out tests/data/golden_models] [NAME ...]

The prompts are those of golden.safetensors, the search has 4 beams and length penalty 0.6; encoder-decoders
have theirs from make_encoder_decoder_goldens.py. A search whose two best hypotheses are too close for
float32 would be refused: the models' seeds are such that there is none.
"""

import json

import torch
import transformers
from make_encoder_decoder_goldens import BEAM_TOKENS, MIN_BEAM_MARGIN, best_beam
from make_goldens import MODELS, run
from safetensors.torch import load_file, save_file


@torch.inference_mode()
def search(model, prompt):
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
    return best_beam(out, len(prompt), model.config.eos_token_id)


def make_beams(name, _, root):
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


if __name__ == "__main__":
    run(__doc__, MODELS, make_beams)
