"""Makes LoRA adapters of golden models, and the logits that PEFT computes with them.

    python tests/engine/backend/torch/make_lora_goldens.py [--out tests/data/golden_loras] [NAME ...]

Each adapter is saved by PEFT, loaded again as a user would load it, and run in float32 on the CPU
with eager attention. `golden.safetensors` beside it holds a prompt [n] and the logits at all of its
positions [n, vocab]. Everything follows from the seeds below. Needs requirements.txt.
"""

import json
import pathlib

import peft
import torch
import transformers
from make_goldens import run
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[4]
PROMPT = 14  # tokens; more than the window of gemma3
MAX_ERROR = 1.5e-5  # of the float32 logits against float64 ones

ADAPTERS = {
    # Every linear layer; ranks and alphas by module.
    "qwen2": dict(
        seed=101,
        dtype=torch.bfloat16,
        config=peft.LoraConfig(
            r=3,
            lora_alpha=6,
            target_modules="all-linear",
            rank_pattern={"layers.1.self_attn.q_proj": 7, "v_proj": 1},
            alpha_pattern={"layers.2.mlp.down_proj": 3, "k_proj": 9},
            task_type="CAUSAL_LM",
        ),
    ),
    # Output norms follow the adapted layers; rank-stabilized scale.
    "gemma3": dict(
        seed=103,
        dtype=torch.float16,
        config=peft.LoraConfig(
            r=2,
            lora_alpha=4,
            use_rslora=True,
            target_modules=[
                "q_proj",
                "k_proj",
                "v_proj",
                "o_proj",
                "gate_proj",
                "up_proj",
                "down_proj",
            ],
            task_type="CAUSAL_LM",
        ),
    ),
    # Fused matrices.
    "phi3": dict(
        seed=107,
        dtype=torch.float32,
        config=peft.LoraConfig(
            r=3,
            lora_alpha=10,
            target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
            task_type="CAUSAL_LM",
        ),
    ),
    # GGUF files of this family have other orders of q and k rows; some layers, and no gate.
    "llama2": dict(
        seed=109,
        dtype=torch.bfloat16,
        config=peft.LoraConfig(
            r=4,
            lora_alpha=8,
            target_modules=["q_proj", "k_proj", "up_proj"],
            layers_to_transform=[0, 2],
            task_type="CAUSAL_LM",
        ),
    ),
    # A fused matrix whose rows are grouped by key heads.
    "falcon_groups": dict(
        seed=113,
        dtype=torch.bfloat16,
        config=peft.LoraConfig(
            r=2,
            lora_alpha=4,
            target_modules=["query_key_value", "dense_h_to_4h"],
            task_type="CAUSAL_LM",
        ),
    ),
}


@torch.inference_mode()
def logits_of(model, prompt):
    return model(torch.tensor([prompt]), use_cache=False).logits[0]


def make(name, spec, out):
    folder = out / name
    base = ROOT / "tests" / "data" / "golden_models" / name

    def load(dtype):
        return transformers.AutoModelForCausalLM.from_pretrained(
            base, dtype=dtype, attn_implementation="eager"
        ).eval()

    torch.manual_seed(spec["seed"])
    model = peft.get_peft_model(load(torch.float32), spec["config"])
    with torch.no_grad():
        for parameter_name, p in model.named_parameters():
            if "lora_" in parameter_name:
                p.normal_(0, 0.15)
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    path = folder / "adapter_model.safetensors"
    tensors = {k: v.to(spec["dtype"]) for k, v in sorted(load_file(path).items())}
    save_file(tensors, path)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = name
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()  # a set, whose order changes from run to run
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")

    prompt = torch.randint(0, model.config.vocab_size, [PROMPT]).tolist()
    plain = logits_of(load(torch.float32), prompt)
    adapted = logits_of(peft.PeftModel.from_pretrained(load(torch.float32), folder), prompt)
    exact = peft.PeftModel.from_pretrained(
        load(torch.float64), folder, autocast_adapter_dtype=False
    ).double()
    error = float((adapted - logits_of(exact, prompt)).abs().max())
    change = float((adapted - plain).abs().max())
    assert change > 0.5, (name, change)
    assert error < MAX_ERROR, (name, error)
    notes = dict(peft=peft.__version__, change=f"{change:.3g}", error=f"{error:.2g}")
    save_file(
        dict(prompt=torch.tensor(prompt, dtype=torch.int32), logits=adapted.contiguous()),
        folder / "golden.safetensors",
        metadata=dict(notes=json.dumps(notes)),
    )
    size = 0
    for file in folder.iterdir():
        file.chmod(0o644)
        size += file.stat().st_size
    print(f"{name}: {size} bytes, change {change:.3g}, error {error:.1e}")


if __name__ == "__main__":
    run(__doc__, ADAPTERS, make, folder="golden_loras")
