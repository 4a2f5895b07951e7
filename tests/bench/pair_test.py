"""bench/peers/pair.py: the ideal is what the passes cost, and nothing else."""

import copy

import pytest

from bench.peers import pair


def turn(seconds, lengths, passes):
    return {
        "decode_seconds": seconds,
        "seconds": seconds + 1,
        "accept_lengths": lengths,
        "fallbacks": 0,
        "rollbacks": 0,
        "passes": passes,
    }


# Passes of the large model: 10 ms for one row, 20 ms for five; of the small one: 1 ms.
MEASURED = {
    "prompt_tokens": 8,
    "new_tokens": 21,
    "foresight": 0.5,
    "large_parameters": 350_000_000,
    "small_parameters": 25_000_000,
    "cases": [
        {
            "agreement": 0.9,
            "method": "autoregressive",
            "turns": [turn(0.22, [], [["large", 1, 20]]), turn(0.24, [], [["large", 1, 20]])],
        },
        {
            "agreement": 0.9,
            "method": "speculative, γ 4",
            "turns": [
                turn(0.11, [0, 0, 0, 0, 4], [["large", 5, 4], ["small", 1, 16]]),
                turn(0.10, [0, 0, 0, 0, 4], [["large", 5, 4], ["small", 1, 16]]),
            ],
        },
    ],
    "passes": [
        {"model": "large", "rows": 1, "count": 40, "mean_seconds": 0.010, "median_seconds": 0.010},
        {"model": "large", "rows": 5, "count": 8, "mean_seconds": 0.020, "median_seconds": 0.020},
        {"model": "small", "rows": 1, "count": 32, "mean_seconds": 0.001, "median_seconds": 0.001},
    ],
}


def test_ideal_and_measured():
    result = pair.evaluate("p", MEASURED)
    (line,) = result.lines
    assert line.speedups == pytest.approx([2.0, 2.4])
    assert line.ideal == pytest.approx(0.2 / (4 * 0.020 + 16 * 0.001))
    assert line.share == pytest.approx(2.2 / line.ideal)
    assert line.kept == 4 and line.drafted == 4
    assert result.tokens_per_second == pytest.approx((20 / 0.22 + 20 / 0.24) / 2)


def test_shortfalls():
    large = "llama-350m + llama-25m"
    assert pair.shortfalls(pair.evaluate(large, MEASURED)) == []
    slow = copy.deepcopy(MEASURED)
    for one in slow["cases"][1]["turns"]:
        one["decode_seconds"] = 0.125
    assert pair.shortfalls(pair.evaluate("another", slow)) == []
    assert pair.shortfalls(pair.evaluate(large, slow)) == [f"{large}: 1.84 times as fast at 0.9"]
    for one in slow["cases"][1]["turns"]:
        one["decode_seconds"] = 0.14
    assert pair.shortfalls(pair.evaluate("another", slow)) == [
        "another, speculative, γ 4 at 0.9: 79% of the ideal"
    ]


def test_page():
    page = pair.sections([pair.evaluate("a pair", MEASURED)], "| commit | abc |")
    assert "| 0.9 | speculative, γ 4 | 2.20 (2.00-2.40) | 2.08 | 106% |" in page
    assert "350.0 and 25.0 million parameters. Autoregressive: 87.1 tokens/s." in page
    assert "| large | 10.00 | 20.00 |" in page and "| small | 1.00 | - |" in page
    assert "| commit | abc |" in page


def test_sections_of_another_page():
    many = copy.deepcopy(MEASURED)
    passed = [{**many["passes"][1], "rows": rows} for rows in (18, 64)]
    many["passes"] += passed
    text = pair.sections([pair.evaluate("a pair", many)], "| commit | abc |", "###")
    assert text.startswith("### a pair\n") and text.endswith("| commit | abc |\n")
    assert "|  | 1 | 5 | 64 |" in text, "rows of a tree, and no others above 17"
