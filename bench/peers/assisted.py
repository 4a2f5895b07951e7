"""Compares with assisted generation of Transformers on the same pair: greedy, one stream.

    python -m bench.peers.assisted [PROBLEMS] [--tokens 48] [--write]

The coder pair continues the first prompts of HumanEval. Transformers runs in bfloat16, as it
dequantizes GGUF files, with and without the small model as assistant. The server runs the blocks of
the files, autoregressively and with `auto`. Whole answers are timed, prefill included, one at a time.
"""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.peers import cli
from measure import machine, serving
from measure.paths import HOME, ROOT
from measure.report import table

PAGE = ROOT / "docs" / "reports" / "fidelity.md"
LARGE, SMALL = "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"
MASKS = "qwen2.5-coder-0.5b-drafts"


def model(name: str):
    folder = HOME / "models"
    return AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=f"{name}.gguf", dtype=torch.bfloat16
    ).eval()


def transformers_speeds(prompts: list[list[int]], tokens: int) -> dict[str, float]:
    large, small = model(LARGE), model(SMALL)
    ways = {
        "Transformers, 16 bits a weight": None,
        "Transformers, 16 bits a weight, assisted by the 0.5B": small,
    }

    def answer(ids: list[int], assistant) -> int:
        with torch.no_grad():
            out = large.generate(
                torch.tensor([ids]),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                assistant_model=assistant,
            )
        return out.shape[1] - len(ids)

    return {name: speed(lambda ids, a=a: answer(ids, a), prompts) for name, a in ways.items()}


def our_speeds(prompts: list[list[int]], tokens: int, binary: Path) -> dict[str, float]:
    folder = HOME / "models"
    config = HOME / "benchmark" / "assisted.textproto"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(
        f'models {{ name: "large" path: "{folder / LARGE}.gguf" prefix_cache: false }}\n'
        f'models {{ name: "small" path: "{folder / SMALL}.gguf" prefix_cache: false\n'
        f'  extras {{ name: "masks" path: "{ROOT / "models" / MASKS}" }} }}\n'
        'deployments { name: "pair" large: "large" small: "small" speculative { adapter: "masks" } }\n'
    )
    with serving.server(binary, config=config) as client:
        m = client.messages
        ways = {"Tandem, 4-bit blocks": m.Autoregressive(), "Tandem, 4-bit blocks, auto": m.Auto()}

        def answer(ids: list[int], method) -> int:
            request = client.request("pair", ids, tokens, method, ignore_eos=True)
            return len(client.complete(request).tokens)

        return {name: speed(lambda ids, w=w: answer(ids, w), prompts) for name, w in ways.items()}


def speed(answer: Callable[[list[int]], int], prompts: list[list[int]]) -> float:
    """Tokens per second over all prompts except the first, which is a warm-up."""
    answer(prompts[0])
    start = time.perf_counter()
    tokens = sum(answer(ids) for ids in prompts[1:])
    return tokens / (time.perf_counter() - start)


def main() -> None:
    from tuning.evaluate.humaneval import read_problems

    parser = cli.parser(__doc__, PAGE)
    parser.add_argument("problems", type=int, nargs="?", default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--server", type=Path, default=serving.BINARY)
    args = parser.parse_args()
    run = cli.Run("python -m bench.peers.assisted", None, args.write)
    torch.set_num_threads(machine.cores())
    tokenizer = AutoTokenizer.from_pretrained(HOME / "models", gguf_file=f"{LARGE}.gguf")
    problems = read_problems()[: args.problems + 1]
    prompts = [tokenizer(p.prompt, add_special_tokens=False)["input_ids"] for p in problems]
    speeds = {
        **our_speeds(prompts, args.tokens, args.server),
        **transformers_speeds(prompts, args.tokens),
    }
    best = speeds["Tandem, 4-bit blocks, auto"]
    rows = [[name, f"{x:.1f}", f"{best / x:.2f}"] for name, x in speeds.items()]
    about = run.about(f"{args.problems} prompts, {args.tokens} new tokens each, prefill included.")
    text = f"{about}\n\n{table(['', 'tokens/s', 'auto / this'], rows)}\n"
    cli.publish(text, args.write, PAGE, "assisted")


if __name__ == "__main__":
    main()
