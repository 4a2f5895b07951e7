"""Muon: momentum whose matrix updates are orthogonalised.

Source: Keller Jordan and others, "Muon: An optimizer for hidden layers in neural networks" (2024),
with its quintic Newton-Schulz coefficients.
"""

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalize(
    matrices: torch.Tensor, iterations: int = 5, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The nearest semi-orthogonal matrices, roughly: singular values end within about 0.7 to 1.2.

    matrices: [n, rows, columns]; the result has the same shape and is in `dtype`.
    """
    a, b, c = COEFFICIENTS
    x = matrices.to(dtype)
    transposed = x.size(-2) > x.size(-1)
    if transposed:  # the products below are [n, rows, rows]: keep that the small side
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if transposed else x


class Muon(torch.optim.Optimizer):
    """For the weight matrices of hidden layers; embeddings, heads and vectors want AdamW.

    `dtype` is what Newton-Schulz computes in; bfloat16 is enough where the hardware is fast at it.
    """

    def __init__(
        self,
        parameters,
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure=None):
        """One update of every matrix that has a gradient."""
        if closure is not None:
            raise ValueError("Muon takes no closure")
        for group in self.param_groups:
            # Matrices of one shape go through Newton-Schulz together: few large products.
            by_shape: dict[torch.Size, list[torch.nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                updates = orthogonalize(
                    torch.stack([self._nesterov(p, group["momentum"]) for p in parameters]),
                    dtype=self.dtype,
                )
                # Keeps the update's size per output the same for tall and for wide matrices.
                scale = max(1.0, shape[0] / shape[1]) ** 0.5
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update.to(parameter.dtype), alpha=-group["lr"] * scale)

    def _nesterov(self, parameter: torch.nn.Parameter, momentum: float) -> torch.Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(state["momentum"], momentum)
