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


def test_files_of_each_kind_come_in_turn():
    script = a_file(2, 70) + "if __name__ == '__main__':\n    f0()\n"
    classes = a_file(1, 40) + "class C:\n    def g(self):\n        pass\n" + "# more\n" * 40
    documents = [
        *(Document(f"plain{i}.py", a_file(2, 60 + i)) for i in range(9)),
        *(Document(f"test/test_{i}.py", classes + f"# {i}\n") for i in range(2)),
        Document("script.py", script),
        *(Document(f"class{i}.py", classes + f"# c{i}\n") for i in range(3)),
    ]
    kinds = [task.kind for task in editing.tasks(documents, 9)]
    assert kinds[:4] == ["tests", "script", "classes", "functions"]
    assert kinds[4:] == ["tests", "classes", "functions", "classes", "functions"]
    assert editing.tasks(documents, 4) == editing.tasks(documents, 9)[:4]
    assert len(editing.tasks(documents, 99)) == len(documents)


def test_the_file_is_what_the_block_holds():
    assert editing.file_in("Here:\n```python\na = 1\n```\nDone.") == "a = 1\n"
    assert editing.file_in("```\na\n") == "a\n"
    assert editing.file_in("a = 1\n") == "a = 1\n"


class FakeClient:
    """Writes the file back with a mark; look-ups make two tokens a pass. They take half the time of
    autoregressive decoding, and a tenth for the second file."""

    def __init__(self):
        self.asked, self.now = [], 0.0

    def complete(self, request):
        self.asked.append(request)
        text, way, new_tokens = request
        answer = f"```python\n{editing.file_in(text)}# {len(editing.file_in(text))}\n```"
        plain = way is editing.PLAIN
        self.now += 20 if plain else 2 if "# fast" in text else 10
        stats = SimpleNamespace(large_passes=40 if plain else 20, draft_tokens=30)
        usage = SimpleNamespace(completion_tokens=min(40, new_tokens))
        return SimpleNamespace(text=answer, finished=SimpleNamespace(usage=usage, stats=stats))


def test_passes_are_counted_and_the_second_round_edits_the_answer(monkeypatch):
    monkeypatch.setattr(editing, "request_of", lambda client, way, text, n: (text, way, n))
    client = FakeClient()
    ways = editing.WAYS[:3]
    tasks = editing.tasks([Document("a.py", a_file(2, 70))], 1)
    results = editing.measure(client, ways, tasks, 100, clock=lambda: client.now)
    assert [r.files[0].per_pass for r in results["first edit"]] == [1, 2, 2]
    second = client.asked[len(ways) + 1][0]
    assert "# reviewed" in second
    assert editing.file_in(results["first edit"][0].texts[0]).strip() in second
    shown = editing.table("first edit", results["first edit"])
    assert "| look-ups | 2.00 (2.00-2.00) | 4.0 (4.0-4.0) | 2.00 (2.00-2.00) | 30 |" in shown
    assert shown.count("1 of 1") == 3


def test_speed_ups_are_medians_over_files_each_against_its_own(monkeypatch):
    monkeypatch.setattr(editing, "request_of", lambda client, way, text, n: (text, way, n))
    client = FakeClient()
    documents = [Document(f"{i}.py", a_file(2, 70 + i) + "# fast\n" * (i == 1)) for i in range(3)]
    tasks = editing.tasks(documents, 3)
    results = editing.measure(client, editing.WAYS[:3], tasks, 100, clock=lambda: client.now)
    of_round = results["second edit"]
    assert sorted(of_round[2].ratios(of_round[0])) == [2, 2, 10]
    shown = editing.table("second edit", of_round)
    assert "| look-ups | 2.00 (2.00-2.00) | 4.0 (4.0-20.0) | 2.00 (2.00-10.00) | 90 |" in shown
    by_file = editing.files_table(tasks, of_round)
    assert "| 1.py | functions | 40 | 10.00 | 10.00 |" in by_file
    assert by_file.count("| 2.00 | 2.00 |") == 2
