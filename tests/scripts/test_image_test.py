"""scripts/test_image reads the Dockerfile as it is, and refuses what it could not prove."""

import importlib.machinery
import importlib.util
import json
import re
import sys

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def prove():
    loader = importlib.machinery.SourceFileLoader(
        "test_image", str(ROOT / "scripts" / "test_image")
    )
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def test_every_step_of_the_dockerfile_is_taken(prove):
    text = (ROOT / "Dockerfile").read_text("utf-8")
    stages = prove.read_dockerfile(text)
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
    said = dict(stages["runtime"].steps)
    assert json.loads(said["ENTRYPOINT"]) == ["tandem-server"]


def test_stages_come_after_those_that_they_need(prove):
    stages = prove.read_dockerfile((ROOT / "Dockerfile").read_text("utf-8"))
    assert prove.needed(stages, "cpu", set()) == ["runtime", "source", "build-cpu", "cpu"]
    assert prove.needed(stages, "cpu", {"build-cpu"}) == ["runtime", "build-cpu", "cpu"]
    assert "build-cpu" not in prove.needed(stages, "cuda", set())


def test_what_is_not_taken_is_refused(prove):
    with pytest.raises(ValueError, match="ADD is not taken"):
        prove.read_dockerfile("FROM debian AS a\nADD x y\n")


def test_comments_continuations_and_environments(prove):
    text = "ARG A=1\nFROM debian AS a\nRUN one \\\n# why\n && two\nENV A=1 B='2 3'\n"
    (stage,) = prove.read_dockerfile(text).values()
    assert stage.steps == [("RUN", "one && two"), ("ENV", "A=1 B='2 3'")]
    assert prove.environment(stage.steps[1][1]) == {"A": "1", "B": "2 3"}
