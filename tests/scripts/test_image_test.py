"""scripts/test_image parses the Dockerfile and refuses unsupported instructions."""

import importlib.machinery
import importlib.util
import json
import re
import sys

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def script():
    loader = importlib.machinery.SourceFileLoader(
        "test_image", str(ROOT / "scripts" / "test_image")
    )
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def test_every_step_of_the_dockerfile_is_parsed(script):
    text = (ROOT / "Dockerfile").read_text("utf-8")
    stages = script.read_dockerfile(text)
    assert list(stages) == re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE)
    words = [word for stage in stages.values() for word, _ in stage.steps]
    assert words == [
        word
        for word in re.findall(r"^([A-Z]+) ", text.split("FROM", 1)[1], re.MULTILINE)
        if word != "FROM"
    ]
    (packages,) = (
        rest for word, rest in stages["runtime"].steps if word == "RUN" and "apt-get" in rest
    )
    assert packages.endswith("tandem") and "\\" not in packages, "lines are joined"
    steps = dict(stages["runtime"].steps)
    assert json.loads(steps["ENTRYPOINT"]) == ["tandem-server"]


def test_stages_follow_their_dependencies(script):
    stages = script.read_dockerfile((ROOT / "Dockerfile").read_text("utf-8"))
    assert script.needed(stages, "cpu", set()) == ["runtime", "source", "build-cpu", "cpu"]
    assert script.needed(stages, "cpu", {"build-cpu"}) == ["runtime", "build-cpu", "cpu"]
    assert "build-cpu" not in script.needed(stages, "cuda", set())


def test_unsupported_instructions_are_refused(script):
    with pytest.raises(ValueError, match="ADD is not supported"):
        script.read_dockerfile("FROM debian AS a\nADD x y\n")


def test_comments_continuations_and_environments(script):
    text = "ARG A=1\nFROM debian AS a\nRUN one \\\n# why\n && two\nENV A=1 B='2 3'\n"
    (stage,) = script.read_dockerfile(text).values()
    assert stage.steps == [("RUN", "one && two"), ("ENV", "A=1 B='2 3'")]
    assert script.environment(stage.steps[1][1]) == {"A": "1", "B": "2 3"}
