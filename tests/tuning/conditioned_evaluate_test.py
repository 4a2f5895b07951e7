"""tuning/evaluate/conditioned.py: what it measures, and the section that it writes."""

import json

import pytest
from evaluate_test import Server as Written
from evaluate_test import conditions, messages  # noqa: F401

from tuning.evaluate import __main__, conditioned, measure, page
from tuning.evaluate.grid import AR
from tuning.evaluate.measure import Task

TURNS = [[Task((0, 10 * i + j), tuple(range(8))) for j in range(3)] for i in (1, 2)]
CODE, DOCSTRING = conditioned.SETTINGS
GRID = CODE.writing + CODE.drafting


class Server(Written):
    """Keeps two drafts of a round and four of another; the small models write the large one's text."""

    def request(self, model, prompt, new_tokens, method):
        if method.DESCRIPTOR.name != "LlmToSlm":
            return super().request(model, prompt, new_tokens, method)
        m = self.messages
        return m.GenerateRequest(
            model=model,
            token_ids=m.TokenIds(ids=prompt),
            max_new_tokens=new_tokens,
            llm_to_slm=method,
        )

    def complete(self, request):
        choice = super().complete(request)
        choice.finished.stats.accept_lengths.extend([0, 0, 1, 0, 1])
        return choice


@pytest.mark.parametrize("setting", conditioned.SETTINGS, ids=lambda s: s.pair)
def test_every_configuration_has_its_deployment(messages, setting):  # noqa: F811
    deployed = setting.config.read_text()
    for configuration in [setting.ar, *setting.writing, *setting.drafting]:
        configuration.message(messages)
        assert f'name: "{configuration.deployment}"' in deployed
    assert deployed.count("models {") == deployed.count("prefix_cache: false")
    assert all(c.promises_exact for c in setting.drafting)
    assert not any(c.promises_exact for c in setting.writing)
    assert (setting.ar == AR) == (setting is CODE)


REPORT = {
    "settings": {"conditioned": True, "fusion": "add", "layer": 8, "train": "full", "steps": 9}
    | {"batch": 4, "samples": 77, "rate": 0.001, "small_rate": 0.0003},
    "nats": {
        name: {"all": nats, "1 to 4": 2.0, "5 to 9": 3.0}
        for name, nats in (("small", 3.5), ("large", 2.5), ("llm_to_slm", 3.125))
    },
}


def test_the_section_says_what_was_measured(messages):  # noqa: F811
    server = Server(messages)
    ar, rows = measure.take_turns(server, GRID, TURNS, 8, seed=1)
    measure.rate(server, ar, rows, TURNS)
    for row in [ar, *rows]:
        for answer in row.answers():
            answer.seconds = {conditioned.TUNED: 2, CODE.conditioned: 3}.get(row.configuration, 8)
    cost = conditioned.cost_of(CODE, ar, rows, reading=1)
    assert (cost.reading, cost.small, cost.conditioned, cost.large, cost.over) == (
        1000,
        2000,
        3000,
        8000,
        1,
    )
    part = conditioned.markdown(CODE, ar, rows, cost, [REPORT])
    assert "LLM-to-SLM, verified | 3.00 |" in part
    assert (
        "| add, layer 8 | full, 9 x 4 | 0.0003; 0.001; dropout 0 | 77 | 3.125 | 2.000 | 3.000 |"
        in part
    )
    assert "3000.0 ms: 1.00 × the tuned small" in part and "1/2.7 of the large" in part
    assert "nats/token under large" in conditioned.writing_table(CODE, ar, rows)
    assert "nats/token under large" not in conditioned.writing_table(DOCSTRING, ar, rows)
    text = conditioned.section([part, "another"], conditions())
    whole = page.put(
        f"a {conditioned.BEGIN} b {conditioned.END} c", text, conditioned.BEGIN, conditioned.END
    )
    assert " b " not in whole and whole.index("### Completions") < whole.index("another")


def test_functions_have_words_and_names():
    settings = {"conditioned": False, "fusion": "add", "train": "full", "steps": 9}
    settings |= {"names": 3, "docstrings": 4, "samples": 77, "dropout": 0.2}
    settings |= {"matrix_rate": 0.005, "vector_rate": 0.002, "projector_rate": 0.003}
    values = {"nats": {"name": 3.5, "docstring": 4.25}, "names_right": 0.125}
    seen = values | {"docstrings_rouge_l": 0.25}
    report = {"settings": settings, "small": seen, "large": seen, "small, tuned alone": seen}
    shipped = {"command": ["--write-small", "models/x"], "llm_to_slm": seen}
    shipped |= {"settings": settings | {"conditioned": True}}
    text = conditioned.functions_table([report, shipped])
    measured = "77 | 4.250 | 25.0 | 3.500 | 12.5 |"
    assert f"| unconditioned | full, 9 x 7 | 0.005, 0.002; dropout 0.2 | {measured}" in text
    ours = f"| add, **shipped** | full, 9 x 7 | 0.005, 0.002; 0.003; dropout 0.2 | {measured}"
    assert ours in text
    assert text.count("| 4.250 | 25.0 |") == 4


def test_what_went_into_the_repository_is_shipped():
    for command, shipped in (
        (["--write-small", "models/docstring-small-conditioned"], True),
        (["--write-small", "build/conditioned"], False),
        (["--report", "models/x"], False),
        (["--write-small"], False),
    ):
        assert conditioned.is_shipped({"command": command}) == shipped
    assert not conditioned.is_shipped({})
    reports = json.loads(DOCSTRING.reports().read_text())
    assert [conditioned.is_shipped(report) for report in reports].count(True) == 2


@pytest.mark.parametrize("setting", conditioned.SETTINGS, ids=lambda s: s.pair)
def test_reports_are_of_the_same_texts(setting):
    if not setting.reports().exists():
        pytest.skip("nothing is trained")
    reports = json.loads(setting.reports().read_text())
    small = [r["nats"]["small"] if "nats" in r else r["small"] for r in reports]
    assert all(seen == small[0] for seen in small)
    assert {r["settings"]["conditioned"] for r in reports} == {True, False}


def test_a_pairs_models_may_lie_elsewhere(tmp_path):
    models = conditioned.ROOT / "models"
    names = "code-small-conditioned", "code-small-tuned"
    assert CODE.folder(tmp_path) == models
    for name in names:
        (tmp_path / name).mkdir()
    assert CODE.folder(tmp_path) == models  # without training.json nothing says what they are
    (tmp_path / names[0] / "training.json").write_text("[]")
    assert CODE.folder(tmp_path) == tmp_path and CODE.folder() == models
    assert CODE.reports(tmp_path) == tmp_path / "code-small-conditioned/training.json"
    assert DOCSTRING.folder(tmp_path) == models
    text = CODE.deployments(tmp_path)
    wanted = [tmp_path / names[0], tmp_path / names[1], tmp_path / names[0] / "projector"]
    wanted += [models / "code-large", models / "code-small"]
    assert all(text.count(f'path: "{path}"') == 1 for path in wanted) and "../" not in text
    docstrings = DOCSTRING.deployments(tmp_path)
    assert (
        str(tmp_path) not in docstrings and f'"{models}/docstring-small-conditioned"' in docstrings
    )


def test_a_folder_of_no_pair_is_refused(tmp_path):
    args = __main__.parse(["--llm-to-slm", "--conditioned-models", str(tmp_path)])
    with pytest.raises(
        SystemExit, match=f"--conditioned-models: {tmp_path} has no pair; allowed: "
    ):
        conditioned.main(None, args, "", None)


def test_what_is_counted_alone_goes_into_no_page(capsys):
    with pytest.raises(SystemExit):
        __main__.parse(["--llm-to-slm", "--acceptance", "--write"])
    assert "--write: not with --acceptance" in capsys.readouterr().err


class Erring(Server):
    """Verified drafts of the conditioned one end in another text."""

    def complete(self, request):
        choice = super().complete(request)
        choice.tokens[0].id += 500 * (request.WhichOneof("method") == "llm_to_slm")
        return choice


def test_drafts_that_stay_are_counted_and_answers_compared(messages):  # noqa: F811
    tasks, done = [task for turn in TURNS for task in turn], []
    rows = conditioned.count_kept(Server(messages), CODE, tasks, lambda: done.append(1))
    assert len(done) == 4 * len(tasks) and [row.equal for row in rows] == [1, 1, 1]
    text = conditioned.kept_table(rows)
    assert f"| LLM-to-SLM, verified | 3.000 ± 0.000 | {2 * len(tasks)} | 100 |" in text
    rows = conditioned.count_kept(Erring(messages), CODE, tasks, lambda: None)
    assert [row.equal for row in rows] == [1, 1, 0]
    assert conditioned.say([row.configuration for row in rows if row.equal < 1]) == 1
    assert conditioned.say([]) == 0


def test_a_training_on_others_rows_is_called_so():
    other = REPORT | {"settings": REPORT["settings"] | {"rows": "other"}}
    assert conditioned.how(other)[0] == "add, layer 8, other texts' states"
