"""tuning/evaluate/docstrings.py: its tasks, its configurations, and the section that it writes."""

import pytest
from evaluate_test import Server, messages  # noqa: F401
from evaluate_test import conditions as conditions_of

from tuning.evaluate import docstrings, measure, page
from tuning.evaluate.measure import Task
from tuning.seq2seq import LONGEST_SOURCE, LONGEST_TARGET
from tuning.vocabulary import train_source_tokenizer

TURNS = [[Task((0, 10 * i + j), tuple(range(8))) for j in range(3)] for i in (1, 2)]


@pytest.mark.parametrize("quick", [True, False])
def test_every_configuration_has_its_deployment(messages, quick):  # noqa: F811
    deployed = docstrings.PAIRS_FILE.read_text()
    all_of_them = [docstrings.AR, *docstrings.configurations(quick), *docstrings.exact_ones()]
    for configuration in all_of_them:
        configuration.message(messages)
        assert f'deployments {{ name: "{configuration.deployment}"' in deployed
        assert configuration.small in ("normal", "aligned")
    lines = [(c.series, c.small, c.settings) for c in docstrings.configurations(quick)]
    assert len(set(lines)) == len(lines)
    assert all(c.promises_exact for c in docstrings.exact_ones())
    assert any(not c.promises_exact for c in docstrings.configurations(quick))


def test_tasks_are_held_out_docstrings(tmp_path, texts):
    for i in range(120):
        text = f'def f{i}(a):\n    """Return number {i} of them."""\n    return a[{i}]\n'
        (tmp_path / f"m{i}.py").write_text(text)
    tokenizer = train_source_tokenizer(texts, size=512)
    tasks = docstrings.held_out_tasks(tmp_path, tokenizer, seed=1)
    assert 0 < len(tasks) < 30
    for task in tasks:
        assert task.prompt[-1] == 1 and len(task.prompt) <= LONGEST_SOURCE
        assert tokenizer.decode(list(task.prompt)).startswith("docstring: def f")
        assert tokenizer.decode(list(task.reference)).startswith("Return number")
        assert len(task.reference) < LONGEST_TARGET
    other = docstrings.held_out_tasks(tmp_path, tokenizer, seed=2)
    assert set(other) == set(tasks) and other != tasks


def test_the_section_says_what_was_measured(messages):  # noqa: F811
    server = Server(messages)
    grid = docstrings.configurations(quick=True)
    ar, rows = measure.take_turns(server, grid, TURNS, 8, seed=1, reference=docstrings.AR)
    assert {request.model for request in server.asked} == {"docstring", "docstring-aligned"}
    measure.rate(server, ar, rows, TURNS, lambda tokens, task: 0.25, scorer=None)
    assert ar.rouge == 0.25 and not server.scored
    counts = measure.count_equal(server, grid[:2], TURNS[0], 8, 2, reference=docstrings.AR)
    text = docstrings.markdown(conditions_of(), ar, rows, counts, 3, [(ar, rows)] * 2)
    assert "**3/3**" in text and "BiLD, aligned small model" in text
    whole = page.put(
        f"a {docstrings.BEGIN} b {docstrings.END} c", text, docstrings.BEGIN, docstrings.END
    )
    assert "**3/3**" in whole and " b " not in whole
    table_lines = [line for line in text.split("\n") if line.startswith("| BiLD | ")]
    # Those that are held against AR's text, and all that are measured.
    assert len(table_lines) == 2 + sum(c.series == "BiLD" for c in grid)
