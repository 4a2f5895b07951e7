"""A sample of answers.py. scripts/test --night runs the whole."""

import pytest

pytest.importorskip("grpc_tools")
pytest.importorskip("jsonschema")

import answers  # noqa: E402


@pytest.fixture(scope="module")
def asker(binaries, tmp_path_factory):
    folder = tmp_path_factory.mktemp("schemas")
    with answers.server(binaries, folder) as address:
        yield answers.Asker(address, folder)


@pytest.fixture(scope="module")
def schemas():
    found = answers.real_schemas(60)
    if not found:
        pytest.skip("requires schemas (scripts/setup --full)")
    return found


def test_answers_under_real_schemas_are_valid(asker, schemas):
    counts, wrong = answers.check_answers(asker, schemas)
    assert not wrong
    assert sum(n for (status, _), n in counts.items() if status == "OK") >= 5, counts


def test_every_method_gives_the_tokens_of_autoregressive_decoding(asker, schemas):
    counts, wrong = answers.check_methods(asker, schemas, most=3)
    assert not wrong
    assert set(counts.values()) == {3} and len(counts) == 13


def test_what_is_invalid_is_seen():
    schema = {"type": "object", "required": ["a"]}
    answers.is_valid('{"a": 1}', schema)
    for text in ("{}", "{"):
        with pytest.raises((ValueError, answers.jsonschema.ValidationError)):
            answers.is_valid(text, schema)


def test_refusals_are_counted_by_keyword():
    message = "json_schema: /properties/a/not: keyword not supported"
    assert answers.keyword_of(message) == "not: keyword not supported"
    assert answers.keyword_of('json_schema: Invalid type "x" 3') == "json_schema: Invalid type _ _"
