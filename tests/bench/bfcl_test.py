"""Scores of tool calls: requests, verdicts and the table, with a package of a few lines."""

import contextlib
import json
import zipfile

import pytest

from bench import bfcl

CHECKER = """
from bfcl_eval.constants.enums import Language
from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING
from bfcl_eval.eval_checker.ast_eval.type_convertor.java_type_converter import java_type_converter

def ast_checker(functions, calls, expected, language, category, model):
    assert MODEL_CONFIG_MAPPING[model].underscore_to_dot and language is Language.PYTHON
    same = calls == [{name.replace(".", "_"): value for name, value in call.items()} for call in expected]
    return {"valid": same, "error_type": "different"}
"""


@pytest.fixture
def package(tmp_path):
    wheel = tmp_path / "package.whl"
    function = {
        "name": "math.add",
        "description": "Adds.",
        "parameters": {
            "type": "dict",
            "properties": {
                "x": {"type": "float"},
                "l": {"type": "tuple", "items": {"type": "any"}},
            },
            "required": ["x"],
        },
    }
    lines = [
        {"id": f"p{i}", "question": [[{"role": "user", "content": str(i)}]], "function": [function]}
        for i in range(10)
    ]
    expected = [{"id": f"p{i}", "ground_truth": [{"math.add": {"x": i}}]} for i in range(10)]
    files = {
        "constants/enums.py": "import enum\nclass Language(enum.Enum):\n    PYTHON = 1\n",
        "constants/type_mappings.py": "GORILLA_TO_OPENAPI = {'dict': 'object', 'float': 'number', "
        "'tuple': 'array', 'any': 'string'}",
        "eval_checker/ast_eval/ast_checker.py": CHECKER,
        "data/BFCL_v4_multiple.json": "\n".join(map(json.dumps, lines)),
        "data/BFCL_v4_irrelevance.json": "\n".join(map(json.dumps, lines)),
        "data/possible_answer/BFCL_v4_multiple.json": "\n".join(map(json.dumps, expected)),
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"bfcl_eval/{name}", text)
    return bfcl.Package(wheel)


def call(name, arguments):
    return {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


def test_requests_have_json_schemas_and_names_without_dots(package):
    problems = package.problems("multiple", 5)
    assert [p["id"] for p in problems] == ["p0", "p2", "p4", "p6", "p8"]
    function = problems[1]["tools"][0]["function"]
    assert function["name"] == "math_add"
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "x": {"type": "number"},
            "l": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["x"],
    }
    assert len(package.problems("multiple", 99)) == 10


def test_verdicts(package):
    problem = package.problems("multiple", 10)[3]
    check = lambda message: bfcl.verdict(package, "multiple", problem, message)  # noqa: E731
    assert check(call("math_add", '{"x": 3}')) is None
    assert check(call("math_add", '{"x": 4}')) == "different"
    assert check(call("math_add", '{"x": ')) == "arguments are not JSON"
    assert check({"content": "3"}) == "no call"
    other = package.problems("irrelevance", 1)[0]
    assert bfcl.verdict(package, "irrelevance", other, {"content": "No."}) is None
    assert bfcl.verdict(package, "irrelevance", other, call("f", "{}")) == "a call"


def test_the_table_counts_solved_problems():
    results = {"A": {"multiple": [None, "x", None]}, "B": {"multiple": [None, None, "y"]}}
    assert bfcl.table(results)[2:] == [
        "| A | 2 of 3 |",
        "| B | 2 of 3 |",
        "| only one of the two | 2 |",
    ]


@pytest.fixture
def fake_server(monkeypatch):
    """Solves problems with even numbers. Counts starts and requests."""
    seen = {"starts": 0, "asked": []}

    @contextlib.contextmanager
    def start():
        seen["starts"] += 1
        yield "url"

    def ask(url, problem):
        assert url == "url"
        seen["asked"].append(problem["id"])
        number = int(problem["id"][1:])
        if number == 5:
            return {"error": "500: oops"}
        x = number if number % 2 == 0 else -1
        return {"choices": [{"message": call("math_add", json.dumps({"x": x}))}]}

    monkeypatch.setattr(bfcl, "ask", ask)
    return start, seen


def test_an_interrupted_run_continues(package, fake_server, tmp_path, capsys):
    start, seen = fake_server
    path, settings = tmp_path / "out", {"model": "m"}
    problems = {"multiple": package.problems("multiple", 6)}
    assert bfcl.answered(path, settings) == {}
    with path.open("w") as out:
        print(json.dumps(settings), file=out)
        first = {"multiple": problems["multiple"][:3]}
        bfcl.run("A", start, package, first, {}, out)
    path.write_text(path.read_text() + '{"server": "A", "id"')  # cut off
    known = bfcl.answered(path, settings)
    assert known == {("A", "p0"): None, ("A", "p1"): "different", ("A", "p3"): "different"}
    seen["asked"].clear()
    with path.open("a") as out:
        results = bfcl.run("A", start, package, problems, known, out)
    assert seen["asked"][:3] == ["p5", "p6", "p8"] and seen["starts"] == 2
    assert results["multiple"] == [None, "different", "different", "error 500: oops", None, None]
    assert len(bfcl.answered(path, settings)) == 6
    with path.open("a") as out:
        again = bfcl.run("A", start, package, problems, bfcl.answered(path, settings), out)
    assert again == results and seen["starts"] == 2
    with pytest.raises(SystemExit):
        bfcl.answered(path, {"model": "other"})
    assert "other settings" in capsys.readouterr().err
