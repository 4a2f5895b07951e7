import math
import re
from xml.etree import ElementTree

import pytest

from bench.peers import plot_growth

CSV = """table,model,x,milliseconds
step,small:head,1,0.2
context,small,64,1.0
context,small,256,1.5
context,small,128,1.2
context,large,64,10
context,large,128,10
context,large,256,20
sequences,small,1,1.0
sequences,small,4,2.0
"""


@pytest.fixture
def tables(tmp_path):
    path = tmp_path / "growth.csv"
    path.write_text(CSV)
    return plot_growth.read(path)


def test_reads_points_by_table_and_model(tables):
    assert tables["context"]["large"] == [(64, 10), (128, 10), (256, 20)]


def test_values_are_relative_to_the_first(tables):
    assert plot_growth.values(tables["context"]["small"], "relative") == [
        (64, 1),
        (128, 1.2),
        (256, 1.5),
    ]
    # Four times the tokens in twice the time.
    assert plot_growth.values(tables["sequences"]["small"], "rate") == [(1, 1), (4, 2)]


@pytest.mark.parametrize("top", [0.3, 1, 1.05, 7, 64, 999])
def test_grid_has_a_handful_of_round_lines(top):
    size = plot_growth.step(top)
    assert 2 <= top / size <= 6
    assert math.isclose(size / 10 ** math.floor(math.log10(size) + 1e-9) % 1, 0, abs_tol=1e-9)


def test_draws_a_line_per_model_that_rises_where_times_do(tables):
    root = ElementTree.fromstring(plot_growth.draw(tables))
    name = "{http://www.w3.org/2000/svg}"
    panels = root.findall(f"{name}g")
    assert len(panels) == 2  # context and sequences; rows were not measured
    lines = panels[0].findall(f"{name}polyline")
    assert len(lines) == 2
    large = [tuple(map(float, p.split(","))) for p in lines[1].get("points").split()]
    assert large[0][1] == large[1][1] > large[2][1]  # flat, then up; y grows downwards
    assert math.isclose(large[1][0] - large[0][0], large[2][0] - large[1][0], abs_tol=0.2)


def test_models_names_are_text_not_markup(tables):
    tables["context"]["a<b"] = [(1, 1), (2, 2)]
    assert re.search("a&lt;b", plot_growth.draw(tables))


def test_a_file_without_growth_is_refused():
    with pytest.raises(ValueError, match="none of the tables"):
        plot_growth.draw({"step": {"m": [(1, 1)]}})
