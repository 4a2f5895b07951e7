"""Which files are edited, and what is counted of the answers."""

from types import SimpleNamespace

from tuning.corpus import Document
from tuning.evaluate import editing


def a_file(functions: int, lines: int) -> str:
    text = "".join(f"def f{i}():\n    pass\n\n" for i in range(functions))
    return text + "# more\n" * (lines - text.count("\n"))


def test_files_that_fit_are_chosen_in_one_order():
    documents = [
        Document("short.py", a_file(2, 50)),
        Document("long.py", a_file(2, 130)),
        Document("one.py", a_file(1, 80)),
        Document("fence.py", a_file(2, 80) + "```"),
        Document("broken.py", a_file(2, 80) + "def"),
        *(Document(f"{i}.py", a_file(2, 60 + i)) for i in range(20)),
    ]
    some = editing.tasks(documents, 5)
    assert len(some) == 5
    assert all(task.path[0].isdigit() for task in some)
    assert some == editing.tasks(documents, 20)[:5]
    assert "`f0` to `f0_checked`" in some[0].changes[0]
    assert "`f1`" in some[0].changes[1]


def test_the_file_is_what_the_block_holds():
    assert editing.file_in("Here:\n```python\na = 1\n```\nDone.") == "a = 1\n"
    assert editing.file_in("```\na\n") == "a\n"
    assert editing.file_in("a = 1\n") == "a = 1\n"


class FakeClient:
    """Writes the file back with a mark; look-ups make two tokens a pass."""

    def __init__(self):
        self.asked = []

    def complete(self, request):
        self.asked.append(request)
        text, way, new_tokens = request
        answer = f"```python\n{editing.file_in(text)}# {len(editing.file_in(text))}\n```"
        passes = 40 if way is editing.PLAIN else 20
        stats = SimpleNamespace(large_passes=passes, draft_tokens=30)
        usage = SimpleNamespace(completion_tokens=min(40, new_tokens))
        return SimpleNamespace(text=answer, finished=SimpleNamespace(usage=usage, stats=stats))


def test_passes_are_counted_and_the_second_round_edits_the_answer(monkeypatch):
    monkeypatch.setattr(editing, "request_of", lambda client, way, text, n: (text, way, n))
    client = FakeClient()
    ways = editing.WAYS[:3]
    tasks = editing.tasks([Document("a.py", a_file(2, 70))], 1)
    results = editing.measure(client, ways, tasks, 100)
    assert [r.tokens / r.passes for r in results["first edit"]] == [1, 2, 2]
    second = client.asked[len(ways) + 1][0]
    assert "# reviewed" in second
    assert editing.file_in(results["first edit"][0].texts[0]).strip() in second
    shown = editing.table("first edit", results["first edit"])
    assert "| look-ups | 2.00 |" in shown
    assert shown.count("1 of 1") == 3
