"""docs/reports: each page has the markers between which scripts write their tables."""

import importlib
import re

import pytest

from measure.paths import ROOT

REPORTS = ROOT / "docs" / "reports"
MARKERS = {
    "attacks.md": ["attacks"],
    "bita.md": [
        "wall clock",
        "scripted masks",
        "answers",
        "medusa",
        *(
            f"{name}-bita{part}"
            for name in ("code-large", "smollm2-135m", "qwen2.5-coder-0.5b")
            for part in ("", ", training")
        ),
    ],
    "fidelity.md": ["measured", "assisted", "docstrings"],
    "gguf.md": ["embeddings", "llama.cpp", "openvino", "step", "starts"],
    "llm_to_slm.md": [
        "llm to slm",
        "cost of llm to slm",
        "ablations of llm to slm",
        "views of llm to slm",
    ],
    "models.md": ["engines", "families"],
    "ppd.md": ["measured", "match rates"],
    "serving.md": ["streams", "http and grpc", "prefix cache", "warm start", "scrapes"],
    "tandem_decoding.md": ["pairs"],
    "throughput.md": ["one length", "many lengths"],
}
MODULES = [
    "bench.peers.ar",
    "bench.peers.assisted",
    "bench.peers.bita",
    "bench.peers.families",
    "bench.peers.http_api",
    "bench.peers.pair",
    "bench.peers.ppd",
    "bench.peers.start",
    "bench.peers.stored",
    "bench.peers.stored_openvino",
    "bench.peers.stored_step",
    "bench.peers.streams",
    "tests.attack.table",
    "tuning.bita_ablation",
    "tuning.bita_answers",
    "tuning.bita_page",
    "tuning.conditioned_ablation",
    "tuning.conditioned_views",
    "tuning.evaluate.humaneval",
    "tuning.match_rates",
    "tuning.medusa",
]


@pytest.mark.parametrize("page", MARKERS)
def test_each_marker_is_there_once(page):
    text = (REPORTS / page).read_text()
    found = re.findall(r"<!-- (.+): begin -->", text)
    assert sorted(found) == sorted(MARKERS[page])
    for name in found:
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        assert text.count(end) == 1 and text.index(begin) < text.index(end)


@pytest.mark.parametrize("module", MODULES)
def test_scripts_write_into_reports(module):
    assert importlib.import_module(module).PAGE.parent == REPORTS
    assert importlib.import_module(module).PAGE.exists()


def test_every_report_is_in_the_index():
    index = (REPORTS / "README.md").read_text()
    for page in REPORTS.glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name
