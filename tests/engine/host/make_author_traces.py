"""Makes tests/data/author_traces.json: what the public implementations of BiLD and BiTA decide with golden models.

    git clone https://github.com/kssteven418/BigLittleDecoder   # at the commit in SOURCES
    git clone https://github.com/linfeng93/BiTA
    python3 tests/engine/host/make_author_traces.py BigLittleDecoder BiTA

The decoding code and the models' code are the authors'. This script loads the weights, calls the decoding loops and
records what they do. It needs torch and safetensors; the authors' copy of Transformers is in BigLittleDecoder.

The small model of BiLD is the first decoder layer of the large one. BiLD's code is written for T5; a decoder without
an encoder takes part in it with its prompt's cache in the place of the encoder's output.
"""

import argparse
import ast
import base64
import importlib.machinery
import importlib.util
import json
import sys
import types
from pathlib import Path

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[3]
MODELS = ROOT / "tests/data/golden_models"
SOURCES = {
    "bild": "kssteven418/BigLittleDecoder ad37f5641d403c955e7e7c90d946b0ebc3986eb1",
    "bita": "linfeng93/BiTA af8b2045ec073ded42f8eb86c3b54d40dda3679d",
}
# No decision is nearer than this to its threshold or to the next token.
MARGIN = {"bild": 3e-4, "bita": 2e-5}

# model, decoder layers of the small one (0: a model of its own), thresholds, new tokens, prompts
BILD = [
    ("llama2", 2, 0.055, 3.3, 40, (2, 3, 8)),
    ("llama2", 2, 0.05, 2.6, 40, (2, 8, 12)),
    ("llama2", 2, 0.06, 0.69, 30, (11, 15)),
    ("t5", 1, 0.0285, 3.9, 30, (1, 2, 5, 9)),
    ("docstring", 0, 0.6, 5.0, 24, (0, 1, 2)),
    ("docstring", 0, 0.3, 2.0, 24, (0, 1, 2)),
]
SOURCES_OF_DOCSTRINGS = [
    "docstring: def read(self, size=-1):\n    return self._file.read(size)\n",
    "docstring: def is_empty(self):\n    return len(self.queue) == 0\n",
    "docstring: def send(self, data):\n    self.socket.sendall(data)\n",
]
# the code's tree, ours, masks, candidates, new tokens, prompts
BITA = [
    ("half", "TREE_EFFICIENT", 3, 4, 24, (3, 9)),
    ("upper-triangle", "TREE_TRIANGLE", 3, 5, 24, (9,)),
    ("full", "TREE_FULL", 3, 2, 24, (3, 9)),
    ("space", "TREE_CHAIN", 3, 1, 24, (3, 9)),
]
MASKS, TRAINED_ON = 3, (3, 9)
PROMPT_ROWS = 2


class Absent(types.ModuleType):
    """In the place of packages that the authors' copy of Transformers imports and does not use here."""

    __path__ = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


class AbsentPackages:
    names = ("requests", "huggingface_hub")

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Absent:
        return Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def import_transformers(bild: Path) -> None:
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(bild / "src"))
    sys.meta_path.insert(0, AbsentPackages())
    checks = types.ModuleType("transformers.dependency_versions_check")
    checks.dep_version_check = lambda *_: None
    sys.modules[checks.__name__] = checks
    import transformers

    assert transformers.__file__.startswith(str(bild)), transformers.__file__


def import_llama(bita: Path) -> types.ModuleType:
    """The authors' Llama with masks and prompts. Their copy of Transformers is older than Llama's configuration."""
    from transformers import PretrainedConfig

    class LlamaConfig(PretrainedConfig):
        model_type = "llama"
        pretraining_tp = 1
        rope_scaling = None
        prefix_projection = False

    configuration = types.ModuleType("transformers.models.llama.configuration_llama")
    configuration.LlamaConfig = LlamaConfig
    sys.modules["transformers.models.llama"] = types.ModuleType("transformers.models.llama")
    sys.modules[configuration.__name__] = configuration
    for name in ("llmtuner", "llmtuner.extras"):
        sys.modules[name] = types.ModuleType(name)
    path = bita / "src/llmtuner/extras/constants.py"
    spec = importlib.util.spec_from_file_location("llmtuner.extras.constants", path)
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])
    sys.path[:0] = [str(bita), str(bita / "src"), str(bita / "tests")]
    import src.modeling_llama_if as llama

    return llama


def functions_of(path: Path, names: tuple[str, ...], scope: dict) -> dict:
    """Functions of a script, without running the script."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
    exec(compile(tree, str(path), "exec"), scope)
    return scope


def loaded(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> torch.nn.Module:
    absent, _ = model.load_state_dict(weights, strict=False)
    # not in the files: tied matrices, tables of angles, masks and prompts
    extra = ("shared", "embed_tokens", "lm_head", "inv_freq", "mask_tokens", "prefix_encoder")
    assert all(any(part in name for part in extra) for name in absent), absent
    return model.eval()


def golden(name: str) -> tuple[dict, dict[str, torch.Tensor], list[list[int]]]:
    config = json.loads((MODELS / name / "config.json").read_text(encoding="utf-8"))
    data = load_file(MODELS / name / "golden.safetensors")
    prompts = [
        row[:n].tolist()
        for row, n in zip(data["prompts"], data["prompt_lengths"].tolist(), strict=True)
    ]
    return config, load_file(MODELS / name / "model.safetensors"), prompts


def llama_model(llama: types.ModuleType, layers: int = 0, **more: object) -> torch.nn.Module:
    config, weights, _ = golden("llama2")
    config = {key: value for key, value in config.items() if key != "rope_parameters"} | more
    if layers > 0:
        config["num_hidden_layers"] = layers
    model = llama.LlamaForCausalLM(
        sys.modules["transformers.models.llama.configuration_llama"].LlamaConfig(**config)
    )
    return loaded(model, weights)


def t5_model(folder: Path, layers: int = 0) -> torch.nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if layers > 0:
        config["num_decoder_layers"] = layers
    model = T5ForConditionalGeneration(T5Config(**config))
    return loaded(model, load_file(folder / "model.safetensors"))


class Prompted(torch.nn.Module):
    """A decoder whose prompt's cache is what T5's code calls the encoder's output."""

    main_input_name = "input_ids"

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model, self.config = model, model.config
        self.encoder, self.decoder = self.cache_of, None

    def cache_of(self, prompt: torch.Tensor) -> tuple:
        return self.model(prompt, use_cache=True, return_dict=True).past_key_values

    def forward(self, *args: object) -> object:
        ids, prompt, past = args[2], args[7], args[8]
        before = prompt[0][0].shape[2]
        if past is not None:
            prompt = tuple(
                tuple(torch.cat([a, b], dim=2) for a, b in zip(x, y, strict=True))
                for x, y in zip(prompt, past, strict=True)
            )
        out = self.model(ids, past_key_values=prompt, use_cache=True, return_dict=True)
        out.past_key_values = tuple(
            tuple(part[:, :, before:] for part in layer) for layer in out.past_key_values
        )
        return out


def bild_trace(
    large: torch.nn.Module,
    small: torch.nn.Module,
    encode,
    start: int,
    fallback: float,
    rollback: float,
    tokens: int,
) -> tuple[str, float]:
    """`L7`: the large model's token 7; `s7`: the small one's; `f`: it fell back; `R3:7`: the last 3 small tokens were
    rolled back and replaced by 7; `o2:7`: a rollback of 2 tokens, to 7, that was left out, as an earlier violation
    is the large model's own choice. Also the least distance of a decision from its threshold."""
    from transformers.generation_stopping_criteria import MaxLengthCriteria
    from transformers.models.t5.modeling_t5 import T5BiLDModel

    calls: list[tuple[str, list[int]]] = []
    margins: list[float] = []
    left_out: dict[int, tuple[int, int]] = {}

    class Recorded(T5BiLDModel):
        def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs: object) -> dict:
            calls.append((self.model_type, input_ids[0].tolist()))
            assert len(calls) < 20 * tokens
            return super().prepare_inputs_for_generation(input_ids, **kwargs)

    class Loss(torch.nn.Module):
        def __init__(self, loss: torch.nn.Module):
            super().__init__()
            self.loss = loss

        def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            losses = self.loss(logits, labels)
            margins.extend((losses - rollback).abs().tolist())
            own = logits.argmax(-1)
            wrong = (losses > rollback).nonzero()[:, 0].tolist()
            if wrong and own[wrong[0]] == labels[wrong[0]]:
                for i in wrong:
                    if own[i] != labels[i]:
                        left_out[len(calls) - 1] = (len(labels) - i, int(own[i]))
                        break
            return losses

    def gap(logits: torch.Tensor) -> None:
        best = logits[0].topk(2, dim=-1).values
        margins.extend((best[:, 0] - best[:, 1]).abs().tolist())

    def of_small(module: object, args: object, out: object) -> None:
        gap(out.logits[:, -1:])
        margins.append(10 * abs(out.logits[0, -1].softmax(-1).max().item() - fallback))

    model = Recorded(large, small, fallback_threshold=fallback, rollback_threshold=rollback)
    model.crossentropy_loss = Loss(model.crossentropy_loss)
    model.eval()
    hooks = [
        large.register_forward_hook(lambda _m, _a, out: gap(out.logits)),
        small.register_forward_hook(of_small),
    ]
    ids = torch.tensor([[start]])
    kwargs = {
        "encoder_outputs": encode(large),
        "encoder_outputs_small": encode(small),
        "use_cache": True,
    }
    margins.clear()
    with torch.no_grad():
        final = model._greedy_search_body(
            ids, kwargs, None, None, MaxLengthCriteria(1 + tokens), lambda _ids, scores: scores,
            None, None, False, torch.ones(1, dtype=torch.long))  # fmt: skip
    for hook in hooks:
        hook.remove()
    events = []
    states = [state for _, state in calls] + [final[0].tolist()]
    for i, (who, before) in enumerate(calls):
        after = states[i + 1]
        if i in left_out:
            events.append("o{}:{}".format(*left_out[i]))
        if after == before:
            events.append("f")
        elif after[:-1] == before:
            events.append(("L" if who == "large" else "s") + str(after[-1]))
        else:
            assert who == "large" and after[:-1] == before[: len(after) - 1]
            events.append(f"R{len(before) - len(after) + 1}:{after[-1]}")
    return " ".join(events), min(margins)


def masked_model(llama: types.ModuleType) -> torch.nn.Module:
    return llama_model(llama, mask_num=MASKS, mask_diff=True, prompt_num=PROMPT_ROWS)


def parts(model: torch.nn.Module) -> tuple[torch.nn.Parameter, torch.nn.Parameter]:
    return model.model.mask_tokens.weight, model.model.prefix_encoder.embedding.weight


def train(llama: types.ModuleType) -> bytes:
    """Masks and prompts, as eighths of signed bytes, from the model's own greedy answers."""
    torch.manual_seed(1)
    model = masked_model(llama)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    own = parts(model)
    for part in own:
        torch.nn.init.normal_(part.requires_grad_(True))
    vocabulary = golden("llama2")[0]["vocab_size"]
    answers = load_file(MODELS / "llama2/golden.safetensors")["greedy"]
    cases = []
    for p in TRAINED_ON:
        prompt = golden("llama2")[2][p]
        text = prompt + answers[p].tolist()
        cases += [
            (text[:n], text[n + 1 : n + 1 + MASKS]) for n in range(len(prompt), len(prompt) + 24)
        ]
    optimizer = torch.optim.Adam(own, lr=0.1)
    for step in range(100):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (1 - step / 100)
        optimizer.zero_grad()
        for text, labels in cases:
            ids = torch.tensor([text + [vocabulary + i for i in range(MASKS)]])
            logits = model(ids, infer_with_prefix=True, decoding_method="tree2", mask_num_all=MASKS,
                           use_cache=False, return_dict=True).logits  # fmt: skip
            loss = torch.nn.functional.cross_entropy(logits[0, -MASKS:], torch.tensor(labels))
            (loss / len(cases)).backward()
        optimizer.step()
    numbers = torch.cat([part.detach().flatten() for part in own])
    return (numbers * 8).round().clamp(-127, 127).to(torch.int8).numpy().tobytes()


def bita_traces(
    llama: types.ModuleType,
    bita: Path,
    own: bytes,
    tree: str,
    masks: int,
    candidates: int,
    prompt: list[int],
    tokens: int,
) -> tuple[list, list, float]:
    """The answer; of each pass the candidates by depth and the tokens that it made; the least margin."""
    import numpy
    from atten_m import make_tree_attention
    from src.modeling_llama_if import _expand_mask, _make_causal_mask

    vocabulary = golden("llama2")[0]["vocab_size"]
    model = masked_model(llama)
    numbers = torch.frombuffer(bytearray(own), dtype=torch.int8).float() / 8
    with torch.no_grad():
        for part in parts(model):
            part.copy_(numbers[: part.numel()].reshape(part.shape))
            numbers = numbers[part.numel() :]

    passes: list[list[int]] = []
    margins: list[float] = []

    def run(ids: torch.Tensor, **kwargs: object) -> object:
        passes.append(ids[0].tolist())
        out = model(ids, **kwargs)
        best = out.logits[0].topk(candidates + 1, dim=-1).values
        margins.append((best[:, :-1] - best[:, 1:]).min().item())
        return out

    answer: list[list[int]] = []
    tokenizer = types.SimpleNamespace(
        eos_token_id=-1, pad_token_id=-1,
        batch_decode=lambda ids, **_: answer.append(ids[0].tolist()) or [""])  # fmt: skip
    scope = {
        "args": types.SimpleNamespace(mask_diff="true"), "tokenizer": tokenizer, "model": run,
        "MASK_ID": vocabulary, "MASK_NUM": masks, "USE_CACHE": False, "MAX_NEW_TOKENS": tokens,
        "RANDOM_SEED": 0, "torch": torch, "np": numpy, "time": __import__("time"), "json": json,
        "_expand_mask": _expand_mask, "_make_causal_mask": _make_causal_mask,
        "make_tree_attention": make_tree_attention, "print": lambda *_: None,
    }  # fmt: skip
    names = ("decode_alg_mask_space", "decode_alg_mask_tree2")
    functions_of(bita / "tests/eval_infer.py", names, scope)
    inputs = {
        "input_ids": torch.tensor([prompt]),
        "attention_mask": torch.ones(1, len(prompt), dtype=torch.long),
    }
    results = {"infer_time_mask": [], "content_mask": []}
    common = {"infer_dtype": torch.float16}  # of the attention masks only
    if tree == "space":
        scope[names[0]]("llama", inputs, results, None, 0, save_data=False, **common)
    else:
        scope[names[1]](
            "llama", inputs, results, None, 0, num_candidate=candidates, tree_type=tree, **common
        )

    widths = {
        "space": [1] * masks,
        "half": [candidates] * masks,
        "upper-triangle": [candidates - m for m in range(masks)],
        "full": [candidates ** (m + 1) for m in range(masks)],
    }[tree]
    lengths = []
    for ids in passes:
        extra = masks * (masks + 2) if tree == "space" else sum(widths) * (1 + masks) + masks
        lengths.append(len(ids) - extra)
    lengths.append(len(prompt) + len(answer[0]))
    trace = []
    at = len(prompt)
    for i, ids in enumerate(passes):
        assert lengths[i] == at
        if tree == "space":  # masks, then each candidate with its masks
            tree_tokens = [[ids[at + masks + m * (masks + 1)]] for m in range(masks)]
        else:
            tree_tokens, first = [], at
            for width in widths:
                tree_tokens.append(ids[first : first + (candidates if tree == "full" else width)])
                first += width
        if i == 0:
            assert all(token == vocabulary for depth in tree_tokens for token in depth)
            tree_tokens = []
        at = lengths[i + 1]
        trace.append([tree_tokens, at - lengths[i]])
    return answer[0], trace, min(margins)


def bild_requests(llama: types.ModuleType):
    from tokenizers import Tokenizer

    for name, layers, fallback, rollback, tokens, prompts in BILD:
        for p in prompts:
            about = {"model": name, "layers": layers, "fallback": fallback, "rollback": rollback}
            if name != "docstring":
                about["prompt"] = p
            if name == "llama2":
                prompt = golden(name)[2][p]
                models = Prompted(llama_model(llama)), Prompted(llama_model(llama, layers))
                start, read = prompt[-1], torch.tensor([prompt[:-1]])
            elif name == "t5":
                models = t5_model(MODELS / name), t5_model(MODELS / name, layers)
                start, read = 0, torch.tensor([golden(name)[2][p]])
            else:
                folders = [ROOT / "models" / f"{name}-{size}" for size in ("large", "small")]
                models = t5_model(folders[0]), t5_model(folders[1])
                tokenizer = Tokenizer.from_file(str(folders[0] / "tokenizer.json"))
                about["text"] = SOURCES_OF_DOCSTRINGS[p]
                start, read = 0, torch.tensor([tokenizer.encode(about["text"]).ids])

            def encode(model: torch.nn.Module, read: torch.Tensor = read) -> object:
                if isinstance(model, Prompted):
                    return model.cache_of(read)
                return model.encoder(read, return_dict=True)

            with torch.no_grad():
                yield about, bild_trace(*models, encode, start, fallback, rollback, tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bild", type=Path, help="a copy of BigLittleDecoder")
    parser.add_argument("bita", type=Path, help="a copy of BiTA")
    parser.add_argument("--train", action="store_true", help="new masks, not those of the file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    import_transformers(args.bild.resolve())
    bita = args.bita.resolve()
    llama = import_llama(bita)
    path = ROOT / "tests/data/author_traces.json"
    if args.train:
        own = train(llama)
    else:
        own = base64.b64decode(json.loads(path.read_text(encoding="utf-8"))["masks"])
    traces = []
    for about, (trace, margin) in bild_requests(llama):
        print(about, f"{margin:.5f}", trace)
        assert margin > MARGIN["bild"]
        traces.append(about | {"trace": trace})
    passes = []
    for tree, ours, masks, candidates, tokens, prompts in BITA:
        for p in prompts:
            prompt = golden("llama2")[2][p]
            answer, trace, margin = bita_traces(
                llama, bita, own, tree, masks, candidates, prompt, tokens
            )
            print(tree, p, f"{margin:.6f}", len(answer), [n for _, n in trace])
            assert margin > MARGIN["bita"]
            greedy = load_file(MODELS / "llama2/golden.safetensors")["greedy"][p].tolist()
            assert answer == greedy[: len(answer)]
            about = {"tree": ours, "masks": masks, "candidates": candidates, "prompt": p}
            passes.append(about | {"passes": trace})
    lines = [
        f' "sources": {json.dumps(SOURCES)},',
        f' "masks": "{base64.b64encode(own).decode()}",',
    ]
    for key, rows in (("bild", traces), ("bita", passes)):
        body = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in rows)
        lines.append(f' "{key}": [\n{body}\n ]' + ("," if key == "bild" else ""))
    path.write_text("{\n" + "\n".join(lines) + "\n}\n", encoding="utf-8")
    print(path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
