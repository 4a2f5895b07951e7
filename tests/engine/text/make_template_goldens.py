"""Chat templates in public styles and what Transformers makes of them; called by make_goldens.py.

The templates are small versions of the styles, written for these tests. `EXPRESSIONS` are single Jinja features,
rendered by the same code of Transformers.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}
"""

LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{% generation %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)

LLAMA3 = """{{- bos_token }}
{%- set date_string = date_string if date_string is defined else strftime_now("%d %b %Y") %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "You have access to these functions.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role == 'tool' or message.role == 'ipython' %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or (message.content is iterable and message.content is not string) %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- elif message.tool_calls is defined and message.tool_calls %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user, assistant, tool roles are supported, got " ~ message.role) }}
    {%- endif %}
{%- endfor %}
"""

ZEPHYR = """{% for message in messages %}
    {% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
    {% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
    {% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
    {% endif %}
    {% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
    {% endif %}
{% endfor %}"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' -}}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
{{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""

# Reasoning and tools with macros, namespaces and break, as in recent models.
REASONING = """{%- macro show(tool) %}
{%- if tool is mapping %}{{ tool.name }}({% for k, v in tool.parameters.properties.items() %}{{ k }}: {{ v.type | default('any') }}\
{% if not loop.last %}, {% endif %}{% endfor %}){% else %}?{% endif %}
{%- endmacro %}
{%- set ns = namespace(last=-1, found=false) %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" and not ns.found %}
        {%- set ns.last = (messages | length - 1) - loop.index0 %}
        {%- set ns.found = true %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- if tools %}<tools>{% for tool in tools %}{{ show(tool.function) }}; {% endfor %}</tools>
{% endif %}
{%- for message in messages %}
    {%- if message.role not in ["user", "assistant", "system", "tool"] %}{% continue %}{% endif %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = message.reasoning_content | default('', true) %}
        {%- if not reasoning and '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
<|assistant|>{% if loop.index0 > ns.last and reasoning %}<think>{{ reasoning.strip() }}</think>{% endif %}{{ content }}
        {%- for call in message.tool_calls or [] %}<call>{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}</call>{% endfor %}
    {%- else %}
<|{{ message.role | upper }}|>{{ content.strip() }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
<|assistant|>{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}
{%- endif %}
"""

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
MODELS = {  # folder -> (tokenizer_config.json, other files)
    "chatml": ({"chat_template": CHATML, "eos_token": "<|im_end|>"}, {}),
    "llama2": (TOKENS | {"chat_template": LLAMA2}, {}),
    "llama3": (
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        {"chat_template.jinja": LLAMA3},
    ),
    "mistral": (
        TOKENS
        | {
            "chat_template": [
                {"name": "default", "template": CHATML},
                {"name": "tool_use", "template": MISTRAL},
            ]
        },
        {},
    ),
    "mistral_single": (
        {"chat_template": "never used", "added_tokens_decoder": {}}
        | TOKENS
        | {
            "bos_token": {
                "__type": "AddedToken",
                "content": "<s>",
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "single_word": False,
                "special": True,
            }
        },
        {"chat_template.jinja": MISTRAL.replace("\n", "\r\n")},
    ),
    "zephyr": (
        {"chat_template": ZEPHYR},
        {
            "special_tokens_map.json": json.dumps(
                {
                    "eos_token": {
                        "content": "</s>",
                        "lstrip": False,
                        "normalized": False,
                        "rstrip": False,
                        "single_word": False,
                    }
                }
            )
        },
    ),
    "gemma": ({"bos_token": "<bos>"}, {"chat_template.jinja": GEMMA}),
    "reasoning": (
        {},
        {
            "chat_template.jinja": REASONING,
            "additional_chat_templates/tool_use.jinja": "tools: {{ tools | map(attribute='function') | map(attribute='name') | join(', ') }}\n"
            + REASONING,
        },
    ),
}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather\'s "state" <now> & here — für 東京',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Zürich", "Paris"]},
                "days": {"type": "integer", "default": 1.0},
                "items": {"type": "array", "items": {"type": "number"}},
            },
            "required": ["city"],
        },
        "return": {"type": "number"},
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
}
CALL = {
    "id": "abcdef123",
    "type": "function",
    "function": {
        "name": "get_weather",
        "arguments": {
            "city": "Zürich",
            "days": 2,
            "exact": None,
            "flags": [True, False],
            "x": 1e-7,
        },
    },
}


def user(text: object) -> dict:
    return {"role": "user", "content": text}


def assistant(text: object) -> dict:
    return {"role": "assistant", "content": text}


def system(text: object) -> dict:
    return {"role": "system", "content": text}


CONVERSATIONS = [  # messages, tools, extra arguments
    ([user("Hello")], None, {}),
    ([user("Hello"), assistant("Hi there!"), user("How are you?")], None, {}),
    ([system("You are kind."), user("Hello"), assistant("Hi"), user("Bye")], None, {}),
    ([system("  spaces \n"), user("\n\ttabs and\nlines \n")], None, {}),
    (
        [
            user("Ünïcödé 漢字 😀 \u200d \u00a0"),
            assistant("<|im_end|></s>[/INST] & <b>'\"\\"),
            user("{{ 7*7 }}{% raw %}"),
        ],
        None,
        {},
    ),
    ([user("a"), user("b")], None, {}),
    ([user("")], None, {}),
    ([assistant("I begin")], None, {}),
    ([user("What's the weather?")], [WEATHER], {}),
    (
        [
            user("What's the weather?"),
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "abcdef123", "content": "18.5"},
            assistant("18.5 degrees"),
            user("Thanks"),
        ],
        [WEATHER, CLOCK],
        {},
    ),
    (
        [
            system("Use tools"),
            user("x"),
            {"role": "assistant", "tool_calls": [CALL, CALL]},
            {
                "role": "tool",
                "tool_call_id": "abcdef123",
                "content": {"content": [1, 2.5, None, True, "it's"]},
            },
        ],
        [CLOCK],
        {"date_string": "1 Jan 2000"},
    ),
    ([user([{"type": "text", "text": " look "}, {"type": "image"}]), assistant("a cat")], None, {}),
    (
        [
            user("Think"),
            {"role": "assistant", "content": "42", "reasoning": "6*7\n"},
            user("More"),
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes", "thinking": None},
        ],
        None,
        {},
    ),
    (
        [user("q"), {"role": "assistant", "reasoning_content": "why", "content": "because"}],
        [],
        {"enable_thinking": False, "bos_token": "<other>"},
    ),
    ([{"role": "weird", "content": "?"}, user("ok")], None, {}),
    ([user("x" * 300), assistant("line\n" * 20), user("last")], None, {"enable_thinking": True}),
]

EXPRESSIONS = [
    "{{ true }} {{ false }} {{ none }} {{ missing }} {{ 1.0 }} {{ 1e20 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 3 / 2 }} {{ 7 // 2 }} {{ 7 % 3 }}",
    "{{ [1, 'a', \"it's\", none, true, 2.5] }} {{ {'k': [1], 'q': 'x\\ny'} }}",
    "{{ data.floats }} {{ data.nested }} {{ data.text }}",
    "{{ data | tojson }}",
    "{{ data | tojson(indent=2) }}",
    "{{ data.nested | tojson(indent=4, sort_keys=true) }}",
    "{{ data.text | tojson(ensure_ascii=true) }}",
    "{{ data.nested | tojson(separators=(',', ':')) }}",
    "{{ [] | tojson(indent=2) }}{{ {} | tojson(indent=2) }}{{ [[], {}] | tojson(indent=1) }}",
    "{{ '<a href=\"x\">&\\'</a>' | tojson }} {{ '<&>' }} {{ '<&>' | safe }}",
    "{{ '  x y  '.strip() }}|{{ 'xxabxx'.strip('x') }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ '\\x1c a\\u3000'.strip() }}|",
    "{{ 'a,b,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c d'.split(' ', 2) }} {{ 'a.b.c'.rsplit('.', 1) }} {{ 'a b c'.split(maxsplit=1) }}",
    "{{ 'abc'.upper() }} {{ 'ABC'.lower() }} {{ 'hello world'.title() }} {{ 'hELLO'.capitalize() }} {{ 'a-b'.replace('-', '+') }}",
    "{{ 'abc'.startswith('a') }} {{ 'abc'.endswith(('b', 'c')) }} {{ 'äbc'.find('c') }} {{ 'abc'.find('z') }} {{ 'abcabc'.rfind('b') }} {{ 'aXbX'.count('X') }}",
    "{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ 'a=b=c'.partition('=') | join('|') }} {{ 'a=b=c'.rpartition('=') | list | join('|') }}",
    "{{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ 'Ab'.islower() }} {{ '7'.zfill(3) }}",
    "{{ 'a\\nb\\r\\nc\\n'.splitlines() }} {{ 'a\\nb'.splitlines(true) }} {{ ', '.join(['x', 'y']) }}",
    "{% for k, v in data.nested.items() %}{{ k }}={{ v }};{% endfor %} {{ data.nested.keys() | list }} {{ data.nested.get('zz') }} {{ data.nested.get('zz', 5) }} {{ data.nested.get('a') }}",
    "{% for k, v in data.nested | dictsort %}{{ k }}{% endfor %}{% for x in data.nested %}{{ x }}{% endfor %}",
    "{{ data is mapping }} {{ data.floats is sequence }} {{ 'x' is sequence }} {{ 'x' is iterable }} {{ 1 is iterable }} {{ 1 is number }} {{ true is number }} {{ 1 is integer }} {{ 'a' is string }} {{ none is none }} {{ missing is defined }} {{ data.zz is undefined }}",
    "{{ messages[-1].content }} {{ messages[0]['role'][0] }} {{ messages[1:] | length }} {{ messages[::-1][0].content }} {{ 'abc'[1:] }} {{ 'abc'[-1] }} {{ 'abc'[::-1] }}",
    "{{ messages | map(attribute='role') | join(',') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'eq', 'user') | map(attribute='content') | list }}",
    "{% set ns = namespace(n=0, s='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.s = ns.s ~ m.role ~ ns.n %}{% endfor %}{{ ns.n }} {{ ns.s }}",
    "{% macro f(a, b='x') %}[{{ a }}{{ b }}{{ caller() if caller else '' }}]{% endmacro %}{{ f(1) }}{{ f(1, b=2) }}{% call f('c') %}body{% endcall %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}{% for x in [] %}a{% else %}empty{% endfor %}",
    "{% for i in range(3) %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }} {% endfor %}",
    "{% set x %}block {{ 1 + 1 }}{% endset %}{{ x | upper }}{% filter lower %}ABC{% endfilter %}{% with a=1 %}{{ a }}{% endwith %}{{ a }}",
    "  {% if true %}\n  x\n  {% endif %}\n\n{# comment #}\ny {%- if true -%}  z  {%- endif +%}  \n w\n",
    "{{ [3, 1, 2] | sort }} {{ [1, 2] | first }} {{ [1, 2] | last }} {{ [1, 1, 2] | unique | list }} {{ [1, 2, 3] | sum }} {{ [1, 5] | max }} {{ 'abc' | list }} {{ [1, 2] | reverse | list }}",
    "{{ 'x' | default('y') }} {{ missing | default('y') }} {{ '' | default('y', true) }} {{ none | default('y') }} {{ 'a b' | replace(' ', '_') }} {{ ' a ' | trim }}| {{ 'xax' | trim('x') }}",
    "{{ 5 | string + 'a' }} {{ true | string }} {{ none | string }} {{ '7' | int + 1 }} {{ 'x' | int(3) }} {{ '2.5' | float }} {{ [1, true, none, 'a'] | join('-') }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ 1.5 }} {{ 'ab' * 3 }} {{ [1] + [2, 3] }} {{ 1 in [1, 2] }} {{ 'a' in 'cat' }} {{ 'role' in messages[0] }} {{ 'z' not in 'cat' }}",
    "{{ 1 if missing else 2 }} {{ 'x' if false }} {{ not true }} {{ 1 < 2 <= 2 }} {{ 'a' == 'a' and 1 != 2 }} {{ none == none }} {{ 1 == 1.0 }} {{ (1, 2) | length }}",
    "{{ 'text\\nmore' | indent(2) }} {{ 'text\\nmore' | indent(width=3, first=true) }} {{ 'hello' | capitalize }} {{ 'hello you' | title }} {{ 'hello' | length }} {{ -3 | abs }}",
    "{{ dict(a=1, b=[2]) }} {{ dict(a=1).items() | map('join', '=') | list }} {{ {'a': 1} == {'a': 1} }} {{ 'é\\u200d\\x00' }} {{ ['é\\u200d\\x00\\x7f😀'] }}",
    "{{ 12345678901234567890 }} {{ 2 ** 10 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7.5 // 2 }} {{ 1 / 3 }} {{ 100000000000000000.0 }} {{ 1e16 }} {{ 123456789.123 }}",
    "{{ messages | tojson }} {{ messages }}",
    "{{ '%s is %d' | format('x', 3) }} {{ '{} and {}'.format(1, 'b') }}",
    "{{ raise_exception('no ' ~ 1) }}",
    "{{ missing.attribute }}",
    "{{ 'a' + 1 }}",
    "{{ x | nofilter }}",
    "{{ 1 // 0 }}",
    "{{ missing() }}",
]
VARIABLES = {
    "data": {
        "floats": [1.0, 0.1, 1e16, 1e22, 1.5e-7, 123456789.125, -0.0, 5e-324],
        "nested": {"b": 1, "a": {"y": [], "x": {}}, "c": [1, "two", None, True, {"k": "v"}]},
        "text": "q\" \\ / \b\f\n\r\t \x01 \x7f é 漢 😀 \u2028 </script> 'x'",
    },
}
MESSAGES = [system("be brief"), user("hello 'you'"), assistant("hi")]


def save(folder: Path, config: dict, files: dict) -> PreTrainedTokenizerFast:
    folder.mkdir(parents=True)
    tok = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    (folder / "tokenizer.json").write_text(tok.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return PreTrainedTokenizerFast.from_pretrained(folder)


def rendered(
    tok: PreTrainedTokenizerFast,
    messages: list,
    tools: list | None,
    extra: dict,
    prompt: bool,
    **kwargs,
) -> str | None:
    try:
        return tok.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=prompt, **extra, **kwargs
        )
    except Exception as error:  # what a template refuses is compared too
        print(f"  refused: {type(error).__name__}: {str(error)[:100]}")
        return None


def template_goldens(folder: Path) -> None:
    cases = []
    for name, (config, files) in MODELS.items():
        tok = save(folder / name, config, files)
        for i, (messages, tools, extra) in enumerate(CONVERSATIONS):
            given = extra | (
                {} if "date_string" in extra or name != "llama3" else {"date_string": "26 Jul 2024"}
            )
            for prompt in (False, True):
                text = rendered(tok, messages, tools, given, prompt)
                cases.append(
                    {
                        "model": name,
                        "conversation": i,
                        "extra": given,
                        "prompt": prompt,
                        "text": text,
                    }
                )
    plain = save(folder / "plain", TOKENS, {})
    expressions = [
        {"template": e, "text": rendered(plain, MESSAGES, None, VARIABLES, False, chat_template=e)}
        for e in EXPRESSIONS
    ]
    goldens = {
        "conversations": [{"messages": m, "tools": t} for m, t, _ in CONVERSATIONS],
        "cases": cases,
        "variables": VARIABLES,
        "messages": MESSAGES,
        "expressions": expressions,
    }
    (folder / "goldens.json").write_text(json.dumps(goldens) + "\n")
