"""Counts how many drafts are accepted if the small model's layers have fewer bits.

    python -m tuning.draft_rounding [--bits 5 4 3] [--problems 12] [--new-tokens 96] [--server PATH]

A matrix of a layer is rounded as by --small-dtype int4, to 2^bits values: a scale and a minimum in fp16 for 32
inputs. Embeddings and the output matrix keep the file's bits. The replay is that of tuning.draft_context.
"""

import torch

from tuning.draft_context import load_answers, load_small, parser_of, print_table, row

BLOCK = 32
CONTEXT = 128  # tokens of the prompt that the small model reads


def rounded(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """`weight` [out, in] with 2^bits values for each 32 inputs; the best of some ranges and their least squares fits."""
    x = weight.float().reshape(-1, BLOCK)
    most = float(2**bits - 1)
    least, span = x.amin(1, keepdim=True), x.amax(1, keepdim=True) - x.amin(1, keepdim=True)

    def coded(scale, minimum):
        return ((x - minimum) / scale.clamp(min=1e-12)).round().clamp(0, most)

    def valued(scale, minimum):
        scale, minimum = scale.half().float(), minimum.half().float()
        return scale * coded(scale, minimum) + minimum

    best = valued(span / most, least)
    error = (best - x).square().sum(1, keepdim=True)
    for steps in (most - 1, most - 0.5, most, most + 0.5, most + 1):
        codes = coded(span / steps, least)
        n, nn = codes.sum(1, keepdim=True), codes.square().sum(1, keepdim=True)
        s, ns = x.sum(1, keepdim=True), (codes * x).sum(1, keepdim=True)
        spread = (BLOCK * nn - n * n).clamp(min=1e-12)
        tried = valued((BLOCK * ns - n * s) / spread, (nn * s - n * ns) / spread)
        e = (tried - x).square().sum(1, keepdim=True)
        best, error = torch.where(e < error, tried, best), torch.minimum(e, error)
    return best.reshape(weight.shape)


def layer_matrices(model) -> list[torch.nn.Parameter]:
    return [p for name, p in model.named_parameters() if ".layers." in name and p.dim() == 2]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--bits", type=int, nargs="+", default=[5, 4, 3])
    args = parser.parse_args()
    texts = load_answers(args)
    rows = [row("stored", load_small(), texts, CONTEXT)]
    for bits in args.bits:
        model = load_small()
        with torch.no_grad():
            for matrix in layer_matrices(model):
                matrix.copy_(rounded(matrix, bits))
        rows.append(row(str(bits), model, texts, CONTEXT))
    print_table("bits", texts, rows)


if __name__ == "__main__":
    main()
