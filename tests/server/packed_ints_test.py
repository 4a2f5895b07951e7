"""Checkpoints of 4-bit integers behind the real server: the tokens of the same numbers in fp32.

`code-small`, rounded here, is written as GPTQ and as compressed-tensors lay their tensors out, and as
plain fp32 of the values that they then stand for.
"""

import json
import shutil
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors.torch")
torch = pytest.importorskip("torch")

SMALL = Path(__file__).resolve().parents[2] / "models/code-small"
GROUP = 32
PROMPTS = [
    "def quicksort(items):\n",
    "import os\n\n\nclass Reader:\n    def __init__(self, path):\n",
]


def rounded(weight):
    """Codes 0 to 15 [out, in] and scales [out, groups] of fp16."""
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    scales = (np.abs(groups).max(-1) / 7.5).astype(np.float16)
    codes = np.rint(groups / np.maximum(scales, 2**-24)[..., None].astype(np.float32)) + 8
    return np.clip(codes, 0, 15).reshape(weight.shape).astype(np.uint32), scales


def words(codes, axis):
    """Eight codes along `axis` in one word, the first in its lowest bits."""
    codes = np.moveaxis(codes, axis, -1)
    codes = codes.reshape(*codes.shape[:-1], -1, 8) << (4 * np.arange(8, dtype=np.uint32))
    packed = np.bitwise_or.reduce(codes, axis=-1).view(np.int32)
    return np.ascontiguousarray(np.moveaxis(packed, -1, axis))


def gptq(name, codes, scales):
    out, width = codes.shape
    zeros = np.full((width // GROUP, out // 8), 0x77777777, np.uint32).view(np.int32)
    return {
        f"{name}.qweight": words(codes.T, 0),
        f"{name}.scales": np.ascontiguousarray(scales.T),
        f"{name}.qzeros": zeros,
        f"{name}.g_idx": (np.arange(width) // GROUP).astype(np.int32),
    }


def compressed(name, codes, scales):
    return {
        f"{name}.weight_packed": words(codes, 1),
        f"{name}.weight_scale": scales,
        f"{name}.weight_shape": np.array(codes.shape, np.int64),
    }


def plain(name, codes, scales):
    values = scales.astype(np.float32)[..., None] * (
        codes.reshape(len(codes), -1, GROUP).astype(np.float32) - 8
    )
    return {f"{name}.weight": values.reshape(codes.shape)}


WEIGHTS = {
    "num_bits": 4,
    "type": "int",
    "symmetric": True,
    "strategy": "group",
    "group_size": GROUP,
}
KINDS = {
    "plain": (plain, None),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True}),
    "compressed": (
        compressed,
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}},
        },
    ),
}


def write(folder, kind, tensors):
    shutil.copytree(SMALL, folder)
    lay_out, quantization = KINDS[kind]
    laid = {}
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            laid |= lay_out(name.removesuffix(".weight"), *rounded(tensor.float().numpy()))
        else:
            laid[name] = tensor
    laid = {name: torch.as_tensor(tensor) for name, tensor in laid.items()}
    safetensors.save_file(laid, folder / "model.safetensors")
    config = json.loads((SMALL / "config.json").read_text("utf-8"))
    if quantization:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config), "utf-8")


@pytest.fixture(scope="module")
def packed_server(start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    tensors = safetensors.load_file(SMALL / "model.safetensors")
    text = ""
    for kind in KINDS:
        write(folder / kind, kind, tensors)
        text += f'models {{ name: "{kind}" path: "{folder / kind}" dtype: DTYPE_FP32 }}\n'
    text += f'models {{ name: "stored" path: "{folder / "gptq"}" }}\n'
    text += f'models {{ name: "int4" path: "{SMALL}" dtype: DTYPE_INT4 }}\n'
    return start_server(text)


@pytest.fixture
def generate(tandem, packed_server):
    def run(model, prompt):
        done = tandem(
            "generate",
            f"--model={model}",
            f"--prompt={prompt}",
            "--max-new-tokens=48",
            "--format=json",
            address=packed_server.grpc,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["text"]

    return run


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("kind", ["gptq", "compressed"])
def test_the_tokens_of_the_same_numbers(generate, kind, prompt):
    assert generate(kind, prompt) == generate("plain", prompt) != ""


def test_as_they_are_by_default(generate, packed_server):
    assert generate("stored", PROMPTS[0])
    assert generate("int4", PROMPTS[0])
    log = packed_server.log_text()
    for model, dtype in {"stored": "stored", "int4": "int4", "gptq": "fp32"}.items():
        line = next(line for line in log.splitlines() if f'"{model}: LlamaForCausalLM' in line)
        assert f", {dtype}, " in line, line
