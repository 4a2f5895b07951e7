"""Malformed requests: valid ones with random byte changes, and fields at their extremes.

Seeded: case `i` of a seed is the same on every machine, so a failure is repeated by its number.
"""

import math
import random

from google.protobuf.descriptor import FieldDescriptor as Field

GENERATION = "/tandem.v1.Generation/"
DOUBLES = (math.nan, math.inf, -math.inf, -0.0, 0.0, -1.0, 1.0, 1e-9, 1e308, -1e308, 5e-324)
INTS = (0, 1, -1, 2, 16, 17, 64, 65, 255, 256, 257, 4096, 10**6)
TEXTS = (
    "",
    "\0",
    "a" * 70_000,
    "\U0010ffff" * 300,
    "\u202e\u2028\ufeff",
    "[" * 3000,
    "{" * 65,
    '{"a": 1e999}',
    "null",
    "<|endoftext|>",
)
RANGES = {
    Field.TYPE_INT32: (-(2**31), 2**31 - 1),
    Field.TYPE_INT64: (-(2**63), 2**63 - 1),
    Field.TYPE_UINT32: (0, 2**32 - 1),
    Field.TYPE_UINT64: (0, 2**64 - 1),
}
MANY = (0, 1, 2, 63, 64, 65, 1024, 1025, 5000)


class Mutations:
    """`messages`: the module of the API; `models`: names of those that requests go to."""

    def __init__(self, messages, models, seed=1):
        self.messages, self.models, self.seed = messages, models, seed

    def case(self, number):
        """(path of the method, bytes of the request)"""
        rng = random.Random(self.seed * 1_000_003 + number)
        name, request = self._good(rng)
        if rng.random() < 0.5:
            for _ in range(rng.randint(1, 3)):
                make_extreme(request, rng)
            data = request.SerializeToString()
        else:
            other = self._good(rng)[1].SerializeToString()
            data = mangled(request.SerializeToString(), other, rng)
        return GENERATION + name, data

    def _good(self, rng):
        m = self.messages
        model = rng.choice(self.models)
        name = rng.choice(("Generate", "Complete", "Complete", "Score", "Tokenize", "Detokenize"))
        if name == "Score":
            request = m.ScoreRequest(model=model, continuation_text="so", top_logprobs=2)
        elif name == "Tokenize":
            request = m.TokenizeRequest(model=model, return_token_texts=True)
        elif name == "Detokenize":
            return name, m.DetokenizeRequest(model=model, token_ids=[1, 2, 200])
        else:
            request = m.GenerateRequest(model=model, max_new_tokens=rng.randint(1, 8), n=2)
            self._decorate(request, rng)
        kind = rng.randrange(3)
        if kind == 0 or (kind == 1 and name == "Tokenize"):
            request.text = "def f(x):"
        elif kind == 1:
            request.token_ids.ids.extend((1, 2, 3))
        else:
            tool = '{"type": "function", "function": {"name": "f", "parameters": {}}}'
            message = m.ChatMessage(role="user", content="hi", extra='{"a": [1]}')
            request.chat.CopyFrom(m.Chat(messages=[message], tools=[tool], template_args="{}"))
        return name, request

    def _decorate(self, request, rng):
        """A method, and some of the options."""
        method = rng.choice(("", "auto", "autoregressive", "speculative", "bild", "ngram", "beam"))
        if method:
            getattr(request, method).SetInParent()
        if rng.random() < 0.5:
            request.temperature, request.top_p, request.seed = 0.8, 0.9, 7
            request.logit_bias[3] = -1.5
        if rng.random() < 0.5:
            request.stop_sequences.extend(("END", "\n\n"))
            request.logprobs, request.top_logprobs = True, 2


def make_extreme(message, rng):
    """One field of the message, or of one in it, gets a value at the end of its type or beyond sense."""
    field = rng.choice(message.DESCRIPTOR.fields)
    if field.type == Field.TYPE_MESSAGE:
        if field.message_type.GetOptions().map_entry:
            for _ in range(rng.choice(MANY[:6])):
                getattr(message, field.name)[int(extreme(field.message_type.fields[0], rng))] = (
                    extreme(field.message_type.fields[1], rng)
                )
        elif field.is_repeated:
            make_extreme(getattr(message, field.name).add(), rng)
        else:
            inner = getattr(message, field.name)
            inner.SetInParent()
            if inner.DESCRIPTOR.fields and rng.random() < 0.8:
                make_extreme(inner, rng)
    elif field.is_repeated:
        count = rng.choice(MANY)
        value = extreme(field, rng)
        if isinstance(value, str | bytes):
            count = min(count, 1 + 300_000 // max(1, len(value)))
        getattr(message, field.name).extend([value] * count)
    else:
        setattr(message, field.name, extreme(field, rng))


def extreme(field, rng):
    if field.type in (Field.TYPE_DOUBLE, Field.TYPE_FLOAT):
        return rng.choice(DOUBLES)
    if field.type == Field.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == Field.TYPE_ENUM:
        return rng.choice((0, 1, 2, 7, 99, 2**31 - 1, -1))
    if field.type == Field.TYPE_STRING:
        return rng.choice(TEXTS)
    if field.type == Field.TYPE_BYTES:
        return rng.choice(TEXTS).encode()
    low, high = RANGES[field.type]
    return min(max(rng.choice((*INTS, low, low + 1, high - 1, high)), low), high)


def mangled(data, other, rng):
    """Bytes of a message with some changed, lost, doubled, or taken from another."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.randint(1, 12))
        kind = rng.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:end]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randint(1, 12))
        elif kind == 3:
            data[at:at] = data[at:end] * rng.randint(1, 40)
        elif kind == 4:
            data[at:] = other[rng.randrange(len(other) + 1) :]
        else:  # a varint without end, or one at its end
            data[at:at] = rng.choice((b"\xff" * 11, b"\xff" * 9 + b"\x01", b"\x80\x80\x80\x80\x08"))
    return bytes(data)
