"""The parts of the benchmarks that need neither a server nor time."""

import itertools

import pytest

from tuning.benchmark import models, report


def conditions():
    return report.Conditions(
        command="scripts/bench_ar ",
        commit="abc",
        processor="Some Processor (AVX2)",
        cores=2,
        threads=2,
        bandwidth=12.34e9,
        busy=[0.01, 0.024],
        versions="transformers 1, torch 2",
        prompt_tokens=64,
        new_tokens=128,
        repeats=3,
    )


def test_the_fastest_variant_counts():
    case = report.Case("m", 8, ours=[90, 100, 120], theirs={"a": [10, 60, 70], "b": [50, 50, 99]})
    assert case.best() == "a"
    assert case.ratio() == pytest.approx(100 / 60)


def test_page():
    cases = [
        report.Case("m", 1, [20, 30, 40], {"a": [10, 10, 10]}, same_tokens=3, all_tokens=4),
        report.Case("m", 8, [], {"a": [10, 20, 15]}, sequential=7.0),
    ]
    page = report.markdown(conditions(), cases)
    assert "| m | 1 | 30.0 (20.0-40.0) | 10.0 (10.0-10.0) | **3.00** | a | - | 75.0% |" in page
    assert "| m | 8 | - | 15.0 (10.0-20.0) | - | a | 7.0 | - |" in page
    assert "| machine busy before and after | 1%, 2% |" in page
    assert "| reading memory | 12.3 GB/s |" in page
    assert "`scripts/bench_ar`" in page


def test_match_counts_until_the_first_difference():
    from tuning.benchmark.ar import match

    assert match([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 9, 6]]) == (4, 6)


def test_prompts_are_long_enough_and_differ():
    some = list(itertools.islice(models.prompts(64), 200))
    assert all(len(prompt) == 64 and prompt[0] == 0 for prompt in some)
    assert len({tuple(prompt) for prompt in some}) == len(some)


def test_stubs_speak_the_protocol(tmp_path):
    from tuning.benchmark import serving

    messages, services = serving.stubs(str(tmp_path))
    request = messages.GenerateRequest(model="m", token_ids=messages.TokenIds(ids=[1, 2]))
    assert request.WhichOneof("prompt") == "token_ids"
    assert hasattr(services, "GenerationStub")
