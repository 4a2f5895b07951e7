"""Constraints that are made to be slow: refused or bounded, and streams of others go on."""

import contextlib
import json

import grpc
import pytest

from tests.attack.harness import ROOT

CLIENTS = 4
TOKENS = 40
# A model with a vocabulary, beside the fake ones.
CODE = f'models {{ name: "code" path: "{ROOT}/models/code-small" device: "cpu:1" }}'


def nested(levels, inner, outer):
    value = inner
    for _ in range(levels):
        value = outer(value)
    return value


def schema(**members):
    return {"json_schema": json.dumps(members)}


def chain(rules):
    """Each rule adds a bracket to the next."""
    lines = [f'A{i}: "(" A{i + 1} ")"' for i in range(rules - 1)]
    return "\n".join(["start: A0", *lines, f'A{rules - 1}: "x"'])


MANY = {f"key_{i}": {"type": "string", "maxLength": 9999} for i in range(3000)}
BOMBS = {
    # Schemas.
    "a reference to itself": schema(**{"$ref": "#"}),
    "references in a circle": schema(anyOf=[{"$ref": "#/anyOf/1"}, {"$ref": "#/anyOf/0"}]),
    "references that double": schema(
        **{
            "$ref": "#/$defs/d0",
            "$defs": {
                f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}
                if i < 40
                else {"minimum": 1}
                for i in range(41)
            },
        }
    ),
    "an enumeration of 20,000 texts": schema(enum=[f"{i:05}" * 4 for i in range(20000)]),
    "anyOf, 300 deep": schema(
        **nested(300, {"type": "null"}, lambda s: {"anyOf": [{"type": "integer"}, s]})
    ),
    "arrays, 120 deep": schema(**nested(120, {}, lambda s: {"type": "array", "items": s})),
    "3,000 members": schema(type="object", properties=MANY),
    "3,000 required members": schema(
        type="object", properties=MANY, required=list(MANY), additionalProperties=False
    ),
    "300 patterns of names": schema(
        patternProperties={f"^.*{i}.*$": {"type": "integer"} for i in range(300)}
    ),
    "a pattern with repetitions": schema(type="string", pattern="^(a|b|ab){1,5000}$"),
    "100,000,000 elements": schema(type="array", minItems=100_000_000),
    "a multiple of 1e-300": schema(type="number", multipleOf=1e-300),
    "all of 60 multiples": schema(
        allOf=[{"type": "integer", "multipleOf": i} for i in range(2, 62)]
    ),
    # Regular expressions.
    "repetitions of repetitions": {"regex": "((a{1,999}){1,999}){1,999}"},
    "any text, 200 times": {"regex": "(.*a){200}"},
    "an exponential automaton": {"regex": "x?[ab]*a[ab]{4000}"},
    "a smaller exponential automaton": {"regex": "[ab]*a[ab]{16}c"},
    "nests of (a|a)*": {"regex": nested(100, "a", lambda r: f"({r}|{r[:1]})*")},
    "ambiguous repetitions": {"regex": "(x+x+)+y"},
    "5,000 brackets": {"regex": "(" * 5000 + "a" + ")" * 5000},
    "10,000 repetitions": {"regex": "(ab|cd|[0-9]){1,10000}"},
    "classes of Unicode": {"regex": "(\\pL{1,1000}){1,1000}"},
    "words of Unicode": {"regex": "(\\w+\\s*\\p{Lu}?){500}"},
    "20,000 alternatives": {"regex": "|".join(f"{i:05}x*" for i in range(20000))},
    # Grammars.
    "100,000 brackets": {"grammar": "start: " + "(" * 100_000},
    "an ambiguous grammar": {"grammar": 'start: start start start | "a" | ""'},
    "an ambiguous grammar in GBNF": {"grammar": 'root ::= root root | "a"{1,60000}'},
    "an ambiguous sum": {"grammar": 'start: e\ne: e "+" e | e "*" e | e e | /[a-z]+/ | "(" e ")"'},
    "a chain of 1,900 rules": {"grammar": chain(1900)},
    "200 words that begin alike": {
        "grammar": "start: w*\nw: " + " | ".join(f"/a{{1,{i}}}b?/" for i in range(1, 200))
    },
    "bytes that must follow without end": {"grammar": 'start: /b+/ "b"'},
    "2,000 choices": {"choice": {"texts": [f"{i:08}" * 20 for i in range(2000)]}},
}
REFUSED_OR_BOUNDED = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)


@pytest.mark.parametrize("model", ["slow", "code"], ids=["bytes", "tokens"])
def test_constraints_that_are_made_to_be_slow(attack, model):
    target = attack(CODE)
    target.client().complete(model=model)  # loads it
    answered = refused = 0
    with target.bystander(model=model, allowed=384):
        clients = [target.client() for _ in range(CLIENTS)]
        for name, bomb in BOMBS.items():
            calls = []
            for client in clients:
                request = client.messages.GenerateRequest(
                    model=model, text="x", max_new_tokens=TOKENS, temperature=1, **bomb
                )
                calls.append(client.generate(request))
            for call in calls:
                with contextlib.suppress(grpc.RpcError):
                    list(call)  # the status follows the messages
                code = call.code()
                assert code in (grpc.StatusCode.OK, *REFUSED_OR_BOUNDED), (name, call.details())
                answered += code == grpc.StatusCode.OK
                refused += code != grpc.StatusCode.OK
    assert answered >= CLIENTS and refused >= 4 * CLIENTS
    target.assert_quiet()
    target.assert_serves()
