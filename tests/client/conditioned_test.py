"""`tandem` with the shipped encoder-decoder pair: the large model reads the prompt, and the small model,
conditioned on its encoder states, writes the answer."""

import json
import re
import urllib.request

import pytest

from tests.conftest import ROOT

WAY = ("generate", "--model=docstring", "--method=llm_to_slm", "--max-new-tokens=24")
PROMPT = "--prompt=docstring: def is_empty(self):\n    return len(self.queue) == 0\n"


@pytest.fixture(scope="module")
def shipped(start_server):
    text = (ROOT / "deploy/docstring.textproto").read_text("utf-8")
    return start_server(text.replace("../models", str(ROOT / "models")))


def without_colours(text):
    return re.sub("\x1b\\[[0-9]*m", "", text)


def test_colours_show_who_read_and_who_wrote(shipped, tandem):
    painted = tandem(*WAY, PROMPT, "--color=always", address=shipped.grpc)
    assert painted.returncode == 0, painted.stderr
    answer = json.loads(tandem(*WAY, PROMPT, "--format=json", address=shipped.grpc).stdout)
    assert answer["method"] == "llm_to_slm" and answer["contract"] == "LOSSY"
    stats, tokens = answer["stats"], answer["usage"]["completion_tokens"]
    assert stats["large_passes"] == 1 and stats["small_tokens"] == tokens > 1
    shown = painted.stdout.decode()
    assert without_colours(shown).endswith(answer["text"] + "\n")
    assert "\x1b[2mdocstring: def is_empty" in shown  # what was read is dim
    assert "\x1b[33m" in shown and "\x1b[32m" not in shown  # the text was not verified
    legend, figures = painted.stderr.decode().splitlines()
    assert legend.startswith(
        "\x1b[2mprompt, encoded by large\x1b[0m  \x1b[33msmall, not verified 100 %"
    )
    assert f"{tokens} tokens in 1 large and {stats['small_passes']} small passes" in figures
    assert "answer of the small model, conditioned on the large one" in figures


def test_verified_it_is_the_large_models_answer(shipped, tandem):
    verified = ("--set", "llm_to_slm.speculative=true", "--set", "require_contract=EXACT")
    runs = [
        tandem(*way, PROMPT, "--format=json", address=shipped.grpc)
        for way in ((*WAY, *verified), (*WAY[:2], "--method=autoregressive", WAY[3]))
    ]
    conditioned, large = (json.loads(run.stdout) for run in runs)
    assert conditioned["contract"] == "EXACT"
    assert conditioned["text"] == large["text"] != ""
    with urllib.request.urlopen(f"http://{shipped.http}/metrics", timeout=60) as page:
        metrics = page.read().decode()
    lines = [line for line in metrics.splitlines() if 'method="llm_to_slm"' in line]
    made = [line for line in lines if line.startswith("tandem_generated_tokens_total")]
    assert (
        len(made) == 1 and float(made[0].split()[-1]) >= conditioned["usage"]["completion_tokens"]
    )
