"""tuning/recycling_count: rounds of drafts replayed on answers."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tuning import recycling_count as count
from tuning.evaluate.humaneval import Problem
from tuning.recycling_count import Answer, Lookups


def answer(prompt: str, text: str, small: str = "", others: str = "") -> Answer:
    """Letters are tokens. The candidates of a token are itself and `others`."""
    ids = [ord(c) for c in text]

    def candidates(token: int) -> list[int]:
        return [token, *(ord(c) for c in others if ord(c) != token)]

    before = [ord(c) for c in prompt]
    return Answer(
        "some",
        before,
        ids,
        [candidates(t) for t in before[1:]],
        [candidates(t) for t in ids],
        [ord(c) for c in small or text],
        list(text),
    )


def drafted(text: str, earlier=(), most=8, least=1) -> str:
    """By look-ups behind the whole text."""
    ids = [ord(c) for c in text + "?"]
    lookups = Lookups(ids, len(text), [[ord(c) for c in other] for other in earlier])
    return "".join(map(chr, lookups.draft(len(text), most, least)))


def test_look_ups_copy_behind_the_longest_and_latest_match():
    assert drafted("abcXbcYbc", most=2) == "Yb"
    assert drafted("abcXbcYabc", most=2) == "Xb", "three tokens are more than two"
    assert drafted("xyz") == ""
    assert drafted("abcXbcYbc", least=3) == ""
    # A copy that reaches the end continues with its own tokens.
    assert drafted("abab", most=5) == "ababa"


def test_earlier_texts_count_from_four_tokens_on():
    assert drafted("abc", ["abcde"]) == ""
    assert drafted("abcd", ["abcdef"]) == "ef"
    assert drafted("abcdXabcd", ["abcdef"]) == "XabcdXab", "own text wins where both are equal"
    assert drafted("zabcdXabcd", ["YXabcdef"])[0] == "e", "five tokens are more than four"


def test_a_tree_counts_its_nodes_and_accepts_the_best_path():
    paths = [(1, 2), (1, 3), (4,)]
    assert count.rows_of(paths) == 4
    assert [count.accepted(paths, truth) for truth in ([1, 3, 9], [4], [5, 1], [1])] == [2, 1, 0, 1]
    assert count.accepted([], [1]) == 0


def test_the_shape_takes_the_likeliest_nodes():
    assert count.best_shape([0.5, 0.3, 0.1], [0.8, 0.1, 0.0], 4) == [(0,), (0, 0), (0, 0, 0), (1,)]


def rounds(answers, draft, keep=False, **more) -> count.Counted:
    return count.total(count.run(answers, count.all_lookups(answers, keep), draft, keep, **more))


def test_rounds_of_autoregressive_decoding():
    counted = rounds([answer("ab", "cdef")], lambda r: [])
    # The first token is the prompt's pass's.
    assert (counted.tokens, counted.passes, counted.rows) == (3, 3, 0)
    assert counted.speed(0.25) == 1


def test_drafts_beyond_the_answer_cost_no_row():
    counted = rounds([answer("ab", "abab")], count.ngrams(8))
    # The answer's first token follows the prompt's pass; "bab" remains: two drafts and one token.
    assert (counted.tokens, counted.passes, counted.rows) == (3, 1, 2)
    assert counted.speed(0.5) == 3 / 2


def test_recycling_knows_the_candidates_of_verified_rows():
    # Behind x the large model had y before, with z as the second candidate.
    text = answer("q", "xyaxzb", others="yz")
    counted = rounds([text], count.chain(1))
    assert (counted.tokens, counted.passes) == (5, 5), "y is drafted, z is right"
    counted = rounds([text], count.tree([(0,), (1,)]))
    assert (counted.tokens, counted.passes) == (5, 4)
    once = answer("x", "ya", others="yz")
    again = rounds([once, once], count.chain(1), keep=True)
    # Each answer begins without a draft; one token remains, for which no draft pays.
    assert (again.tokens, again.passes, again.rows) == (2, 2, 0)


def test_the_matrix_of_earlier_answers_and_of_prompts():
    once = answer("q", "xyab")
    assert rounds([once, once], count.chain(2), keep=False).passes == 6
    assert rounds([once, once], count.chain(2), keep=True).passes == 4
    prompt = answer("xyab", "xyab")
    assert rounds([prompt], count.chain(2)).passes == 3
    assert rounds([prompt], count.chain(2), prompts=True).passes == 1


def test_the_fallback_drafts_where_look_ups_have_none():
    def none(r):
        return [()]

    one = lambda r: [(7,)]  # noqa: E731
    assert count.first_of(none, one)(None) == [(7,)]
    assert count.first_of(one, none)(None) == [(7,)]


def test_rows_that_remain_are_filled_with_a_tree():
    r = SimpleNamespace(text=[1], matrix={1: [2, 3], 2: [4]})
    filled = count.filled(lambda _: [(9, 8)], [(0,), (0, 0), (1,)], 4)(r)
    assert filled == [(9, 8), (2,), (2, 4)]


def test_drafts_of_the_small_model_cost_its_passes():
    text = answer("q", "abcdefg", small="abcXefg")
    counted = rounds([text], count.of_small, small=2)
    # bc and d; then X is wrong, d comes from the large model; ef and g.
    assert (counted.tokens, counted.passes, counted.small_passes) == (6, 2, 4)
    sibling = answer("q", "abab", small="aXab")
    assert rounds([sibling], count.of_small, small=1).passes == 2
    known = replace(sibling, prompt=[ord(c) for c in "xab"])
    known.prompt_candidates = [[ord("a")], [ord("b")]]
    assert rounds([known], count.small_and_siblings, small=1, prompts=True).passes == 2
    assert rounds([known], count.small_and_siblings, small=1, prompts=True).rows == 2


def test_settings_are_chosen_on_the_other_half():
    fast, slow = count.Counted(10, 5), count.Counted(10, 10)
    # a is best for the even answers, b for the odd ones.
    of = {"way": {"a": [fast, slow, fast, slow], "b": [slow, fast, slow, fast]}}
    counted, settings = count.scored([of, of], "way", 0)
    assert settings == ["a", "b"]
    assert counted == [slow] * 4, "even answers have b, odd ones a"


def test_a_gain_has_its_standard_error():
    twice, plain = count.Counted(10, 5), count.Counted(10, 10)
    assert count.gain([twice] * 3, [plain] * 3, 0.02) == "+100.0% ± 0.0%"
    assert count.gain([twice, plain], [plain] * 2, 0.02).startswith("+33.3% ± 3")


def test_tables_of_all_draftings():
    answers = [answer("abcab", "cabdabcabcab", others="bd")] * 4
    text = count.pages(answers)
    assert "4 answers, 48 tokens" in text
    assert "| recycling, tree, earlier answers |" in text
    lines = [line for line in text.splitlines() if line.startswith("| small model, 4 drafts |")]
    assert len(lines) == 1 and lines[0].count("|") == 10 and "+0.0% ± 0.0%" in lines[0]
    assert "| the small model | 48 |" in text


def test_answers_end_with_the_function():
    whole = answer("q", "ab\n#c")
    assert whole.cut(["\n#"]).texts == ["a", "b", "\n", "#"]
    assert len(whole.cut(["\n#"]).candidates) == 4
    assert whole.cut(["none"]) is whole


class Client:
    def __init__(self):
        self.messages = SimpleNamespace(
            ScoreRequest=lambda **fields: fields, TokenIds=lambda ids: ids
        )
        self.stub = SimpleNamespace(Score=self.score)
        self.prompts = []

    def request(self, model, prompt, new_tokens, **fields):
        return SimpleNamespace(new_tokens=new_tokens)

    def score(self, request):
        if request["model"] == "large":
            self.prompts.append(request["text"])
            return SimpleNamespace(prompt_tokens=[token(5, 6), token(7, 8)])
        return SimpleNamespace(
            continuation_tokens=[token(1, 2) for _ in request["continuation_token_ids"]]
        )

    def complete(self, request):
        return SimpleNamespace(tokens=[token(3, 4)] * request.new_tokens)


def token(id_: int, other: int):
    candidates = [SimpleNamespace(id=id_), SimpleNamespace(id=other)]
    return SimpleNamespace(id=id_, top_logprobs=candidates, text=str(id_))


def test_an_incomplete_file_is_continued(tmp_path):
    problems = [Problem(f"HumanEval/{n}", f"prompt {n}", "", "") for n in range(3)]
    file = tmp_path / "answers"
    count.record(Client(), problems[:2], 2, file)
    whole = file.read_text()
    file.write_text(whole[:-5])  # the end of the last line is missing
    client = Client()
    count.record(client, problems, 2, file)
    assert client.prompts == ["prompt 1", "prompt 2"]
    answers = count.load(file)
    assert [a.name for a in answers] == [p.name for p in problems]
    assert answers[0] == answers[1].__class__(
        "HumanEval/0", [5, 7], [3, 3], [[7, 8]], [[3, 4], [3, 4]], [1, 1], ["3", "3"]
    )
    file.write_text("{\n" + whole)
    with pytest.raises(ValueError):
        count.load(file)


def test_without_answers_there_is_a_message(tmp_path, capsys):
    assert count.main(["replay", str(tmp_path / "none")]) == 1
    assert "record" in capsys.readouterr().err
