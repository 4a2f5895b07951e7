"""Converts arguments to messages. An unknown name is an error; some protobuf and JSON libraries drop it
silently.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, TypedDict

from google.protobuf import json_format

from .messages import (
    DetokenizeRequest,
    EmbedRequest,
    GenerateRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
)
from .types import Message

Prompt = str | Sequence[int]
Method = str | dict[str, dict[str, Any]]


class Options(TypedDict, total=False):
    """Fields of GenerateRequest. Omitted fields take the defaults of the model. `method`: a name, or
    {"bild": {"rollback_threshold": 0.69}}; `contract`: "any", "lossy", "distribution",
    "exact_up_to_rounding" or "exact"."""

    adapter: str  # a LoRA adapter of the model
    method: Method
    contract: str
    tools: Sequence[str]
    tool_choice: str  # "TOOL_CHOICE_AUTO", "TOOL_CHOICE_NONE"
    allowed_tools: Sequence[str]
    parallel_tool_calls: bool
    raw_text: bool
    template_args: str
    request_id: str
    add_special_tokens: bool
    truncate_prompt_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: dict[int, float]
    bad_token_ids: Sequence[int]
    seed: int
    n: int
    beam: dict[str, Any]
    max_new_tokens: int
    min_new_tokens: int
    stop_sequences: Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_sequence: bool
    ignore_eos: bool
    time_limit_seconds: float
    skip_special_tokens: bool
    return_tokens: bool
    return_token_texts: bool
    logprobs: bool
    top_logprobs: int
    raw_logprobs: bool
    include_eos_token: bool
    trace: bool
    priority: int


# Fields of Chat.
_OF_CHAT = ("tools", "tool_choice", "allowed_tools", "parallel_tool_calls", "template_args")

# Names that other APIs have for the same.
_ALSO = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "stop": "stop_sequences",
    "stream": "client.stream() instead of client.complete()",
}


def _filled(request, fields: dict[str, Any]):
    known = request.DESCRIPTOR.fields_by_name
    for name in fields:
        if name in known:
            continue
        near = difflib.get_close_matches(name, [*known, "method", "contract", "messages"], 1)
        hint = _ALSO.get(name) or (near[0] if near else "")
        raise TypeError(f"{name}: no such field" + (f"; did you mean {hint}?" if hint else ""))
    try:
        return json_format.ParseDict(fields, request)
    except json_format.ParseError as error:
        raise TypeError(str(error)) from None


def _prompt(prompt: Prompt | None, messages: Sequence[Message] | None, fields: dict[str, Any]):
    if (prompt is None) == (messages is None):
        raise TypeError("one of prompt and messages is needed")
    chat = {name: fields.pop(name) for name in _OF_CHAT if name in fields}
    if messages is not None:
        return {"chat": {"messages": list(messages), **chat}}
    if chat:
        raise TypeError(f"{next(iter(chat))}: only with messages")
    return {"text": prompt} if isinstance(prompt, str) else {"token_ids": {"ids": list(prompt)}}


def generate_request(
    model: str, prompt: Prompt | None, messages: Sequence[Message] | None, options: dict[str, Any]
):
    fields = dict(options)
    request = {"model": model, **_prompt(prompt, messages, fields)}
    method = fields.pop("method", None)
    if method is not None:
        methods = [f.name for f in GenerateRequest.DESCRIPTOR.oneofs_by_name["method"].fields]
        chosen = {method: {}} if isinstance(method, str) else method
        if len(chosen) != 1 or next(iter(chosen)) not in methods:
            raise TypeError(f"method: {method!r}; allowed: one of {', '.join(methods)}")
        request |= chosen
    contract = fields.pop("contract", None)
    if contract is not None:
        request["require_contract"] = f"CONTRACT_{contract.upper()}"
    return _filled(GenerateRequest(), request | fields)


def score_request(model, prompt, messages, continuation, options):
    fields = dict(options)
    request = {"model": model, **_prompt(prompt, messages, fields)}
    if isinstance(continuation, str):
        request["continuation_text"] = continuation
    elif continuation is not None:
        request["continuation_token_ids"] = {"ids": list(continuation)}
    return _filled(ScoreRequest(), request | fields)


def rerank_request(model, query, documents, options):
    fields = {"model": model, "query": query, "documents": list(documents), **options}
    return _filled(RerankRequest(), fields)


def embed_request(model, inputs, options):
    request = _filled(EmbedRequest(), {"model": model, **options})
    for one in [inputs] if isinstance(inputs, str) else inputs:
        place = request.inputs.add()
        if isinstance(one, str):
            place.text = one
        else:
            place.token_ids.ids.extend(one)
    return request


def tokenize_request(model, prompt, messages, options):
    fields = dict(options)
    return _filled(
        TokenizeRequest(), {"model": model, **_prompt(prompt, messages, fields)} | fields
    )


def detokenize_request(model, token_ids, options):
    return _filled(DetokenizeRequest(), {"model": model, "token_ids": list(token_ids), **options})
