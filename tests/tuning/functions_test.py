"""tuning/functions.py: what becomes of a file's functions, and on which side of the split they fall."""

from tuning import functions
from tuning.corpus import Document
from tuning.functions import DOCSTRING, NAME, Example

FILE = '''
@decorated
def area(width, height):
    """Return the area of a rectangle.

    More is said here.
    """
    return area.factor * width * height


class Shape:
    async def grow(self):
        # no docstring
        await self.step()

    def short(self): return 1

    def said(self):
        """Only a docstring is here."""

    def dull(self):
        """---"""
        return 2
'''


def test_sources_and_targets():
    found = functions.examples([Document("a.py", FILE)])
    body = "return {}.factor * width * height"
    assert found[:2] == [
        Example(NAME, f"name: def _(width, height):\n    {body.format('_')}", "area"),
        Example(
            DOCSTRING,
            f"docstring: def area(width, height):\n    {body.format('area')}",
            "Return the area of a rectangle.",
        ),
    ]
    rest = {example.target: example.source for example in found[2:]}
    assert rest == {
        "grow": "name: async def _(self):\n    # no docstring\n    await self.step()",
        "dull": "name: def _(self):\n    return 2",
    }


def test_first_lines():
    assert functions.first_line("  Two lines.\n  more") == "Two lines."
    assert functions.first_line("\n\n  Late it comes.\n") == "Late it comes."
    assert functions.first_line("Short.") is None
    assert functions.first_line("============") is None
    assert functions.first_line("") is None


def test_what_cannot_be_parsed_has_no_functions():
    assert functions.examples([Document("a.py", "def f(:\n    pass\n")]) == []
    assert functions.examples([Document("a.py", "x = '\x00'\n")]) == []


def test_sources_are_there_once_and_on_one_side():
    def document(number, function):
        return Document(f"{number}.py", f"def {function}(a):\n    return a.{function}\n")

    same = [document(n, "same") for n in range(200)]
    own = [document(n, f"own_{n}") for n in range(200, 400)]
    training, held_out = functions.split([*same, *own], share=0.2)
    assert len(training) + len(held_out) == 1  # hidden, all sources are equal
    own = [Document(d.path, d.text.replace("a.", f"a.x{i}.")) for i, d in enumerate(own)]
    training, held_out = functions.split([*same, *own], share=0.2)
    assert len(training) + len(held_out) == 201 and 20 < len(held_out) < 60
    assert not {e.source for e in training} & {e.source for e in held_out}
    again = functions.split(list(reversed([*same, *own])), share=0.2)[1]
    assert {e.source for e in again} == {e.source for e in held_out}
