"""Types of answers. Names and meanings are those of proto/tandem/v1/generation.proto; methods, contracts
and reasons are lower-case words: "bild", "exact", "max_tokens".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

from .messages import enum_word


class Message(TypedDict):
    """A chat message. `tool_calls` is a list of JSON objects as strings, `extra` one such string."""

    role: str
    content: str
    name: NotRequired[str]
    tool_calls: NotRequired[list[str]]
    tool_call_id: NotRequired[str]
    extra: NotRequired[str]


@dataclass(frozen=True)
class TopLogprob:
    id: int
    logprob: float
    text: str
    bytes: bytes


@dataclass(frozen=True)
class Token:
    id: int
    proposed: str  # "large", "small", "mask", "early_head", "ngram"
    confirmed: str
    corrected: bool
    logprob: float | None
    top_logprobs: list[TopLogprob]
    text: str | None  # with return_token_texts or logprobs
    bytes: bytes | None
    pass_number: int = 0  # of the pass that made it final

    @classmethod
    def of(cls, m) -> Token:
        return cls(
            m.id,
            enum_word("Source", m.proposed),
            enum_word("Source", m.confirmed),
            m.corrected,
            m.logprob if m.HasField("logprob") else None,
            [TopLogprob(t.id, t.logprob, t.text, t.bytes) for t in m.top_logprobs],
            m.text if m.HasField("text") else None,
            m.bytes if m.HasField("bytes") else None,
            m.pass_number,
        )


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0

    @classmethod
    def of(cls, m) -> Usage:
        return cls(m.prompt_tokens, m.cached_tokens, m.completion_tokens, m.reasoning_tokens)


@dataclass(frozen=True)
class Started:
    request_id: str
    prompt_tokens: int
    method: str
    contract: str

    @classmethod
    def of(cls, m) -> Started:
        return cls(
            m.request_id,
            m.prompt_tokens,
            enum_word("Method", m.method),
            enum_word("Contract", m.contract),
        )


@dataclass(frozen=True)
class ToolCall:
    """A call, or a part of one in a stream: parts with the same index belong together."""

    index: int
    id: str
    name: str
    arguments: str  # JSON
    broken: bool = False  # in streams: ignore the call, its text follows

    @classmethod
    def of(cls, m) -> ToolCall:
        return cls(m.index, m.id, m.name, m.arguments, m.broken)


@dataclass(frozen=True)
class Chunk:
    index: int
    text: str
    tokens: list[Token] = field(default_factory=list)
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    @classmethod
    def of(cls, m) -> Chunk:
        tokens = [Token.of(t) for t in m.tokens]
        return cls(m.index, m.text, tokens, m.reasoning, [ToolCall.of(c) for c in m.tool_calls])


@dataclass(frozen=True)
class Pass:
    """A pass of a choice. Times are in microseconds since the request arrived."""

    number: int
    start_us: int
    end_us: int
    role: str  # "large", "small", "encoder", "worker"
    kind: str  # "prefill", "draft", "verify", "decode", "recompute"
    rows: int
    batches: int
    batch_rows: int
    batch_requests: int
    accepted: int
    rejected: int

    @classmethod
    def of(cls, m) -> Pass:
        return cls(
            m.pass_number,
            m.start_us,
            m.end_us,
            enum_word("PassRole", m.role),
            enum_word("PassKind", m.kind),
            m.rows,
            m.batches,
            m.batch_rows,
            m.batch_requests,
            m.accepted,
            m.rejected,
        )


@dataclass(frozen=True)
class Finished:
    index: int
    finish_reason: str  # "eos", "stop_sequence", "stop_token", "max_tokens", "time_limit"
    stop_sequence: str
    seed: int
    usage: Usage
    tokens_per_pass: float
    large_passes: int
    small_passes: int
    tool_calls: int = 0
    trace: list[Pass] = field(default_factory=list)  # with trace; at most 4096

    @classmethod
    def of(cls, m) -> Finished:
        return cls(
            m.index,
            enum_word("FinishReason", m.finish_reason),
            m.stop_sequence,
            m.seed,
            Usage.of(m.usage),
            m.stats.tokens_per_pass,
            m.stats.large_passes,
            m.stats.small_passes,
            m.tool_calls,
            [Pass.of(p) for p in m.trace.passes],
        )


@dataclass(frozen=True)
class Choice:
    index: int
    text: str
    tokens: list[Token]
    finished: Finished
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    @classmethod
    def of(cls, m) -> Choice:
        return cls(
            m.index,
            m.text,
            [Token.of(t) for t in m.tokens],
            Finished.of(m.finished),
            m.reasoning,
            [ToolCall.of(c) for c in m.tool_calls],
        )


@dataclass(frozen=True)
class Completion:
    started: Started
    choices: list[Choice]

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finished.finish_reason

    @property
    def seed(self) -> int:
        return self.choices[0].finished.seed

    @classmethod
    def of(cls, m) -> Completion:
        return cls(Started.of(m.started), [Choice.of(c) for c in m.choices])


@dataclass(frozen=True)
class Score:
    total_logprob: float
    prompt: list[Token]
    continuation: list[Token]
    usage: Usage

    @classmethod
    def of(cls, m) -> Score:
        return cls(
            m.total_logprob,
            [Token.of(t) for t in m.prompt_tokens],
            [Token.of(t) for t in m.continuation_tokens],
            Usage.of(m.usage),
        )


@dataclass(frozen=True)
class RerankResult:
    index: int  # in `documents`
    relevance_score: float  # 0 to 1
    document: str  # with return_documents

    @classmethod
    def list_of(cls, m) -> list[RerankResult]:
        return [cls(r.index, r.relevance_score, r.document) for r in m.results]
