"""Masks and prompts of BiTA, and their rows in a frozen model.

Rows are numbered from 0. A group of M masks is attached to a row; m_i, i from 1, has the position
i behind it. It sees the prompts, the text up to that row, and m_1 .. m_i of its own group. Row k of the text predicts token k + 1, and m_i attached to it predicts token k + 1 + i.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache, PreTrainedModel

from tuning import adapter_file, frozen_model

INITIAL_STD = 0.02


PROMPTINGS = ("deep", "shallow")
ADDITIONS = "adapter_model.safetensors", "adapter_config.json"  # as PEFT names them
LARGEST = 256.0  # number of a stored addition; fp8 has at most 448


class Addition(torch.nn.Module):
    """up @ down of a matrix [out, in]. It begins at zero."""

    def __init__(self, matrix: torch.nn.Linear, rank: int, random: torch.Generator):
        super().__init__()
        outs, inputs = matrix.weight.shape
        self.down = torch.nn.Parameter(torch.randn(rank, inputs, generator=random) * inputs**-0.5)
        self.up = torch.nn.Parameter(torch.zeros(outs, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.down.to(x.dtype).T @ self.up.to(x.dtype).T

    @torch.no_grad()
    def begin(self, trained: "Addition") -> None:
        """The nearest product of this rank to that of `trained`, of a higher rank (by singular values)."""
        outs, up = torch.linalg.qr(trained.up)
        inputs, down = torch.linalg.qr(trained.down.T)
        left, sizes, right = torch.linalg.svd(up @ down.T)
        rank = len(self.down)
        root = sizes[:rank].sqrt()
        self.up.copy_(outs @ (left[:, :rank] * root))
        self.down.copy_((root[:, None] * right[:rank]) @ inputs.T)

    def stored(self) -> tuple[torch.Tensor, torch.Tensor, float]:
        """(A, B, scale) in fp8 with up @ down = scale * B @ A. Each row of A has the same largest number."""
        down, up = self.down.detach().double(), self.up.detach().double()
        most = down.abs().amax(1, keepdim=True).clamp(min=1e-30)
        a, b = down / most, up * most.T
        scale = max(b.abs().max().item(), 1e-30)
        fp8 = torch.float8_e4m3fn
        return (a * LARGEST).to(fp8), (b / scale * LARGEST).to(fp8), scale / LARGEST**2


class MaskParameters(torch.nn.Module):
    """masks [M, hidden], prompts, and with `rank` low-rank additions to the layers' matrices, which
    mask rows alone take (gated LoRA, arXiv 2507.11851). Prompts: deep ones are keys and values of every layer
    [layers, P, kv heads, head dim], of which keys are as after the rotation; shallow ones are inputs
    [P, hidden], whose keys and values are what the model makes of them (the paper's Table 3)."""

    def __init__(
        self,
        model: PreTrainedModel,
        masks: int,
        prompts: int,
        seed: int,
        prompting: str = "deep",
        rank: int = 0,
        matrices: str = "",
    ):
        """`matrices`: those with additions, as ends of their names, separated by commas; empty: all."""
        super().__init__()
        if prompting not in PROMPTINGS:
            raise ValueError(f"prompting {prompting}: allowed: {', '.join(PROMPTINGS)}")
        shape = frozen_model.shape_of(model)
        random = torch.Generator().manual_seed(seed)

        def normal(*size: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(INITIAL_STD * torch.randn(*size, generator=random))

        self.masks = normal(masks, shape["hidden_size"])
        if prompts > 0 and prompting == "shallow":
            self.inputs = normal(prompts, shape["hidden_size"])
        elif prompts > 0:
            size = (shape["layers"], prompts, shape["kv_heads"], shape["head_dim"])
            self.keys, self.values = normal(*size), normal(*size)
        self.prompts = prompts
        added = frozen_model.layer_matrices(model) if rank > 0 else {}
        ends = tuple(matrices.split(","))
        self.rank = rank
        self.matrices = [name for name in added if name.endswith(ends)]
        self.additions = torch.nn.ModuleList(
            Addition(added[name], rank, random) for name in self.matrices
        )

    @torch.no_grad()
    def begin(self, trained: "MaskParameters") -> None:
        """Takes over what was trained. Further masks begin as its last one. Additions stay as they are if it has none;
        those of a higher rank are reduced. Their factors get equal sizes: those of a file do not suit a learning rate."""
        state = trained.state_dict()
        if 0 < self.rank <= trained.rank and self.matrices == trained.matrices:
            for addition, more in zip(self.additions, trained.additions, strict=True):
                addition.begin(more)
            state = {k: tensor for k, tensor in state.items() if not k.startswith("additions.")}
        own = self.state_dict()
        for name, tensor in state.items():
            if name == "masks":
                missing = len(self.masks) - len(tensor)
                tensor = torch.cat([tensor, tensor[-1:].expand(max(0, missing), -1)])
                tensor = tensor[: len(self.masks)]
            own[name] = tensor
        self.load_state_dict(own)

    @contextmanager
    def added_to(self, model: PreTrainedModel) -> Iterator[None]:
        """Within, every row that the model computes takes the additions."""
        all_matrices = frozen_model.layer_matrices(model)
        hooks = [
            all_matrices[name].register_forward_hook(
                lambda _, inputs, out, addition=addition: out + addition(inputs[0])
            )
            for name, addition in zip(self.matrices, self.additions, strict=True)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def prompt_rows(self, model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [layers, P, kv heads, head dim]. REQUIRES: there are prompts."""
        if hasattr(self, "keys"):
            return self.keys, self.values
        past = DynamicCache()
        rows = self.inputs.to(model.dtype)[None]
        model.model(inputs_embeds=rows, past_key_values=past, use_cache=True)
        parts = ([layer.keys for layer in past.layers], [layer.values for layer in past.layers])
        keys, values = (torch.stack([rows[0].transpose(0, 1) for rows in part]) for part in parts)
        return keys, values

    def tensors(self, model: PreTrainedModel) -> dict[str, torch.Tensor]:
        """By the names that an adapter's file has; `model` is the one that they are for."""
        if self.prompts == 0:
            return {"masks": self.masks}
        keys, values = self.prompt_rows(model)
        return {"masks": self.masks, "prompt.keys": keys, "prompt.values": values}


def write(
    folder: Path, model: PreTrainedModel, own: MaskParameters, dtype: torch.dtype = torch.float32
) -> None:
    """An adapter's folder: masks and prompts of type `dtype`, and additions in fp8 as a LoRA adapter in PEFT's format."""
    fields = {"additions": True} if own.additions else {}
    adapter_file.write(folder, "masks", model, own.tensors(model), dtype, **fields)
    for name in ADDITIONS:
        (folder / name).unlink(missing_ok=True)
    if not own.additions:
        return
    tensors, alphas = {}, {}
    for name, addition in zip(own.matrices, own.additions, strict=True):
        a, b, scale = addition.stored()
        tensors[f"base_model.model.{name}.lora_A.weight"] = a
        tensors[f"base_model.model.{name}.lora_B.weight"] = b
        alphas[name.removeprefix("model.")] = float(f"{scale * own.rank:.6g}")
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / ADDITIONS[0]
    )
    about = {"peft_type": "LORA", "r": own.rank, "lora_alpha": own.rank, "alpha_pattern": alphas}
    (folder / ADDITIONS[1]).write_text(json.dumps(about) + "\n")
    (folder / ADDITIONS[0]).chmod(0o644)


def shipped(model: PreTrainedModel, folder: Path) -> MaskParameters:
    """What an adapter's folder has for this model; prompts are deep ones."""
    tensors = load_file(folder / "adapter.safetensors")
    prompts = tensors["prompt.keys"].shape[1] if "prompt.keys" in tensors else 0
    rank, added, alphas = 0, {}, {}
    if (folder / ADDITIONS[0]).exists():
        added = load_file(folder / ADDITIONS[0])
        about = json.loads((folder / ADDITIONS[1]).read_text())
        rank, alphas = about["r"], about["alpha_pattern"]
    ends = ",".join(alphas)
    own = MaskParameters(model, len(tensors["masks"]), prompts, seed=1, rank=rank, matrices=ends)
    named = {"masks": "masks", "prompt.keys": "keys", "prompt.values": "values"}
    with torch.no_grad():
        for name, tensor in tensors.items():
            getattr(own, named[name]).copy_(tensor)
        for name, addition in zip(own.matrices, own.additions, strict=True):
            stem = f"base_model.model.{name}.lora_"
            addition.down.copy_(added[f"{stem}A.weight"].float())
            addition.up.copy_(
                added[f"{stem}B.weight"].float() * (alphas[name.removeprefix("model.")] / rank)
            )
    return own


@torch.no_grad()
def context(model: PreTrainedModel, tokens: torch.Tensor) -> DynamicCache:
    """Keys and values of plain rows; tokens: [rows, length]."""
    past = DynamicCache()  # which keeps what is outside of windows, too
    model.model(input_ids=tokens, past_key_values=past, use_cache=True)
    return past


class Contexts:
    """context(), computed once for each text as long as all keys and values fit into `limit` bytes."""

    def __init__(self, model: PreTrainedModel, limit: int = 2 << 30):
        self.model, self.left = model, limit
        self.known: dict[tuple, DynamicCache] = {}

    def of(self, tokens: torch.Tensor) -> DynamicCache:
        key = (tuple(tokens.shape), tokens.numpy().tobytes())
        if key in self.known:
            return self.known[key]
        past = context(self.model, tokens)
        size = sum(layer.keys.nbytes + layer.values.nbytes for layer in past.layers)
        if size <= self.left:
            self.left -= size
            self.known[key] = past
        return past


def with_prompts(model: PreTrainedModel, past: DynamicCache, own: MaskParameters) -> DynamicCache:
    """The prompts before the text, for mask rows."""
    whole = DynamicCache()
    prompts = own.prompt_rows(model) if own.prompts > 0 else ()
    for i, layer in enumerate(past.layers):
        keys, values = layer.keys, layer.values
        if prompts:
            both = [
                part[i].to(keys.dtype).transpose(0, 1).expand(keys.shape[0], -1, -1, -1)
                for part in prompts
            ]
            keys, values = torch.cat([both[0], keys], 2), torch.cat([both[1], values], 2)
        whole.update(keys, values, i)
    return whole


def window_of(model: PreTrainedModel) -> int | None:
    """Of every layer; models whose layers differ in it are not trained here."""
    config = model.config
    if not getattr(config, "use_sliding_window", True):
        return None
    window = getattr(config, "sliding_window", None)
    if window is not None and len(set(getattr(config, "layer_types", None) or [0])) > 1:
        raise ValueError("layers with and without a window")
    return window


def visible(
    at: torch.Tensor, length: int, masks: int, prompts: int, window: int | None
) -> torch.Tensor:
    """[rows, 1, groups * M, P + length + groups * M]: what mask rows see. No window cuts prompts."""
    rows, groups = at.shape
    own = groups * masks
    row = at.repeat_interleave(masks, 1)[..., None]  # [rows, own, 1]: what each is attached to
    group, depth = torch.arange(own) // masks, torch.arange(own) % masks
    text = torch.arange(length) <= row
    if window is not None:
        text = text & (row + 1 + depth[:, None] - torch.arange(length) < window)
    among = (group[:, None] == group) & (depth[:, None] >= depth)
    parts = [
        torch.ones(rows, own, prompts, dtype=torch.bool),
        text,
        among.expand(rows, own, own),
    ]
    return torch.cat(parts, 2)[:, None]


def hidden_rows(
    model: PreTrainedModel,
    own: MaskParameters,
    past: DynamicCache,
    at: torch.Tensor,
    masks: int | None = None,
) -> torch.Tensor:
    """The masks' last hidden states [rows, groups, M, hidden], groups attached to rows `at`
    [rows, groups] of a text whose rows lie in `past`, which stays unchanged. `masks`: uses only
    that many of each group, which do not see the others; all by default."""
    masks = masks or own.masks.shape[0]
    rows, groups = at.shape
    length = past.layers[0].keys.shape[2]
    dtype = past.layers[0].keys.dtype
    inputs = own.masks[:masks].to(dtype).repeat(groups, 1).expand(rows, -1, -1)
    positions = (at[..., None] + 1 + torch.arange(masks)).reshape(rows, -1)
    seen = visible(at, length, masks, own.prompts, window_of(model))
    bias = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)
    with own.added_to(model):
        out = model.model(
            inputs_embeds=inputs,
            position_ids=positions,
            attention_mask=bias,
            past_key_values=with_prompts(model, past, own),
            use_cache=True,
        ).last_hidden_state
    return out.reshape(rows, groups, masks, -1)
