"""Completions with several prompts, echo, scores and best_of, against gRPC's answers for the same prompts."""

import json
import math
import urllib.error
import urllib.request

import pytest

openai = pytest.importorskip("openai")

PROMPT = "def fib(n):"


@pytest.fixture(scope="module")
def api(start_server):
    return start_server(None, "--openai=127.0.0.1:0")


@pytest.fixture(scope="module")
def client(api):
    url = f"http://{api.ports['openai']}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def complete(client, prompt=PROMPT, **fields):
    fields = {"model": "pair", "max_tokens": 12, "seed": 7, **fields}
    return client.completions.create(prompt=prompt, **fields)


def post(api, path, body):
    """The status and the JSON of an answer."""
    request = urllib.request.Request(
        f"http://{api.ports['openai']}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_without_a_limit_the_answer_fills_the_context(client):
    context = client.models.retrieve("fake").tandem["limits"]["context_length"]
    for model in ("fake", "pair"):
        answer = complete(client, model=model, max_tokens=None, extra_body={"ignore_eos": True})
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens > 256
        # The memory also holds the drafts of a round.
        assert context - 80 <= answer.usage.total_tokens <= context


def test_each_method_fills_the_context(client):
    for method in client.models.retrieve("pair").tandem["methods"]:
        name = method["method"].removeprefix("METHOD_").lower()
        answer = complete(
            client, max_tokens=None, extra_body={"ignore_eos": True, "tandem": {"method": name}}
        )
        assert answer.usage.completion_tokens > 256, name


def test_several_prompts_are_answered_as_each_alone(client):
    prompts = [PROMPT, "second", [ord(c) for c in "third"], "4"]
    for fields in ({}, {"n": 2, "temperature": 1}):
        alone = [complete(client, prompt, **fields) for prompt in prompts]
        together = complete(client, prompts, **fields)
        texts = [choice.text for one in alone for choice in one.choices]
        assert [choice.text for choice in together.choices] == texts
        assert [choice.index for choice in together.choices] == list(range(len(texts)))
        for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert getattr(together.usage, count) == sum(getattr(one.usage, count) for one in alone)

        streamed, usage = {}, None
        for event in complete(
            client, prompts, stream=True, stream_options={"include_usage": True}, **fields
        ):
            usage = event.usage or usage
            for choice in event.choices:
                streamed[choice.index] = streamed.get(choice.index, "") + choice.text
        assert [streamed[i] for i in range(len(texts))] == texts
        assert usage.total_tokens == together.usage.total_tokens


def test_one_wrong_prompt_refuses_all_by_its_index(client, api):
    with pytest.raises(openai.BadRequestError) as error:
        complete(client, ["good", [10**6], "good"])
    assert error.value.param.startswith("prompt[1]"), error.value.message
    with pytest.raises(openai.BadRequestError) as error:
        complete(client, ["good", ""])
    assert error.value.param == "prompt[1]", error.value.message
    api.until(lambda: "tandem_requests_running{" in api.metrics(), "the metrics")
    assert complete(client, "good").choices[0].text


def test_echo_begins_with_the_prompt(client):
    alone = complete(client)
    for prompt in (PROMPT, [ord(c) for c in PROMPT]):
        assert complete(client, prompt, echo=True).choices[0].text == PROMPT + alone.choices[0].text
    text = "".join(event.choices[0].text for event in complete(client, echo=True, stream=True))
    assert text == PROMPT + alone.choices[0].text


def test_scores_of_a_prompt_are_those_of_its_tokens(client):
    scored = complete(client, echo=True, logprobs=2, max_tokens=0)
    choice = scored.choices[0]
    assert choice.text == PROMPT and choice.finish_reason == "length"
    assert scored.usage.completion_tokens == 0 and scored.usage.prompt_tokens == len(PROMPT)
    logprobs = choice.logprobs
    assert logprobs.tokens == list(PROMPT) and logprobs.text_offset == list(range(len(PROMPT)))
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    for token, own, top in zip(
        logprobs.tokens[1:], logprobs.token_logprobs[1:], logprobs.top_logprobs[1:], strict=True
    ):
        assert own <= max(top.values()) + 1e-6 and len(top) == 2
        if token in top:
            assert math.isclose(own, top[token], abs_tol=1e-6)

    # The same with generated tokens after them, and in a stream.
    longer = complete(client, echo=True, logprobs=2, max_tokens=3).choices[0]
    assert longer.logprobs.token_logprobs[: len(PROMPT)] == logprobs.token_logprobs
    assert len(longer.logprobs.tokens) == len(PROMPT) + 3
    streamed = []
    for event in complete(client, echo=True, logprobs=2, max_tokens=3, stream=True):
        streamed += event.choices[0].logprobs.token_logprobs if event.choices[0].logprobs else []
    assert streamed == longer.logprobs.token_logprobs


def test_a_greedy_answer_is_the_best_continuation_of_its_prompt(client):
    """What evaluations of multiple choices compute: the answer's tokens have the best scores."""
    text = PROMPT + complete(client, max_tokens=4, temperature=0).choices[0].text
    logprobs = complete(client, text, echo=True, logprobs=1, max_tokens=1).choices[0].logprobs
    own = logprobs.token_logprobs[len(PROMPT) : -1]
    best = [max(top.values()) for top in logprobs.top_logprobs[len(PROMPT) : -1]]
    assert own == pytest.approx(best)


def test_the_best_choices_are_among_those_generated(client):
    fields = {"temperature": 1, "max_tokens": 6}
    every = complete(client, n=6, logprobs=0, **fields)
    mean = {
        choice.text: sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)
        for choice in every.choices
    }
    best = complete(client, n=2, best_of=6, **fields)
    assert [choice.text for choice in best.choices] == sorted(mean, key=mean.get, reverse=True)[:2]
    assert best.usage.completion_tokens == every.usage.completion_tokens


def test_a_suffix_needs_tokens_for_it(client):
    with pytest.raises(openai.BadRequestError) as error:
        complete(client, suffix="end")
    assert error.value.param == "suffix"
    assert 'model "pair" has no fill-in-the-middle tokens' in error.value.message


def test_drafts_are_in_usage_and_metrics(api):
    body = {
        "model": "pair",
        "prompt": PROMPT,
        "max_tokens": 40,
        "tandem": {"method": "speculative"},
    }
    status, answer = post(api, "/v1/completions", body)
    assert status == 200
    drafts = answer["metrics"]["speculative_decoding"]
    histogram = {int(k): v for k, v in drafts["acceptance_histogram"].items()}
    assert sum(histogram.values()) == drafts["num_spec_steps"] > 0
    accepted = sum(k * v for k, v in histogram.items())
    assert accepted == drafts["num_accepted_draft_tokens"] <= drafts["num_draft_tokens"]
    details = answer["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == accepted
    assert details["rejected_prediction_tokens"] == drafts["num_draft_tokens"] - accepted
    status, plain = post(api, "/v1/completions", {**body, "tandem": {"method": "autoregressive"}})
    assert "metrics" not in plain and plain["choices"] == answer["choices"]
