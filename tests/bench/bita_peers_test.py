"""Subjects of bench.peers.bita."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bench.peers import bita


def write_masks(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"masks": np.zeros((count, 8), np.float32)}, folder / "adapter.safetensors")


def test_a_model_of_ones_own_has_its_masks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_masks(tmp_path / "b/masks", 2)
    args = bita.parse(["--model", "a/code-7b.gguf", "--masks", "b/masks"])
    (subject,) = bita.subjects_of(args)
    assert subject.title == "code-7b"
    assert f'path: "{Path.cwd()}/a/code-7b.gguf"' in subject.config()
    assert f'path: "{Path.cwd()}/b/masks"' in subject.config()
    assert "num_masks: 2" in subject.config()


def test_the_models_of_the_report_are_the_default():
    assert bita.subjects_of(bita.parse([])) == list(bita.SUBJECTS.values())


def test_trees_have_no_more_masks_than_the_file(tmp_path):
    write_masks(tmp_path, 1)
    names = [way.name for way in bita.ways_of(bita.Subject("own", Path("own.gguf"), tmp_path))]
    assert "BiTA, spine, M 1, k 2 (5 rows)" in names
    assert not any("M 3" in name for name in names)
    ours = bita.ways_of(bita.SUBJECTS["code-large"])
    assert ours == (*bita.WAYS, bita.SPECULATIVE)


@pytest.mark.parametrize(
    "arguments",
    [["--model", "a"], ["--masks", "b"], ["--model", "a", "--masks", "b", "--write"]],
)
def test_options_that_do_not_fit_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        bita.parse(arguments)
    error = capsys.readouterr().err
    assert "allowed: both or none" in error or "--write: not with" in error
