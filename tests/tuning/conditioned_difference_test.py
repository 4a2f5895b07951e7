"""tuning/conditioned_difference.py: what lies between two reports, and how sure that is."""

import json
import statistics

import pytest

from tuning import conditioned_difference


def report(
    conditioned, nats, kinds=("name", "docstring", "name", "docstring"), tokens=(1, 4, 3, 2)
):
    name = "llm_to_slm" if conditioned else "small, tuned alone"
    texts = {"kinds": list(kinds), "tokens": list(tokens), "nats": {name: nats, "small": [9] * 4}}
    return {"settings": {"conditioned": conditioned}, "texts": texts}


CONDITIONED, UNCONDITIONED = report(True, [1.0, 8.0, 6.0, 5.0]), report(False, [2.0, 8.0, 9.0, 5.0])


def test_a_mean_of_equal_parts_has_the_usual_error():
    values = [1.0, 3.0, 4.0, 8.0]
    mean, error = conditioned_difference.mean_and_error(values, [1] * 4)
    assert mean == 4 and error == pytest.approx(statistics.stdev(values) / 2)
    mean, error = conditioned_difference.mean_and_error([2 * v for v in values], [2] * 4)
    assert mean == 4 and error == pytest.approx(statistics.stdev(values) / 2)
    assert conditioned_difference.mean_and_error([2.0, 6.0], [1, 3]) == (2, 0)
    mean, error = conditioned_difference.mean_and_error([2.0], [4])
    assert mean == 0.5 and error != error


def test_differences_are_of_tokens_in_all_and_by_kind():
    found = conditioned_difference.differences(CONDITIONED, UNCONDITIONED)
    assert {name: mean for name, (mean, _) in found.items()} == {
        "all": -0.4,
        "docstring": 0,
        "name": -1,
    }
    assert found["docstring"][1] == found["name"][1] == 0 < found["all"][1]
    one_kind = [report(conditioned, [1.0] * 4, [""] * 4) for conditioned in (True, False)]
    assert conditioned_difference.differences(*one_kind) == {"all": (0, 0)}


def test_reports_of_other_texts_are_refused():
    for field, others in (("kinds", ["name"] * 4), ("tokens", [1, 4, 3, 3])):
        with pytest.raises(SystemExit, match=f"texts differ in {field}; allowed"):
            conditioned_difference.differences(
                CONDITIONED, report(False, [1.0] * 4, **{field: others})
            )


def test_each_other_report_has_a_line(tmp_path, capsys):
    files = []
    for name, text in (
        ("conditioned", CONDITIONED),
        ("unconditioned", UNCONDITIONED),
        ("again", CONDITIONED),
    ):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(text))
    conditioned_difference.main([str(file) for file in files])
    lines = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[1:-1]] == [
        "nats/token",
        "all",
        "docstring",
        "name",
    ]
    assert (
        "conditioned - unconditioned | -0.400 ± " in lines[2] and "| -1.000 ± 0.000 |" in lines[2]
    )
    assert "conditioned - again | +0.000 ± 0.000 |" in lines[3]
