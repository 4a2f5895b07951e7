"""Tool calls and reasoning over HTTP, with OpenAI's Python client. Fake models write scripted answers."""

import json

import pytest

openai = pytest.importorskip("openai")

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
PICK = {  # one call is valid
    "type": "function",
    "function": {
        "name": "pick",
        "parameters": {
            "type": "object",
            "properties": {"x": {"enum": ["a"]}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
}
HERMES = '<tool_call>{"name": "get_weather", "arguments": {"city": "Zürich"}}</tool_call>'
CITY = {"city": "Zürich"}

# Name of the model: its answers by turn, and further settings.
MODELS = {
    "loop": ([f"Let me see.\n{HERMES}", "It is 18 degrees."], ""),
    "two": ([f'{HERMES}\n<tool_call>{{"name": "now", "arguments": {{}}}}</tool_call>'], ""),
    "malformed": (['Hm. <tool_call>{"name": "now", "arguments": {"a": oops}}</tool_call>'], ""),
    "none": ([HERMES], "NONE"),
    "typed": (['<tool_call>\n{"name": "pick", "arguments": {"x": "b"}}\n</tool_call>'], ""),
    "counts": (['<think>1 + 1</think>{"sum": 2}'], ""),
    "thinks": (["<think>\nA city.\n</think>\n\n" + HERMES, "Done."], ""),
}  # fmt: skip
NAMED = '{"name": "get_weather", "arguments": {"city": "Zürich"}}'
LLAMA = NAMED.replace("arguments", "parameters")
# Name of the format: begin, separator and end of calls, and the calls.
FORMATS = {
    "hermes": ("<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>", NAMED, '{"name": "now", "arguments": {}}'),
    "llama3": ("\n", "; ", "", LLAMA, '{"name": "now", "parameters": {}}'),
    "mistral": ("[TOOL_CALLS][", ", ", "]", NAMED, '{"name": "now", "arguments": {}}'),
    "phi4": ("<|tool_call|>[", ", ", "]<|/tool_call|>", NAMED, '{"name": "now", "arguments": {}}'),
    "gemma": ("\n```tool_code\n", "\n", "\n```", 'get_weather(city="Zürich")', "now()"),
}  # fmt: skip
for _name, (_begin, _between, _end, _call, _now) in FORMATS.items():
    _two = _begin + _call + _between + _now + _end
    for _kind, _text in (
        ("one", _begin + _call + _end),
        ("two", _two),
        ("text", f"I look.{_two}\nDone."),
    ):
        MODELS[f"{_name}-{_kind}"] = ([_text], _name.upper())


def config():
    text = ""
    for name, (answers, tool_format) in MODELS.items():
        script = " ".join("answers: " + json.dumps(answer) for answer in answers)
        text += f'models {{ name: "{name}" fake {{ {script} }} }}\n'
        tools = f"tool_format: TOOL_FORMAT_{tool_format}" if tool_format else ""
        thinks = name in ("thinks", "counts")
        reasoning = "reasoning_format: REASONING_FORMAT_THINK" if thinks else ""
        text += f'deployments {{ name: "{name}" large: "{name}" {tools} {reasoning} }}\n'
    return text


@pytest.fixture(scope="module")
def client(start_server):
    server = start_server(config(), "--openai=127.0.0.1:0")
    url = f"http://{server.ports['openai']}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def ask(client, model, messages=None, **fields):
    messages = messages or [{"role": "user", "content": "How warm is it in Zürich?"}]
    fields = {"tools": [WEATHER, NOW], "max_tokens": 400, **fields}
    return client.chat.completions.create(model=model, messages=messages, **fields)


def streamed(client, model, **fields):
    """The message and finish reason of a stream, put together as its deltas say."""
    message, reason, calls = {"content": "", "reasoning": ""}, None, {}
    for chunk in ask(client, model, stream=True, **fields):
        for choice in chunk.choices:
            delta = choice.delta
            message["content"] += delta.content or ""
            message["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            reason = choice.finish_reason or reason
            for part in delta.tool_calls or []:
                call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                call["id"] += part.id or ""
                call["name"] += part.function.name or ""
                call["arguments"] += part.function.arguments or ""
    return message, calls, reason


def calls_of(message):
    return [
        (call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls or []
    ]


def test_a_loop_of_calls(client):
    messages = [{"role": "user", "content": "How warm is it in Zürich?"}]
    first = ask(client, "loop", messages).choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.content == "Let me see."
    (call,) = first.message.tool_calls
    assert call.type == "function" and len(call.id) == 9
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == CITY
    # As clients do: the message is returned unchanged.
    messages += [
        first.message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "18"},
    ]
    second = ask(client, "loop", messages).choices[0]
    assert second.finish_reason == "stop"
    assert second.message.content == "It is 18 degrees."
    assert second.message.tool_calls is None


def test_a_loop_of_streams(client):
    message, calls, reason = streamed(client, "loop")
    assert reason == "tool_calls" and message["content"] == "Let me see."
    assert list(calls) == [0] and calls[0]["name"] == "get_weather" and len(calls[0]["id"]) == 9
    assert json.loads(calls[0]["arguments"]) == CITY
    messages = [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": calls[0]["id"], "type": "function", "function": {"name": "get_weather", "arguments": calls[0]["arguments"]}}
            ],
        },
        {"role": "tool", "tool_call_id": calls[0]["id"], "content": "18"},
    ]  # fmt: skip
    message, calls, reason = streamed(client, "loop", messages=messages)
    assert (message["content"], calls, reason) == ("It is 18 degrees.", {}, "stop")


def test_the_clients_own_accumulation(client):
    with client.chat.completions.stream(
        model="two", messages=[{"role": "user", "content": "?"}], tools=[WEATHER, NOW]
    ) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    assert calls_of(message) == [("get_weather", CITY), ("now", {})]
    assert len({call.id for call in message.tool_calls}) == 2


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(client, name):
    """One call, parallel calls, and text before and behind them; as a whole and as a stream."""
    both = [("get_weather", CITY), ("now", {})]
    for model, content, expected in (
        (f"{name}-one", None, both[:1]),
        (f"{name}-two", None, both),
        (f"{name}-text", "I look.Done.", both),
    ):
        whole = ask(client, model).choices[0]
        assert calls_of(whole.message) == expected
        assert whole.message.content == content and whole.finish_reason == "tool_calls"
        message, calls, reason = streamed(client, model)
        made = [(call["name"], json.loads(call["arguments"])) for call in calls.values()]
        assert made == expected and list(calls) == list(range(len(expected)))
        assert message["content"] == (content or "") and reason == "tool_calls"
        one = ask(client, model, parallel_tool_calls=False).choices[0].message
        assert calls_of(one) == expected[:1] and one.content == content


def test_calls_are_text_without_tools(client):
    for fields in ({"tools": openai.NOT_GIVEN}, {"tool_choice": "none"}):
        choice = ask(client, "loop", **fields).choices[0]
        assert choice.message.content == f"Let me see.\n{HERMES}"
        assert choice.message.tool_calls is None and choice.finish_reason == "stop"
    assert ask(client, "none").choices[0].message.content == HERMES
    raw = ask(client, "loop", extra_body={"tandem": {"raw_text": True}}).choices[0]
    assert raw.message.content == f"Let me see.\n{HERMES}"


def test_parallel_calls(client):
    assert len(ask(client, "two").choices[0].message.tool_calls) == 2
    one = ask(client, "two", parallel_tool_calls=False).choices[0].message
    assert calls_of(one) == [("get_weather", CITY)]


def test_allowed_tools(client):
    def choose(*names):
        tools = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}

    # A JSON object is a call only of a tool that the model may call.
    assert (
        ask(client, "llama3-one", tool_choice=choose("get_weather")).choices[0].message.tool_calls
    )
    other = ask(client, "llama3-one", tool_choice=choose("now")).choices[0]
    assert other.message.tool_calls is None and other.finish_reason == "stop"
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, "llama3-one", tool_choice=choose("other"))
    assert error.value.param.startswith("tool_choice")


def test_malformed_calls_are_content(client):
    text = MODELS["malformed"][0][0]
    whole = ask(client, "malformed").choices[0]
    assert whole.message.content == text
    assert whole.message.tool_calls is None and whole.finish_reason == "stop"
    message, _, reason = streamed(client, "malformed")
    assert message["content"] == text and reason == "stop"


def test_a_limit_cuts_a_call(client):
    whole = ask(client, "loop", max_tokens=75).choices[0]
    assert whole.finish_reason == "length"
    (call,) = whole.message.tool_calls
    assert '{"city": "Zürich"}'.startswith(call.function.arguments)
    _, calls, reason = streamed(client, "loop", max_tokens=75)
    assert calls[0]["arguments"] == call.function.arguments and reason == "length"


def test_reasoning(client):
    whole = ask(client, "thinks")
    message = whole.choices[0].message
    assert message.reasoning_content == "A city." and message.content is None
    assert calls_of(message) == [("get_weather", CITY)]
    reasoning = "<think>\nA city.\n</think>"
    assert whole.usage.completion_tokens_details.reasoning_tokens == len(reasoning)
    message, calls, reason = streamed(client, "thinks")
    assert message["reasoning"] == "A city." and reason == "tool_calls"
    assert json.loads(calls[0]["arguments"]) == CITY
    # Without tools too; and clients return it with the history.
    plain = ask(client, "thinks", tools=openai.NOT_GIVEN).choices[0].message
    assert plain.reasoning_content == "A city." and plain.content == HERMES
    messages = [
        {"role": "user", "content": "?"},
        plain.model_dump(),
        {"role": "user", "content": "?"},
    ]
    assert ask(client, "thinks", messages).choices[0].message.content == "Done."


def test_choices_have_their_own_calls(client):
    choices = ask(client, "loop", n=3).choices
    assert [calls_of(choice.message) for choice in choices] == [[("get_weather", CITY)]] * 3
    assert len({choice.message.tool_calls[0].id for choice in choices}) == 3


def test_required_and_named_tools(client):
    """The script writes text; the constraint leaves one call."""
    for choice in ("required", {"type": "function", "function": {"name": "pick"}}):
        tools = [PICK] if choice == "required" else [WEATHER, PICK]
        made = ask(client, "loop", tools=tools, tool_choice=choice, parallel_tool_calls=False)
        assert calls_of(made.choices[0].message) == [("pick", {"x": "a"})]
        assert made.choices[0].finish_reason == "tool_calls"
        assert made.tandem["constraint_satisfied"]
        assert made.choices[0].message.content is None
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, "none", tool_choice="required")
    assert "tool_choice" in error.value.message and "tool_format" in error.value.message
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, "loop", tools=openai.NOT_GIVEN, tool_choice="required")
    assert error.value.param == "tools"


def test_a_strict_tool_constrains_its_arguments(client):
    free = ask(client, "typed", tools=[PICK]).choices[0].message
    assert calls_of(free) == [("pick", {"x": "b"})]
    strict = {**PICK, "function": {**PICK["function"], "strict": True}}
    bound = ask(client, "typed", tools=[strict]).choices[0].message
    assert calls_of(bound) == [("pick", {"x": "a"})]
    text = ask(client, "loop", tools=[strict]).choices[0].message
    assert text.content.startswith("Let me see."), "text is free"


def with_schema(tool, schema):
    return {**tool, "function": {**tool["function"], "strict": True, "parameters": schema}}


def test_an_error_names_the_tool_with_the_schema(client):
    unsupported = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    tools = [WEATHER, with_schema(PICK, unsupported)]
    named = {"type": "function", "function": {"name": "pick"}}
    for choice in ("required", "auto", named):
        with pytest.raises(openai.BadRequestError) as error:
            ask(client, "loop", tools=tools, tool_choice=choice)
        assert error.value.param == "tools[1].function.parameters"
        assert "/properties/x/uniqueItems: keyword not supported" in error.value.message
    ask(client, "loop", tools=tools, tool_choice="none")


def test_an_error_names_the_format_of_an_answer_behind_reasoning(client):
    schema = {"type": "array", "uniqueItems": True}
    with pytest.raises(openai.BadRequestError) as error:
        ask(
            client,
            "counts",
            tools=openai.NOT_GIVEN,
            response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
        )
    assert error.value.param == "response_format"
    assert "/uniqueItems: keyword not supported" in error.value.message


def test_a_schema_begins_behind_the_reasoning(client):
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    answer = ask(
        client,
        "counts",
        tools=openai.NOT_GIVEN,
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
    )
    message = answer.choices[0].message
    assert message.reasoning_content == "1 + 1" and message.content == '{"sum": 2}'
    assert answer.tandem["constraint_satisfied"]
