"""The history of calls under faults, and what must hold for it; see check()."""

from dataclasses import dataclass, field

# gRPC codes and HTTP statuses that a fault of the network or of a server may cause.
FAULTS = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "502", "503", "504", "connection"}


@dataclass
class Call:
    """Times are seconds of one monotonic clock."""

    tenant: str
    prompt: str  # unique
    start: float
    end: float | None = None
    error: str | None = None  # gRPC code, HTTP status or "connection"
    text: str = ""  # also of a stream that failed
    finished: int = 0  # messages that end the answer
    after_finished: int = 0  # messages that follow them


@dataclass
class Window:
    """From a fault until all servers are healthy again."""

    fault: str
    start: float
    end: float


@dataclass
class History:
    calls: list[Call] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)


def in_window(call, windows):
    return any(call.start < w.end and call.end > w.start for w in windows)


def check(history, texts):
    """The violations. `texts`: the answer to each prompt."""
    wrong = []
    by_text = {text: prompt for prompt, text in texts.items()}
    seen = set()
    for call in history.calls:
        say = f"{call.tenant}, {call.prompt!r}: "
        if call.prompt in seen:
            wrong.append(say + "asked twice")
        seen.add(call.prompt)
        if call.end is None:
            wrong.append(say + "no outcome")
            continue
        if call.after_finished:
            wrong.append(say + f"{call.after_finished} messages after the last one")
        if call.finished > 1:
            wrong.append(say + f"answered {call.finished} times")
        if call.error is None and call.finished == 0:
            wrong.append(say + "neither an answer nor an error")
        if call.error is not None and call.error not in FAULTS:
            wrong.append(say + f"failed with {call.error}")
        if call.error is not None and not in_window(call, history.windows):
            wrong.append(say + f"failed with {call.error} without a fault")
        expected = texts[call.prompt]
        complete = call.error is None and call.finished > 0
        right = call.text == expected if complete else expected.startswith(call.text)
        if not right:
            other = by_text.get(call.text)
            owner = f" (the answer to {other!r})" if other else ""
            wrong.append(say + f"text {call.text!r}, not {expected!r}{owner}")
    return wrong
