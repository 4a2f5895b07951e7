"""Whole models compared with other engines: the choice of settings, and the page of results."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from fake_engine import FakeEngine

from bench.peers import models, models_page, whole_model


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    one = whole_model.Contender(FakeEngine, "some", Path("folder"))
    yield one
    one.close()


def test_the_fastest_settings_are_chosen(fake):
    batches = [[[1, 2]], [[3, 4]], [[5, 6]]]
    best, tried = whole_model.choose(fake, batches, 5)
    assert best == {"step": 1, "FAKE_FACTOR": ""}
    # The default first; then each other value with the best of the options before; what fails is
    # left out. What seems better is held against the best so far once more.
    assert [t["settings"] for t in tried] == [
        {"step": 2, "FAKE_FACTOR": ""},
        {"step": 1, "FAKE_FACTOR": ""},
        {"step": 2, "FAKE_FACTOR": ""},
        {"step": 1, "FAKE_FACTOR": "10"},
    ]
    # Without the first token's share: the prompt's time does not count.
    assert [t["seconds"] for t in tried] == [2, 1, 2, 10]


class Noisy:
    """Its default was slow once, when the machine was; the other value never is faster."""

    class kind:  # noqa: N801
        OPTIONS = {"option": ["default", "other"]}

    def __init__(self):
        self.seconds = iter([9.0, 5.0, 4.9])

    def defaults(self):
        return {"option": "default"}

    def set(self, settings):
        self.settings = settings

    def warm(self, batch):
        pass

    def generate(self, batch, new_tokens):
        return [], 1 + (next(self.seconds) * (new_tokens - 1) if new_tokens > 1 else 0)


def test_a_slow_moment_does_not_choose_settings():
    best, tried = whole_model.choose(Noisy(), [[[1]], [[2]]], 3)
    assert best == {"option": "default"} and [t["seconds"] for t in tried] == [9, 5, 4.9]


def test_settings_in_capitals_are_of_the_environment():
    assert whole_model.split({"a": 1, "B_C2": "x"}) == ({"B_C2": "x"}, {"a": 1})


def test_equal_start():
    assert whole_model.equal_start([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 9, 6]]) == (4, 6)


def test_every_engine_of_every_width_offers_it():
    for ours, peers in whole_model.WIDTHS.values():
        assert ours in whole_model.Tandem.PRECISIONS
        assert all(precision in kind.PRECISIONS for kind, precision in peers)


def test_goals_are_for_what_is_measured_by_default():
    measured = {(w, n) for w in whole_model.WIDTHS for n in whole_model.STREAMS}
    assert set(models_page.GOALS) == measured
    assert models_page.PASS_ROWS in whole_model.ROWS and 5 in whole_model.ROWS


def test_names_of_engines():
    for kind, precision, name in [
        ("LlamaCpp", "int8", "llama.cpp Q8_0"),
        ("LlamaCpp", "bf16", "llama.cpp BF16"),
        ("CTranslate2", "int8", "CTranslate2 int8"),
        ("Tandem", "fp32", "Tandem fp32"),
    ]:
        assert models_page.engine_name(kind, precision) == name
        assert models_page.kind_and_precision(name) == (kind, precision)


def runs(*pairs, client=0.0):
    return [{"first": f, "seconds": s, "client": client} for f, s in pairs]


@pytest.fixture
def result():
    """A part of 11 new tokens: in the medians decoding takes 1 s with ours, or 2, or 1.25."""
    case = {
        "streams": 1,
        "new_tokens": 11,
        "runs": {
            "Tandem int8": runs((0.5, 1.5), (0.25, 1.5), (0.5, 1.25), client=0.02),
            "CTranslate2 int8": runs((0.1, 2.1), (0.1, 2.1), (0.1, 2.1)),
            "llama.cpp Q8_0": runs((1, 2.25), (1, 2.25), (1, 2.25)),
        },
        "equal": {"CTranslate2 int8": [8, 11], "llama.cpp Q8_0": [11, 11]},
        "probes": [40e9, 50e9, 80e9],
    }
    eight = copy.deepcopy(case)
    eight["streams"] = 8
    eight["runs"]["Tandem int8"] = runs((0.5, 1.0), (0.5, 1.0), (0.5, 1.0), client=0.05)
    one = {"1": 0.01, "8": 0.02}
    return {
        "model": "m",
        "width": "8",
        "ours": "Tandem int8",
        "weights": 10**9,
        "cases": [case, eight],
        "passes": {"Tandem int8": one, "llama.cpp Q8_0": {"1": 0.02, "8": 0.07}},
        "settings": {
            "Tandem int8": {"1": {}, "8": {}},
            "llama.cpp Q8_0": {"1": {"threads": 2, "flash_attention": True, "CT2_X": ""}},
        },
        "details": {"Tandem int8": {}, "llama.cpp Q8_0": {"version": "v 1", "instructions": "X"}},
        "refused": {"CTranslate2 bf16": "computes here with int8 only"},
        "conditions": {
            "command": "c",
            "commit": "abc",
            "date": "2026-01-02",
            "processor": "P",
            "cores": 2,
            "busy": 0.01,
            "others": 0.002,
            "others_most": 0.05,
            "idle": 0.0,
            "prompt_tokens": 64,
            "repeats": 3,
            "seconds": 12,
        },
    }


@pytest.fixture
def profile():
    lines = [
        ["parts", "m:product:1 row", 1, 80.0],
        ["parts", "m:attention:1 row", 1, 20.0],
        ["parts", "m:product:8 sequences", 1, 90.0],
        ["parts", "m:attention:8 sequences", 1, 60.0],
    ]
    return {"lines": lines, "probe": 25e9, "kept_bytes": 10**6}


def test_rates_with_and_without_prompts(result):
    case = result["cases"][0]
    # The first tokens' time is the median of all turns: one slow call of them counts in none.
    assert models_page.rates(case, "Tandem int8") == pytest.approx([10, 10, 10 / 0.75])
    assert models_page.rate(case, "Tandem int8") == pytest.approx(10)
    assert models_page.rate(case, "Tandem int8", whole=True) == pytest.approx(11 / 1.5)
    assert models_page.rate(result["cases"][1], "llama.cpp Q8_0") == pytest.approx(64)


def test_the_best_peer_is_that_of_the_figure(result):
    part = models_page.Part(result)
    case = part.cases()[0]
    assert part.best(case) == "llama.cpp Q8_0"
    assert part.best(case, whole=True) == "CTranslate2 int8"
    assert part.ratio(case) == pytest.approx(10 / 8)
    assert part.ratio(case, whole=True) == pytest.approx((11 / 1.5) / (11 / 2.1))


def test_goals(result):
    part = models_page.Part(result)
    assert [part.goal(c) for c in part.cases()] == [1.6, 1.5]
    assert [part.met(c) for c in part.cases()] == [False, True]
    lines = models_page.goals_table([part]).splitlines()
    assert "| **1.25** (missed) | 1.60 |" in lines[2]
    assert "| **2.50** | 1.50 |" in lines[3]


def test_bandwidth_counts_the_scales_of_blocks(result):
    part = models_page.Part(result)
    case = part.cases()[0]
    assert part.bandwidth(case, "Tandem int8") == pytest.approx(10e9)
    assert part.bandwidth(case, "llama.cpp Q8_0") == pytest.approx(8 * 34 / 32 * 1e9)
    assert "| m | Tandem int8 | 1,000 | 100.00 | 10.0 | 50.0 | 20% |" in (
        models_page.bandwidth_table([part])
    )


def test_passes_are_held_against_their_goal_in_fp32_only(result):
    assert "missed" not in models_page.pass_table([models_page.Part(result)])
    wide = json.loads(json.dumps(result).replace("Tandem int8", "Tandem fp32"))
    wide["width"] = "32"
    text = models_page.pass_table([models_page.Part(wide)])
    assert "| m | Tandem fp32 | 10.00 | **2.00** (missed) |" in text
    assert "| m | llama.cpp Q8_0 | 20.00 | 3.50 |" in text


def test_the_profile_of_what_missed_its_goal(result, profile):
    part = models_page.Part(result, profile)
    text = models_page.profile_text([part])
    assert "| product | 80.000 (80%) |" in text and "8 sequences" not in text
    # 1 GB of weights, and 256 tokens of 1 MB each.
    assert "| m, int8 | 1 | 1,000 + 256 | 25.0 | 100.00 | 100.00 | 20.00 | 125.00 | 78.12 |" in text


def test_nothing_to_explain_when_all_goals_are_met(result, profile):
    result["cases"] = result["cases"][1:]
    part = models_page.Part(result, profile)
    assert models_page.profile_text([part]) == "No goal is missed."


def test_page(result, profile):
    page = models_page.page([models_page.Part(result, profile)])
    assert page.startswith("### Decoding")
    assert "| `c` | abc | 2026-01-02 | 40-80 | 1% | 0.2% (5.0%) | 0.00 | 64, 11 | 3 | 12 |" in page
    assert "Not measured" not in page
    some = models_page.page([models_page.Part(result, profile)], ["a at 8 bits", "b at 8 bits"])
    assert "\nNot measured: a at 8 bits, b at 8 bits.\n" in some
    assert "CTranslate2 bf16 is not available: computes here with int8 only." in page
    assert "| llama.cpp | v 1 | instructions: X |" in page
    assert "| m | llama.cpp Q8_0 | 1 | threads 2, flash attention on |" in page
    assert "| m | 1 | CTranslate2 int8 | 5.0 (5.0-5.0) | 5.2 (5.2-5.2) | 100.0 | 73% |" in page
    client = "Tandem's client used 2.0% to 5.0% of the machine, most with 8 streams of m."
    assert client in page


def test_weights_of_a_token(tmp_path):
    config = {
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 10,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    layer = 8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 8 * 12
    assert models.multiplied_weights(tmp_path) == 3 * layer + 80
    assert models.kept_numbers(tmp_path) == 3 * (4 + 4)
    (tmp_path / "config.json").write_text(json.dumps({**config, "head_dim": 5}))
    assert models.kept_numbers(tmp_path) == 3 * (10 + 10)
    layer = 20 * 8 + 2 * 10 * 8 + 8 * 20 + 3 * 8 * 12
    assert models.multiplied_weights(tmp_path) == 3 * layer + 80


def test_gguf_file_has_the_same_weights(tmp_path):
    import gguf
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from bench.peers import gguf_file

    torch.manual_seed(1)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=128, num_attention_heads=4, num_key_value_heads=2, **shape)
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "m")
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    for kind, error in [("F32", 0), ("BF16", 2**-8), ("Q8_0", 1 / 127)]:
        path = tmp_path / f"{kind}.gguf"
        gguf_file.write(tmp_path / "m", path, kind)
        reader = gguf.GGUFReader(path)
        tensors = {
            t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(t.shape[::-1])
            for t in reader.tensors
        }
        assert len(tensors) == len(weights)
        down = weights["model.layers.1.mlp.down_proj.weight"]
        limit = error * np.abs(down).max()
        assert np.abs(tensors["blk.1.ffn_down.weight"] - down).max() <= limit
        # A head's dimensions i and i + half lie side by side.
        k = weights["model.layers.0.self_attn.k_proj.weight"]
        found = tensors["blk.0.attn_k.weight"]
        limit = error * np.abs(k).max()
        assert np.abs(found[2] - k[1]).max() <= limit and np.abs(found[3] - k[9]).max() <= limit
