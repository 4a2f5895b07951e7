"""tuning/evaluate: what is counted as equal, similar and faster, with a server that is made up."""

import random
import xml.etree.ElementTree
from dataclasses import replace
from types import SimpleNamespace

import pytest

from measure.serving import stubs
from tuning.evaluate import grid, measure, page, plot
from tuning.evaluate.__main__ import PAIRS_FILE, parse
from tuning.evaluate.measure import Answer, Row, Task
from tuning.evaluate.quality import edit_similarity, rouge_l, rouge_l_of_texts
from tuning.windows import TokenStream


def distance(a, b):
    """Levenshtein's, as its definition says."""
    if not a or not b:
        return len(a) + len(b)
    return min(
        distance(a[1:], b) + 1,
        distance(a, b[1:]) + 1,
        distance(a[1:], b[1:]) + (a[0] != b[0]),
    )


def common(a, b):
    """Length of the longest common subsequence, as its definition says."""
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + common(a[1:], b[1:])
    return max(common(a[1:], b), common(a, b[1:]))


def test_similarities_are_those_of_their_definitions():
    some = random.Random(5)
    for _ in range(200):
        a, b = ([some.randrange(3) for _ in range(some.randrange(7))] for _ in range(2))
        longest = max(len(a), len(b))
        assert edit_similarity(a, b) == pytest.approx(
            1 - distance(a, b) / longest if longest else 1
        )
        if a and b:
            assert rouge_l(a, b) == pytest.approx(2 * common(a, b) / (len(a) + len(b)))
    assert rouge_l([], []) == 1 and rouge_l([1], []) == 0


def test_rouge_of_texts_counts_words():
    # By its definition (Lin 2004), with β = 1.
    assert rouge_l_of_texts("Return the sum.", "return a SUM") == pytest.approx(2 / 3)
    assert rouge_l_of_texts("the cat sat on the mat", "the cat on a mat") == pytest.approx(8 / 11)
    assert rouge_l_of_texts("police killed the gunman", "the gunman police killed") == 0.5
    assert rouge_l_of_texts("read_file(path)", "Read file: path") == 1
    assert rouge_l_of_texts("...", "words") == 0


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    return stubs(str(tmp_path_factory.mktemp("stubs")))[0]


@pytest.mark.parametrize("quick", [True, False])
def test_every_configuration_is_one_of_the_protocol_and_of_the_deployments(messages, quick):
    deployed = PAIRS_FILE.read_text()
    both = grid.configurations(quick) + grid.exact_ones(quick)
    for configuration in [grid.AR, *both]:
        message = configuration.message(messages)
        assert {field.name for field, _ in message.ListFields()} >= set(
            name for name, value in configuration.parameters.items() if value
        )
        assert f'deployments {{ name: "{configuration.deployment}"' in deployed
    names = [(c.series, c.small, c.settings) for c in grid.configurations(quick)]
    assert len(set(names)) == len(names)
    assert all(c.promises_exact for c in grid.exact_ones(quick))
    assert not any(
        c.promises_exact for c in both if c.parameters.get("rollback_threshold", 0) > 0.7
    )


class Server:
    """Writes the prompt's last token + 1, + 2, ...; BiLD with a threshold above 1 errs at the third.

    Every fourth token is in place of one that was not kept.
    """

    def __init__(self, messages, wrong_for=""):
        self.messages = messages
        self.wrong_for = wrong_for
        self.asked = []
        self.scored = []

    def request(self, model, prompt, new_tokens, method):
        names = {"Bild": "bild", "Speculative": "speculative", "Ngram": "ngram"}
        names["Autoregressive"] = "autoregressive"
        m = self.messages
        return m.GenerateRequest(
            model=model,
            token_ids=m.TokenIds(ids=prompt),
            max_new_tokens=new_tokens,
            **{names[method.DESCRIPTOR.name]: method},
        )

    def complete(self, request):
        m = self.messages
        self.asked.append(request)
        tokens = [request.token_ids.ids[-1] + 1 + i for i in range(request.max_new_tokens)]
        if request.bild.rollback_threshold > 1 or request.WhichOneof("method") == self.wrong_for:
            tokens[2] += 500
        choice = m.Choice()
        for i, token in enumerate(tokens):
            choice.tokens.add(id=token, corrected=i % 4 == 3)
        choice.finished.stats.large_passes = 1 + len(tokens) // 2
        return choice

    def negative_log_likelihood(self, model, prompt, tokens):
        self.scored.append((tuple(prompt), tuple(tokens)))
        return sum(2.0 if token > 500 else 0.5 for token in tokens)


CONFIGURATIONS = [
    grid.bild("BiLD", "code", 5, fallback_threshold=0.5),
    grid.bild("BiLD", "code", 0.69, fallback_threshold=0.5),
    grid.speculative("speculative", "code", draft_tokens=4),
]
TURNS = [[Task((0, 10 * i + j), tuple(range(8))) for j in range(3)] for i in (1, 2)]


@pytest.fixture
def measured(messages):
    server = Server(messages)
    ar, rows = measure.take_turns(server, CONFIGURATIONS, TURNS, 8, seed=1)
    measure.rate(server, ar, rows, TURNS)
    return server, ar, rows


def test_all_are_asked_the_same_in_no_fixed_order(measured):
    server, _, _ = measured
    assert len(server.asked) == 6 * 5
    orders = set()
    for first in range(0, 30, 5):
        warming, *of_task = server.asked[first : first + 5]
        assert warming.max_new_tokens == measure.UNMEASURED
        assert all(request.max_new_tokens == 8 for request in of_task)
        assert len({tuple(request.token_ids.ids) for request in of_task}) == 1
        orders.add(tuple((r.WhichOneof("method"), r.bild.rollback_threshold) for r in of_task))
        for request in of_task:
            exact = request.bild.rollback_threshold < 1
            assert (request.require_contract == server.messages.CONTRACT_EXACT) == exact
    assert len(orders) > 1


def test_quality_follows_from_the_answers(measured):
    server, ar, rows = measured
    lossy, exact, speculative = rows
    assert (lossy.equal, lossy.similarity) == (0, 7 / 8)
    assert (exact.equal, exact.similarity) == (1, 1)
    assert ar.nll == 0.5 and speculative.nll == 0.5
    assert lossy.nll == pytest.approx((7 * 0.5 + 2) / 8)
    assert speculative.fallbacks == 4 / 8 and speculative.rollbacks == 2 / 8
    assert len(server.scored) == len(set(server.scored)) == 12  # each text once


def test_speed_is_compared_turn_by_turn():
    def row(configuration, *turns):
        made = Row(configuration)
        made.turns = [[Answer([1, 2], seconds, 0, 2, 0) for seconds in turn] for turn in turns]
        return made

    ar = row(grid.AR, [4, 4], [8, 8])
    fast = row(CONFIGURATIONS[0], [2, 2], [2, 2])
    server = SimpleNamespace(negative_log_likelihood=lambda *_: 1.0)
    tasks = [[Task((0, 2 * i + j), (1, 2)) for j in range(2)] for i in range(2)]
    measure.rate(server, ar, [fast], tasks)
    assert ar.speedups == [1, 1]
    assert fast.speedups == [2, 4] and fast.speedup == 3


def test_drafts_kept_are_those_of_a_round():
    row = Row(grid.AR)
    row.turns = [[Answer([1, 2], 1, 0, 2, 0), Answer([1, 2], 1, 0, 2, 0)]]
    assert row.kept == 0  # no rounds
    row.turns[0][0].accept_lengths = (1, 0, 2)
    assert row.kept == pytest.approx(4 / 3)


def test_unequal_answers_are_counted(messages):
    tasks = [task for turn in TURNS for task in turn]
    counts = measure.count_equal(Server(messages, "speculative"), CONFIGURATIONS[1:], tasks, 8, 3)
    assert list(counts.values()) == [6, 0]


def test_an_unsteady_reference_is_an_error(messages):
    class Unsteady(Server):
        def complete(self, request):
            choice = super().complete(request)
            choice.tokens[0].id += len(self.asked)
            return choice

    with pytest.raises(RuntimeError, match="two answers"):
        measure.take_turns(Unsteady(messages), CONFIGURATIONS * 7, TURNS, 8, seed=1)


def test_tasks_continue_as_their_document_does(tokenizer, texts):
    stream = TokenStream(tokenizer, texts[:5])
    everything = " ".join(map(str, stream.ids.tolist()))
    tasks = measure.cut_tasks(stream, 20, prompt_tokens=8, new_tokens=12, seed=3)
    assert len(set(tasks)) == 20
    for task in tasks:
        assert task.prompt[0] == stream.end_of_text
        assert len(task.prompt) == 8 and len(task.reference) == 12
        assert " ".join(map(str, task.prompt[1:] + task.reference)) in everything


def conditions():
    return page.Conditions("scripts/evaluate ", "abc", "P", 2, [0.0, 0.01], 6, 64, 8, 2, 1.4)


def test_halves_are_rated_separately(measured):
    _, ar, rows = measured
    # The lossy answers to the first prompt of each turn are AR's.
    for answers, theirs in zip(rows[0].turns, ar.turns, strict=True):
        answers[0] = replace(theirs[0], seconds=theirs[0].seconds / 2)
    (first, (lossy, *_)), (second, (other, *_)) = measure.rated_halves(ar, rows, TURNS)
    assert [len(turn) for turn in first.turns + second.turns] == [1, 1, 2, 2]
    assert lossy.equal == 1 and lossy.speedups == pytest.approx([2, 2])
    assert other.equal == 0 and other.configuration is rows[0].configuration


def test_page(measured):
    _, ar, rows = measured
    for row, speedups in zip(rows, ([3, 3.2], [1.5, 1.6], [1.2, 1.4]), strict=True):
        row.speedups = speedups
    counts = {CONFIGURATIONS[1]: 7}
    # What is chosen on the first half has other figures on the second.
    second = [replace(row, speedups=[s - 1 for s in row.speedups], equal=0.25) for row in rows]
    halves = [(ar, rows), (replace(ar, rouge=ar.rouge + 0.02), second)]
    text = page.markdown(conditions(), ar, rows, counts, 8, "figure.svg", halves)
    assert "| BiLD | normal | α_FB 0.5, α_RB 0.69 | **7/8** |" in text
    assert "| BiLD | normal | α_FB 0.5, α_RB 5 | 3.10 (3.00-3.20) | 0 | 87.5 |" in text
    fastest = next(line for line in text.splitlines() if line.startswith("| BiLD, normal"))
    assert fastest.startswith("| BiLD, normal small model | **0.55** (α_FB 0.5, α_RB 0.69;")
    assert "equal 25 %, ROUGE-L -2.0)" in fastest
    assert "| BiLD, aligned small model | none | none | none |" in text
    assert "(figure.svg)" in text and "`scripts/evaluate`" in text


def test_only_the_measured_part_of_the_page_is_replaced():
    before = f"# Title\n\n{page.BEGIN}\nold\n{page.END}\n\nProse.\n"
    assert page.put(before, "new\n") == f"# Title\n\n{page.BEGIN}\n\nnew\n\n{page.END}\n\nProse.\n"
    for wrong in ("", page.BEGIN, page.END + page.BEGIN, 2 * (page.BEGIN + page.END)):
        with pytest.raises(ValueError, match="markers|must have one"):
            page.put(wrong, "new")


def test_curve_has_every_point_inside_its_panel(measured):
    _, ar, rows = measured
    for i, row in enumerate(rows):
        row.speedups = [1.0 + i]
    panels = page.panels(ar, rows)
    assert [panel.title for panel in panels] == ["normal small model", "aligned small model"]
    picture = xml.etree.ElementTree.fromstring(plot.draw(panels, "x & y", "<z>"))
    svg = "{http://www.w3.org/2000/svg}"
    circles = picture.findall(f"{svg}circle")
    assert len(circles) == 2 * 2  # two thresholds: a point and a legend each
    for circle in circles:
        assert plot.LEFT <= float(circle.get("cx")) <= plot.WIDTH
    titles = [title.text for title in picture.iter(f"{svg}title")]
    assert any(title.startswith("α_FB 0.5, α_RB 5: 1.00") for title in titles)
    assert "x & y" in [text.text for text in picture.iter(f"{svg}text")]


def test_ticks_are_round_numbers_within():
    assert plot.ticks(0.83, 2.31) == [1, 1.5, 2]
    assert plot.ticks(-3, 104) == [0, 20, 40, 60, 80, 100]
    assert plot.ticks(0.0012, 0.0031) == [0.0015, 0.002, 0.0025, 0.003]


def test_halves_need_two_prompts(capsys):
    with pytest.raises(SystemExit):
        parse(["--prompts", "1"])
    assert "--prompts: 1; allowed: at least 2" in capsys.readouterr().err
    assert parse(["--llm-to-slm-cost", "--prompts", "1"]).new_tokens == 100


def test_quick_is_small_and_can_be_overridden():
    assert (parse(["--quick"]).prompts, parse([]).prompts) == (4, 20)
    assert parse(["--quick", "--prompts", "9"]).prompts == 9
    assert parse([]).exact_prompts == 200


def test_loads_are_numbers_from_one(capsys):
    load = ["--humaneval", "--streams", "1,4"]
    args = parse(load)
    assert (args.streams, args.bursts, args.answers, args.prompt_tokens) == ((1, 4), (), 3, None)
    assert parse([*load, "--bursts"]).bursts == (1, 4)
    assert parse(["--humaneval", "--bursts", "8"]).bursts == (8,)
    assert parse([*load, "--prompt-tokens", "1000"]).prompt_tokens == 1000
    assert parse([]).prompt_tokens == 64
    for wrong, message in (
        (["--streams", "0"], "--streams: 0; allowed: numbers from 1"),
        (["--streams", "1,x"], "--streams: 1,x; allowed"),
        (["--bursts"], "--bursts: no number, and no --streams"),
        (["--streams", "1", "--answers", "0"], "--answers: 0; allowed: at least 1"),
        (["--streams", "1", "--prompt-tokens", "0"], "--prompt-tokens: 0; allowed: at least 1"),
        (["--prompt-tokens", "9"], "--prompt-tokens: with --humaneval only with --streams"),
    ):
        with pytest.raises(SystemExit):
            parse(["--humaneval", *wrong])
        assert message in capsys.readouterr().err
