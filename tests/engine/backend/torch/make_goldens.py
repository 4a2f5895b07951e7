"""Makes the golden models: tiny random checkpoints and what Transformers computes with them.

    python tests/engine/backend/torch/make_goldens.py [--out tests/data/golden_models] [NAME ...]

Each model is saved as a Hugging Face directory, loaded again as a user would load it, and run in
float32 on the CPU with eager attention. `golden.safetensors` beside the weights holds prompts, greedy
tokens and logits (tests/data/golden_models/README.md has the format). Everything follows from the
seeds below; prompts whose greedy text would hang on a near tie are drawn again, so that equal tokens
can be asked for strictly. Needs torch, transformers and safetensors.
"""

import argparse
import json
import pathlib
import re
import shutil

import torch
import transformers
from safetensors.torch import save_file

PROMPT_LENGTHS = [1, 2, 3, 5, 7, 8, 11, 15, 16, 17, 20, 24, 31, 33, 40, 48, 57, 64, 80, 100]
NEW_TOKENS = 64
FULL_LOGITS = [3, 9, 14]  # prompts with logits at every position, to 40
STEP_LOGITS = {5: 32, 19: 64}  # prompts with logits of so many generated tokens: past all windows
MIN_MARGIN = 2e-3  # between the two largest logits, at every generated token
MAX_ERROR = 1.5e-5  # of these float32 logits against float64 linear layers and attention


def layers_of(*kinds):
    return [f"{kind}_attention" for kind in kinds]


COMMON = dict(
    hidden_act="silu",
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_id=2,
)

FALCON = dict(
    vocab_size=144,
    hidden_size=48,
    num_attention_heads=4,
    ffn_hidden_size=120,
    max_position_embeddings=256,
    bos_token_id=1,
    eos_token_id=2,
)

MODELS = {
    # All heads, own head matrix; one float32 file.
    "llama2": dict(
        seed=2,
        std=0.2,
        embedding_std=0.4,
        dtype=torch.float32,
        config=transformers.LlamaConfig(
            vocab_size=160,
            hidden_size=32,
            intermediate_size=72,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            tie_word_embeddings=False,
            **COMMON,
        ),
    ),
    # Grouped queries, rotary scaling with one frequency in each of its three bands; bfloat16 in
    # shards; config.json in the spelling of Transformers 4.
    "llama3": dict(
        seed=3,
        std=0.16,
        embedding_std=0.4,
        dtype=torch.bfloat16,
        shard="90KB",
        old_spelling=True,
        off=dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        config=transformers.LlamaConfig(
            vocab_size=200,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=False,
            rope_parameters=dict(
                rope_type="llama3",
                rope_theta=10000.0,
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
            **COMMON,
        ),
    ),
    # Biases, tied head; float16.
    "qwen2": dict(
        seed=5,
        std=0.17,
        embedding_std=0.15,
        dtype=torch.float16,
        config=transformers.Qwen2Config(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
            **COMMON,
        ),
    ),
    # A window shorter than most prompts, heads wider than the hidden size; float32.
    "mistral": dict(
        seed=7,
        std=0.2,
        embedding_std=0.4,
        dtype=torch.float32,
        off=dict(sliding_window=None),
        config=transformers.MistralConfig(
            vocab_size=128,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            sliding_window=16,
            tie_word_embeddings=False,
            **COMMON,
        ),
    ),
    # Norms of each query's and key's head; heads wider than the hidden size; bfloat16.
    "qwen3": dict(
        seed=11,
        std=0.2,
        embedding_std=0.1,
        dtype=torch.bfloat16,
        config=transformers.Qwen3Config(
            vocab_size=192,
            hidden_size=48,
            intermediate_size=80,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=24,
            tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
            **COMMON,
        ),
    ),
    # Windows in two of three layers, a rotary base for each kind, of which one is stretched; norms
    # with 1 + weight on both sides; bfloat16.
    "gemma3": dict(
        seed=13,
        std=0.25,
        embedding_std=0.02,
        norm=(0, 1),
        dtype=torch.bfloat16,
        off=dict(sliding_window=256),
        config=transformers.Gemma3TextConfig(
            vocab_size=144,
            hidden_size=40,
            intermediate_size=64,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=16,
            query_pre_attn_scalar=24,
            sliding_window=12,
            layer_types=layers_of("sliding", "sliding", "full", "sliding", "sliding", "full"),
            rope_parameters=dict(
                sliding_attention=dict(rope_type="default", rope_theta=10000.0),
                full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000000.0),
            ),
            **{k: v for k, v in COMMON.items() if k != "hidden_act"},
        ),
    ),
    # Learned positions, layer norms, biases, matrices that lie as [in, out]; float16.
    "gpt2": dict(
        seed=17,
        std=0.2,
        embedding_std=0.3,
        dtype=torch.float16,
        config=transformers.GPT2Config(
            vocab_size=176,
            n_positions=192,
            n_embd=48,
            n_layer=3,
            n_head=4,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    # Queries, keys and values in one matrix, gate and up in another, a window; float32.
    "phi3": dict(
        seed=19,
        std=0.2,
        embedding_std=0.4,
        dtype=torch.float32,
        off=dict(sliding_window=None),
        config=transformers.Phi3Config(
            vocab_size=136,
            hidden_size=32,
            intermediate_size=56,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            sliding_window=24,
            pad_token_id=0,
            **COMMON,
        ),
    ),
    # As Falcon 7B: attention and MLP side by side after one norm, one key head; bfloat16.
    "falcon": dict(
        seed=23,
        std=0.3,
        embedding_std=0.1,
        dtype=torch.bfloat16,
        config=transformers.FalconConfig(
            num_hidden_layers=3,
            multi_query=True,
            parallel_attn=True,
            **FALCON,
        ),
    ),
    # As Falcon 40B: heads in groups, of which each has its queries, key and value together, and a
    # norm for attention and one for the MLP; float32.
    "falcon_groups": dict(
        seed=51,
        std=0.25,
        embedding_std=0.4,
        dtype=torch.float32,
        config=transformers.FalconConfig(
            num_hidden_layers=3,
            num_kv_heads=2,
            new_decoder_architecture=True,
            tie_word_embeddings=False,
            **FALCON,
        ),
    ),
    # As Falcon 11B: groups, but one norm for both; float16.
    "falcon_one_norm": dict(
        seed=68,
        std=0.26,
        embedding_std=0.4,
        dtype=torch.float16,
        config=transformers.FalconConfig(
            num_hidden_layers=3,
            num_kv_heads=2,
            new_decoder_architecture=True,
            tie_word_embeddings=False,
            num_ln_in_parallel_attn=1,
            **FALCON,
        ),
    ),
    # As Falcon RW would be without ALiBi: one branch after the other, biases, a key for each head
    # beside its query; float16.
    "falcon_serial": dict(
        seed=37,
        std=0.22,
        embedding_std=0.4,
        dtype=torch.float16,
        config=transformers.FalconConfig(
            num_hidden_layers=3,
            multi_query=False,
            parallel_attn=False,
            bias=True,
            tie_word_embeddings=False,
            **FALCON,
        ),
    ),
    # Layer norms, biases everywhere, a plain MLP, a window, tied head; float32.
    "starcoder2": dict(
        seed=71,
        std=0.3,
        embedding_std=0.1,
        dtype=torch.float32,
        off=dict(sliding_window=None),
        config=transformers.Starcoder2Config(
            vocab_size=152,
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            sliding_window=24,
            max_position_embeddings=256,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    # Rotary angles stretched by YaRN, which also sharpens attention; float16.
    "yarn": dict(
        seed=41,
        std=0.14,
        embedding_std=0.4,
        dtype=torch.float16,
        off=dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        config=transformers.LlamaConfig(
            vocab_size=128,
            hidden_size=64,
            intermediate_size=72,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=False,
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=10000.0,
                factor=4.0,
                original_max_position_embeddings=64,
            ),
            **COMMON,
        ),
    ),
    # LongRoPE within the original context: a factor for each wave, and sharper attention; float16.
    "longrope": dict(
        seed=43,
        std=0.2,
        embedding_std=0.2,
        dtype=torch.float16,
        off=dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        config=transformers.Phi3Config(
            vocab_size=128,
            hidden_size=48,
            intermediate_size=56,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            original_max_position_embeddings=256,
            rope_parameters=dict(
                rope_type="longrope",
                rope_theta=10000.0,
                short_factor=[1.0, 1.1, 1.4, 1.9, 2.5, 3.2],
                long_factor=[1.5, 2.0, 3.0, 5.0, 8.0, 12.0],
            ),
            pad_token_id=0,
            **(COMMON | dict(max_position_embeddings=1024)),
        ),
    ),
}


def make_model(spec):
    """A model with weights that make its text lively: far from constant, far from ties."""
    torch.manual_seed(spec["seed"])
    model = transformers.AutoModelForCausalLM.from_config(spec["config"], dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("norm.weight") or re.search(r"ln_\w+\.weight$", name):
                p.uniform_(*spec.get("norm", (0.5, 1.5)))
            elif name.endswith("bias"):
                p.normal_(0, 0.2)
            elif re.search("embeddings|embed_tokens|wte|wpe", name):
                p.normal_(0, spec["embedding_std"])
            else:
                p.normal_(0, spec["std"])
    return model.to(spec["dtype"])


def save(model, spec, folder):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=spec.get("shard", "5GB"))
    if spec.get("old_spelling"):
        path = folder / "config.json"
        config = json.loads(path.read_text())
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = rope
        config["torch_dtype"] = config.pop("dtype")
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


@torch.inference_mode()
def decode(model, prompt, steps):
    """Greedy tokens [steps], logits of the prompt [n, vocab] and of each token [steps, vocab]."""
    out = model(torch.tensor([prompt]), use_cache=True)
    prompt_logits = out.logits[0].float()
    rows = [prompt_logits[-1]]
    tokens = [int(rows[-1].argmax())]
    while len(tokens) < steps:
        out = model(
            torch.tensor([[tokens[-1]]]), past_key_values=out.past_key_values, use_cache=True
        )
        rows.append(out.logits[0, -1].float())
        tokens.append(int(rows[-1].argmax()))
    return tokens, prompt_logits, torch.stack(rows)


def margin(logits):
    top = logits.topk(2, dim=-1).values
    return float((top[:, 0] - top[:, 1]).min())


def rotary_frequencies(model):
    """Names and values of what a model's rotary embeddings follow from."""
    rotary = getattr(model.base_model, "rotary_emb", None)
    if rotary is None:
        return
    kinds = dict(full_attention_="", sliding_attention_="local_")
    for kind, prefix in kinds.items() if hasattr(rotary, "layer_types") else [("", "")]:
        yield f"{prefix}rope_inverse_frequencies", getattr(rotary, f"{kind}inv_freq")
        factor = getattr(rotary, f"{kind}attention_scaling")
        yield f"{prefix}rope_attention_factor", torch.tensor([factor])


def write(tensors, notes, folder):
    # One key: several would be written in an order that changes from run to run.
    save_file(tensors, folder / "golden.safetensors", metadata=dict(notes=json.dumps(notes)))
    for path in folder.iterdir():
        path.chmod(0o644)
        assert path.stat().st_size < 300_000, path


def make_goldens(name, spec, root):
    folder = root / name
    save(make_model(spec), spec, folder)
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype=torch.float32, attn_implementation="eager").eval()
    exact = load(folder, dtype=torch.float64, attn_implementation="eager").eval()

    generator = torch.Generator().manual_seed(1000 + spec["seed"])
    vocab = spec["config"].vocab_size
    prompts = torch.full([len(PROMPT_LENGTHS), max(PROMPT_LENGTHS)], -1, dtype=torch.int32)
    greedy = torch.empty([len(PROMPT_LENGTHS), NEW_TOKENS], dtype=torch.int32)
    tensors = {}
    error, smallest, largest, distinct, redrawn = 0.0, float("inf"), 0.0, [], 0
    for i, length in enumerate(PROMPT_LENGTHS):
        while True:
            prompt = torch.randint(0, vocab, [length], generator=generator).tolist()
            tokens, prompt_logits, steps = decode(model, prompt, NEW_TOKENS)
            if margin(steps) > MIN_MARGIN:
                break
            redrawn += 1
        # The same rows without a cache, and in float64.
        whole = prompt + tokens[:-1]
        with torch.inference_mode():
            plain = model(torch.tensor([whole]), use_cache=False).logits[0]
            truth = exact(torch.tensor([whole]), use_cache=False).logits[0]
        rows = torch.cat([prompt_logits, steps[1:]])
        error = max(error, float((rows - truth).abs().max()), float((rows - plain).abs().max()))
        smallest = min(smallest, margin(steps))
        distinct.append(len(set(tokens)))
        prompts[i, :length] = torch.tensor(prompt, dtype=torch.int32)
        greedy[i] = torch.tensor(tokens, dtype=torch.int32)
        largest = max(largest, float(prompt_logits[-1].abs().max()))
        if i in FULL_LOGITS:
            tensors[f"prompt_logits.{i}"] = prompt_logits.contiguous()
        if i in STEP_LOGITS:
            tensors[f"step_logits.{i}"] = steps[: STEP_LOGITS[i]].contiguous()

    # What makes this model special must be seen in its answers: without it they differ.
    if "off" in spec:
        config = transformers.AutoConfig.from_pretrained(folder)
        for field, value in spec["off"].items():
            setattr(config, field, value)
        other = load(folder, config=config, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.inference_mode():
            off = other(torch.tensor([whole]), use_cache=False).logits[0]
        assert float((off - truth).abs().max()) > 0.5, name

    assert smallest > MIN_MARGIN, (name, smallest)
    assert error < MAX_ERROR, (name, error)
    mean_distinct = sum(distinct) / len(distinct)
    assert mean_distinct > 20 and min(distinct) > 2, (name, distinct)
    tensors |= dict(
        prompt_lengths=torch.tensor(PROMPT_LENGTHS, dtype=torch.int32),
        prompts=prompts,
        greedy=greedy,
    )
    for tensor, frequencies in rotary_frequencies(model):
        if not (tensor.endswith("factor") and frequencies == 1):
            tensors[tensor] = frequencies.float().contiguous()
    notes = dict(
        transformers=transformers.__version__,
        torch=torch.__version__.split("+")[0],
        seed=str(spec["seed"]),
        smallest_margin=f"{smallest:.4g}",
        largest_error=f"{error:.2g}",
    )
    write(tensors, notes, folder)
    print(
        f"{name}: {sum(p.numel() for p in model.parameters())} parameters, "
        f"largest logit {largest:.1f}, smallest margin {smallest:.4f}, "
        f"largest error {error:.1e}, distinct tokens {min(distinct)}..{max(distinct)} "
        f"(mean {mean_distinct:.1f}), {redrawn} prompts drawn again"
    )


def run(description, models, make, folder="golden_models"):
    """The command line of a script: calls make(name, spec, root) for each model."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    default = pathlib.Path(__file__).resolve().parents[4] / "tests" / "data" / folder
    parser.add_argument("--out", type=pathlib.Path, default=default)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(models))
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in args.names or models:
        make(name, models[name], args.out)


if __name__ == "__main__":
    run(__doc__, MODELS, make_goldens)
