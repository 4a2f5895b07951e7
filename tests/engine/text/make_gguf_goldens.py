"""Makes tests/data/gguf/tokens.json: how Transformers' tokenizers of the fetched models (scripts/models)
cut the hostile strings of tests/engine/text/data/tokenizers/texts.json, as a hash for each.

    python3 tests/engine/text/make_gguf_goldens.py

The tokenizers are built from the files by Transformers' own conversion, but for two things that it leaves
out of what the models' own tokenizer.json has: Qwen 2's NFC, and SmolLM2's single digits.
"""

import json
import os
from pathlib import Path

import gguf
from tokenizers import normalizers, pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import (
    GGUF_TOKENIZER_MAPPING,
    convert_gguf_tokenizer,
)

ROOT = Path(__file__).resolve().parents[3]
MODELS = Path(os.environ.get("TANDEM_HOME", Path.home() / ".cache" / "tandem")) / "models"
NAMES = ["smollm2-135m", "qwen2.5-coder-0.5b", "gemma-3-270m"]


def reference(path):
    fields = {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}
    tokenizer = {
        name: fields[f"tokenizer.{key}"]
        for key, name in GGUF_TOKENIZER_MAPPING["tokenizer"].items()
        if f"tokenizer.{key}" in fields
    }
    built, _ = convert_gguf_tokenizer(fields["general.architecture"], tokenizer)
    if tokenizer["pre_tokenizer_type"] == "qwen2":
        built.normalizer = normalizers.NFC()
    if tokenizer["pre_tokenizer_type"] == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        built.pre_tokenizer = pre_tokenizers.Sequence(
            [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return built


def fnv(ids):
    """FNV-1a over the ids as four bytes each, little-endian."""
    value = 0xCBF29CE484222325
    for byte in b"".join(i.to_bytes(4, "little") for i in ids):
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{value:016x}"


def main():
    texts = json.loads((ROOT / "tests/engine/text/data/tokenizers/texts.json").read_text())
    goldens = {}
    for name in NAMES:
        tokenizer = reference(MODELS / f"{name}.gguf")
        goldens[name] = [
            fnv(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts
        ]
        print(name, len(goldens[name]))
    path = ROOT / "tests/data/gguf/tokens.json"
    path.write_text(json.dumps(goldens, indent=0) + "\n")


if __name__ == "__main__":
    main()
