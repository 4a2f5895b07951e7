"""Structured output over HTTP: every method, every field, refusals, and schemas made to be slow."""

import concurrent.futures
import json
import time

import pytest

openai = pytest.importorskip("openai")
jsonschema = pytest.importorskip("jsonschema")

# Bounded, because the fake model writes random bytes.
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12, "pattern": "^[a-z ]*$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["x", "yy", "zzz"]}, "maxItems": 4},
        "next": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age", "tags", "next"],
    "additionalProperties": False,
}
METHODS = ["autoregressive", "speculative", "ngram", "bild", "auto"]
EXACT_BILD = {"rollback_threshold": 0.69}


@pytest.fixture(scope="module")
def client(start_server):
    server = start_server(None, "--openai=127.0.0.1:0")
    url = f"http://{server.ports['openai']}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def complete(client, constraint, prompt="x", tandem=None, **fields):
    fields = {"model": "pair", "max_tokens": 400, "seed": 1, **fields}
    extra = {**constraint, **({"tandem": tandem} if tandem else {})}
    return client.completions.create(prompt=prompt, extra_body=extra, **fields)


def as_response_format(schema):
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    }


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_answers_of_every_method_satisfy_the_schema_and_are_equal(client, temperature):
    for prompt in ("a", "another", "third"):
        texts = set()
        for method in METHODS:
            exact = method != "bild" or temperature == 0
            tandem = {"bild": EXACT_BILD} if method == "bild" else {"method": method}
            if exact:
                tandem["contract"] = "exact"
            answer = complete(
                client, as_response_format(SCHEMA), prompt, tandem, temperature=temperature
            )
            choice = answer.choices[0]
            assert choice.finish_reason == "stop" and answer.tandem["constraint_satisfied"] is True
            jsonschema.validate(json.loads(choice.text), SCHEMA)
            if exact:
                texts.add(choice.text)
        assert len(texts) == 1, texts


@pytest.mark.parametrize(
    "constraint",
    [
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA), "whitespace_pattern": "[ ]"}},
        {"guided_json": SCHEMA, "guided_decoding_backend": "auto"},
        {"json_schema": SCHEMA},
    ],
)
def test_every_name_of_a_schema(client, constraint):
    text = complete(client, constraint).choices[0].text
    jsonschema.validate(json.loads(text), SCHEMA)


def test_other_constraints(client):
    for named in (
        lambda member, value: {"structured_outputs": {member: value}},
        lambda member, value: {f"guided_{member}": value},
    ):
        assert complete(client, named("choice", ["no", "not"])).choices[0].text in ("no", "not")
        assert complete(client, named("regex", "[0-9]{4}-[0-9]{2}")).choices[0].text[4] == "-"
        assert complete(client, named("grammar", 'start: "a" "b"~3')).choices[0].text == "abbb"
    assert complete(client, {"grammar": 'root ::= "x" ("y" | "z"){2}'}).choices[0].text[0] == "x"
    tag = {
        "triggers": ["<"],
        "structures": [{"begin": "<", "schema": {"type": "null"}, "end": ">"}],
    }
    for constraint in (
        {"structured_outputs": {"structural_tag": json.dumps(tag)}},
        {"response_format": {"type": "structural_tag", **tag}},
    ):
        assert complete(client, constraint, max_tokens=20).usage.completion_tokens
    answer = complete(client, {"response_format": {"type": "json_object"}}, max_tokens=5)
    text, finished = answer.choices[0].text, answer.choices[0].finish_reason == "stop"
    assert isinstance(json.loads(text), dict) if finished else text.startswith("{")
    assert answer.tandem["constraint_satisfied"] is finished


def test_choices_and_streams(client):
    whole = complete(client, as_response_format(SCHEMA), n=3, temperature=1)
    texts = [choice.text for choice in whole.choices]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert len(set(texts)) > 1
    streamed, satisfied = ["", "", ""], 0
    for chunk in complete(client, as_response_format(SCHEMA), n=3, temperature=1, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
        satisfied += bool((getattr(chunk, "tandem", None) or {}).get("constraint_satisfied"))
    assert streamed == texts and satisfied == 3


def refused(client, constraint, **fields):
    with pytest.raises(openai.BadRequestError) as error:
        complete(client, constraint, **fields)
    return error.value.message


def test_refusals_name_the_field(client):
    unsupported = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    for constraint, name in [
        (as_response_format(unsupported), "response_format"),
        ({"structured_outputs": {"json": unsupported}}, "structured_outputs.json"),
        ({"guided_json": unsupported}, "guided_json"),
        ({"json_schema": unsupported}, "json_schema"),
    ]:
        message = refused(client, constraint)
        assert f"{name}: /properties/a/uniqueItems: keyword not supported" in message
    assert "guided_regex: " in refused(client, {"guided_regex": "("})
    assert "structured_outputs.grammar: " in refused(
        client, {"structured_outputs": {"grammar": "a"}}
    )
    assert "grammar: " in refused(client, {"grammar": "a"})
    space = {"guided_json": SCHEMA, "guided_whitespace_pattern": "("}
    assert "guided_whitespace_pattern: " in refused(client, space)
    assert "response_format: Invalid type" in refused(client, as_response_format({"type": "sound"}))
    assert "response_format.type" in refused(client, {"response_format": {"type": "yaml"}})
    both = {"json_schema": SCHEMA, "guided_regex": "x"}
    assert "json_schema: set; allowed: unset with guided_regex" in refused(client, both)
    assert "backend" in refused(client, {"structured_outputs": {"backend": "x"}})
    assert "choice" in refused(client, {"guided_choice": []})
    assert "ignore_eos" in refused(client, {"guided_regex": "x"}, tandem={"ignore_eos": True})
    space = {"structured_outputs": {"regex": "x", "whitespace_pattern": " "}}
    assert "whitespace_pattern" in refused(client, space)


def test_a_constraint_without_a_legal_token_ends_one_request(client):
    with pytest.raises(openai.APIStatusError) as error:
        complete(client, {"guided_regex": "a|b"}, tandem={"bad_token_ids": [97, 98]})
    assert "no token may follow" in error.value.message
    assert complete(client, {"guided_regex": "a|b"}).choices[0].text in ("a", "b")


BOMBS = [
    {"guided_regex": "((a{1,999}){1,999}){1,999}"},
    {"guided_regex": "(.*a){200}"},
    {"guided_regex": "x?[ab]*a[ab]{4000}"},
    {"guided_regex": "(" * 5000 + "a" + ")" * 5000},
    {"guided_regex": "(\\pL{1,1000}){1,1000}"},
    {"guided_grammar": "start: " + "(" * 100000},
    {"guided_grammar": 'start: start start start | "a" | ""'},
    {"grammar": 'root ::= root root | "a"{1,60000}'},
    {"json_schema": {"$ref": "#"}},
    {"json_schema": {"type": "string", "pattern": "^(a|b|ab){1,5000}$"}},
    {"json_schema": {"type": "array", "minItems": 100000000}},
    {"json_schema": {"properties": {f"k{i}": {"maxLength": 9999} for i in range(3000)}}},
    {"guided_choice": [f"{i:08}" * 20 for i in range(2000)]},
]


def test_bombs_delay_no_other_client(client):
    """Each is refused or bounded, and streams of other clients go on."""
    gaps = []

    def stream_on():
        for _ in range(12):
            before = time.monotonic()
            for _ in client.completions.create(
                model="fake", prompt="x", max_tokens=200, stream=True
            ):
                now = time.monotonic()
                gaps.append(now - before)
                before = now

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        other = pool.submit(stream_on)
        for bomb in BOMBS:
            try:
                complete(client, bomb, max_tokens=40, timeout=60)
            except openai.APIStatusError as error:
                assert error.status_code in (400, 429), error.message
        other.result()
    assert max(gaps) < 2, "bounds only a failure: a machine under test may be slow"
