"""tuning/evaluate/told.py: what it measures, and the section that it writes."""

import json

import pytest
from evaluate_test import Server as Written
from evaluate_test import conditions, messages  # noqa: F401

from tuning.evaluate import measure, page, told
from tuning.evaluate.grid import AR
from tuning.evaluate.measure import Task

TURNS = [[Task((0, 10 * i + j), tuple(range(8))) for j in range(3)] for i in (1, 2)]
GRID = told.WRITING + told.DRAFTING


class Server(Written):
    """Keeps two drafts of a round and four of another; the small models write the large one's text."""

    def request(self, model, prompt, new_tokens, method):
        if method.DESCRIPTOR.name != "LlmToSlm":
            return super().request(model, prompt, new_tokens, method)
        m = self.messages
        return m.GenerateRequest(
            model=model,
            token_ids=m.TokenIds(ids=prompt),
            max_new_tokens=new_tokens,
            llm_to_slm=method,
        )

    def complete(self, request):
        choice = super().complete(request)
        choice.finished.stats.accept_lengths.extend([0, 0, 1, 0, 1])
        return choice


def test_every_configuration_has_its_deployment(messages):  # noqa: F811
    deployed = told.CONFIG.read_text()
    for configuration in [AR, *GRID]:
        configuration.message(messages)
        assert f'deployments {{ name: "{configuration.deployment}"' in deployed
    assert deployed.count("models {") == deployed.count("prefix_cache: false")
    assert all(c.promises_exact for c in told.DRAFTING)
    assert not any(c.promises_exact for c in told.WRITING)


def test_the_section_says_what_was_measured(messages):  # noqa: F811
    server = Server(messages)
    ar, rows = measure.take_turns(server, GRID, TURNS, 8, seed=1)
    measure.rate(server, ar, rows, TURNS)
    for row in [ar, *rows]:
        for answer in row.answers():
            answer.seconds = {told.SMALL: 2, told.TOLD: 3}.get(row.configuration, 8)
    cost = told.cost_of(ar, rows, reading=1)
    assert (cost.reading, cost.small, cost.told, cost.large, cost.over) == (
        1000,
        2000,
        3000,
        8000,
        1,
    )
    reports = [
        {
            "settings": {"told": True, "fusion": "add", "layer": 8, "train": "full", "steps": 9}
            | {"batch": 4, "samples": 77},
            "nats": {
                name: {"all": nats, "1 to 4": 2.0, "5 to 9": 3.0}
                for name, nats in (("small", 3.5), ("large", 2.5), ("llm_to_slm", 3.125))
            },
        }
    ]
    text = told.markdown(conditions(), ar, rows, cost, reports)
    assert "LLM-to-SLM, verified | 3.00 |" in text
    assert "| add, layer 8 | full, 9 x 4 | 77 | 3.125 | 2.000 | 3.000 |" in text
    assert "take 1.00 of the small" in text and "1/2.7 of the large" in text
    whole = page.put(f"a {told.BEGIN} b {told.END} c", text, told.BEGIN, told.END)
    assert " b " not in whole


@pytest.mark.skipif(not told.REPORTS.exists(), reason="nothing is trained")
def test_reports_are_of_the_same_texts():
    reports = json.loads(told.REPORTS.read_text())
    assert len({tuple(r["nats"]["small"].values()) for r in reports}) == 1
