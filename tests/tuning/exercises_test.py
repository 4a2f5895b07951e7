from tuning import exercises

DOCUMENTATION = '    """ Return the sum of all numbers in values that can be divided by three, without a rest.\n'


def written(name, more="", arguments="values: List[int]"):
    """A continuation of a request."""
    return f' {name}({arguments}) -> int:\n{DOCUMENTATION}{more}    """\n    return sum(values)\n'


def test_requests_have_three_examples_and_a_topic():
    texts = [exercises.request(number, seed=1) for number in range(20)]
    assert texts == [exercises.request(number, seed=1) for number in range(20)]
    assert len(set(texts)) == 20 and texts[0] != exercises.request(0, seed=2)
    for text in texts:
        assert sum(example in text for example in exercises.EXAMPLES) == 3
        assert text.endswith(".\ndef") and text.count("# About ") == 1


def test_heads_end_with_the_docstring():
    found = exercises.collect([written("sums", "    >>> sums([3, 4])\n    3\n")])
    assert found == [
        f'def sums(values: List[int]) -> int:\n{DOCUMENTATION}    >>> sums([3, 4])\n    3\n    """'
    ]


def test_incomplete_and_repeated_functions_are_left_out():
    first, second = written("sums"), written("other")
    assert len(exercises.collect([first, second])) == 2
    for unusable in (
        first.replace('    """\n', ""),  # the docstring does not end
        ' sums(values):\n    """ Adds. """\n',  # too short
        written("sums", "    many words\n" * 60),
        written("longest_run"),  # an example
        "sums" + first,
    ):
        assert len(exercises.collect([second, unusable, second])) == 1


def test_exercises_like_an_evaluation_are_left_out():
    head = exercises.collect([written("sums")])[0]
    for problem in (
        "from typing import List\n\n\ndef sums(a):\n    pass",  # the name
        "def f(a):\n    # All Numbers in values that can be divided by two\n    pass",  # eight words
    ):
        assert exercises.collect([written("sums")], [problem]) == []
    other = "def f(a):\n    # All numbers in values that can be\n    pass"  # seven words
    assert exercises.collect([written("sums")], [other]) == [head]


def test_types_are_imported():
    head = exercises.collect([written("sums", arguments="a: List[int], b: Optional[Dict]")])[0]
    assert exercises.with_imports(head).startswith(
        "from typing import Dict, List, Optional\n\n\ndef "
    )
    plain = exercises.collect([written("sums", arguments="a: list")])[0]
    assert exercises.with_imports(plain) == plain
