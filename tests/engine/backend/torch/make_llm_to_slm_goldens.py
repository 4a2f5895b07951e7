"""Makes tests/data/llm_to_slm: projectors between golden models, and what PyTorch computes with them.

    python tests/engine/backend/torch/make_llm_to_slm_goldens.py [--out tests/data/llm_to_slm] [NAME ...]

Each folder is an adapter of its pair's small model for rows of its large one (tests/data/golden_models),
with golden.safetensors beside it: `prompt_lengths` [prompts], `prompts` [prompts, longest], `greedy`
[prompts, new tokens] in fp64, and `logits` [prompts, new tokens, vocabulary] in fp32 of the rows that say
them. With `replace` the prompts are the large model's alone: the small one does not know all of their ids.
Where rows are aligned, `read_lengths` and `read` are what the large model reads in place of the prompts,
and `beside` [prompts, longest] which row of that each token is fed with.
"""

import argparse
import pathlib

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from tuning import fusion, projector_file

MODELS = pathlib.Path(__file__).resolve().parents[3] / "data/golden_models"
MIN_MARGIN = 2e-3  # between the two largest logits, at every generated token
DECODERS = dict(large="llama3", small="mistral", lengths=[1, 2, 5, 17, 33, 48], new_tokens=24)
ENCODERS = dict(large="t5_v1_1", small="t5", lengths=[1, 5, 17, 33], new_tokens=16)
MIXED = ENCODERS | dict(small="gpt2")
ADD, REPLACE = dict(fusion="add", tokens="shared"), dict(fusion="replace", tokens="source")
PAIRS = {
    "add": DECODERS | ADD | dict(layer=2, seed=11),
    "replace": DECODERS | REPLACE | dict(layer=3, seed=12),
    "aligned": DECODERS | dict(fusion="add", tokens="aligned", layer=2, seed=17),
    "aligned_replace": DECODERS | dict(fusion="replace", tokens="aligned", layer=2, seed=18),
    "t5_add": ENCODERS | ADD | dict(seed=13),
    "t5_replace": ENCODERS | dict(fusion="replace", tokens="shared", seed=19),
    "mt5_replace": ENCODERS | REPLACE | dict(small="mt5", seed=14),
    "gpt2_add": MIXED | ADD | dict(seed=15),
    "gpt2_replace": MIXED | REPLACE | dict(seed=16),
}


def load(name, dtype):
    kind = AutoModelForSeq2SeqLM if "t5" in name else AutoModelForCausalLM
    model = kind.from_pretrained(MODELS / name, dtype=dtype, attn_implementation="eager")
    return model.requires_grad_(False).eval()


def written(large, small, projector, prompt, read, beside, pair):
    """Greedy tokens, and the logits [new tokens, vocabulary] that said them."""
    text, said = [], []
    layer = pair.get("layer", large.config.num_hidden_layers)
    rows = projector(fusion.hidden_rows(large, read[None], layer)[:, beside])
    known = prompt if pair["fusion"] == "add" else torch.zeros_like(prompt)
    for _ in range(pair["new_tokens"]):
        if small.config.is_encoder_decoder:
            ids = torch.tensor([[small.config.decoder_start_token_id, *text]])
            logits = fusion.fused_memory_logits(small, rows, known[None], ids, pair["fusion"])
        else:
            ids = torch.cat([known, torch.tensor(text, dtype=torch.long)])[None]
            length = torch.tensor([len(prompt)])
            logits = fusion.fused_logits(small, rows, ids, length, pair["fusion"])
        said.append(logits[0, -1])
        text.append(int(said[-1].argmax()))
    return text, torch.stack(said)


def projector_of(pair, large, small):
    torch.manual_seed(pair["seed"])
    sizes = large.config.hidden_size, small.config.hidden_size
    projector = fusion.new_projector(*sizes, pair["seed"])
    scale = small.get_input_embeddings().weight.std()
    torch.nn.init.normal_(projector[2].weight, std=float(scale) * 0.5)
    torch.nn.init.normal_(projector[2].bias, std=float(scale) * 0.1)
    return projector.requires_grad_(False)


def drawn(length, vocabulary, large, pair, random):
    """A prompt, what is read of it, and which row of that goes to which token."""
    prompt = torch.randint(3, vocabulary, (length,), generator=random)
    if pair["tokens"] != "aligned":
        return prompt, prompt, torch.arange(length)
    rows = 1 + int(torch.randint(2 * length, (), generator=random))
    read = torch.randint(3, large.config.vocab_size, (rows,), generator=random)
    return prompt, read, torch.randint(rows, (length,), generator=random).sort().values


def padded(rows):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).int()


def make(name, pair, out):
    single, double = (
        (load(pair["large"], dtype), load(pair["small"], dtype))
        for dtype in (torch.float32, torch.float64)
    )
    large, small = single
    projector = projector_of(pair, large, small)
    layer = pair.get("layer", large.config.num_hidden_layers)
    source = projector_file.source_of(large)
    projector_file.save(out, projector, source, small, layer, pair["fusion"], pair["tokens"])
    known = (large,) if pair["tokens"] == "source" else (small,)
    known += (large,) if pair["tokens"] == "shared" else ()
    vocabulary = min(model.config.vocab_size for model in known)
    random = torch.Generator().manual_seed(pair["seed"])
    lengths = pair["lengths"]
    texts, greedy, logits = [], [], []
    for length in lengths:
        while True:
            text = drawn(length, vocabulary, large, pair, random)
            tokens, exact = written(*double, projector.double(), *text, pair)
            best = exact.topk(2).values
            if (best[:, 0] - best[:, 1]).min() >= MIN_MARGIN:
                break
        _, said = written(*single, projector.float(), *text, pair)
        texts.append(text)
        greedy.append(tokens)
        logits.append(said)
    assert len({tuple(tokens) for tokens in greedy}) > len(lengths) - 2, name  # prompts matter
    prompts, read, beside = zip(*texts, strict=True)
    tensors = {
        "prompt_lengths": torch.tensor(lengths, dtype=torch.int32),
        "prompts": padded(prompts),
        "greedy": torch.tensor(greedy, dtype=torch.int32),
        "logits": torch.stack(logits),
    }
    if pair["tokens"] == "aligned":
        tensors["read_lengths"] = torch.tensor([len(r) for r in read], dtype=torch.int32)
        tensors |= {"read": padded(read), "beside": padded(beside)}
    save_file(tensors, out / "golden.safetensors")
    (out / "golden.safetensors").chmod(0o644)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=MODELS.parent / "llm_to_slm")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PAIRS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.names or PAIRS:
        make(name, PAIRS[name], arguments.out / name)


if __name__ == "__main__":
    main()
