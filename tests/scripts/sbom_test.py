"""scripts/sbom and the wheel of scripts/package, with made-up components."""

import base64
import csv
import hashlib
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import zipfile

import pytest

from tests.conftest import ROOT


def load(name):
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "scripts" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    sys.modules[name] = module
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sbom():
    return load("sbom")


def test_a_text_is_printed_once_for_all_its_components(sbom, tmp_path):
    (tmp_path / "LICENSE").write_text("The text.\n")
    (tmp_path / "other").write_text("Elsewhere.\n")
    found = [
        sbom.Component("a", "1", "pkg:cargo/a@1", "MIT", [tmp_path / "LICENSE"]),
        sbom.Component("b", "2", "pkg:cargo/b@2", "MIT", [tmp_path / "LICENSE"]),
        sbom.Component("bare", "3", "pkg:cargo/bare@3", "ISC"),
        sbom.Component("c", "4", "pkg:pypi/c@4", "", [tmp_path / "other"], place="package torch"),
    ]
    text = sbom.licences(found)
    assert text.count("The text.") == 1 and "a 1 (MIT)\nb 2 (MIT)\n" in text
    assert "without a text of their licence:\n  bare 3 (ISC)" in text
    assert "Elsewhere" not in text and "No licence has been chosen" in text


def test_equal_components_give_equal_bills(sbom):
    def bill(version):
        one = sbom.Component("a", version, f"pkg:cargo/a@{version}", "MIT", sha256="0" * 64)
        return sbom.bill([one], "0.1.0", "deb")

    assert json.dumps(bill("1")) == json.dumps(bill("1"))
    assert bill("1")["serialNumber"] != bill("2")["serialNumber"]
    (component,) = bill("1")["components"]
    assert component["licenses"] == [{"expression": "MIT"}]
    assert component["hashes"] == [{"alg": "SHA-256", "content": "0" * 64}]


def test_licences_of_a_crate_and_of_what_it_contains(sbom, tmp_path):
    for name in ["LICENSE-MIT", "oniguruma/COPYING", "src/licence.rs/x", "NOTICE", "README.md"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = [str(path.relative_to(tmp_path)) for path in sbom.licence_files(tmp_path)]
    assert found == ["LICENSE-MIT", "NOTICE", "oniguruma/COPYING"]


def test_a_wheel_records_every_file_and_keeps_modes(tmp_path):
    package = load("package")
    tree = tmp_path / "tree"
    (tree / "a/bin").mkdir(parents=True)
    (tree / "a-1.dist-info").mkdir()
    (tree / "a/bin/program").write_bytes(b"\x7fELF")
    (tree / "a/bin/program").chmod(0o755)
    (tree / "a/__init__.py").write_text("")
    (tree / "a/__init__.py").chmod(0o644)
    record = tree / "a-1.dist-info/RECORD"
    for name in ("one.whl", "two.whl"):
        package.pack(tree, record, tmp_path / name)
    assert (tmp_path / "one.whl").read_bytes() == (tmp_path / "two.whl").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.whl") as wheel:
        rows = list(csv.reader(wheel.read("a-1.dist-info/RECORD").decode().splitlines()))
        assert {row[0] for row in rows} == set(wheel.namelist())
        digest = hashlib.sha256(wheel.read("a/bin/program")).digest()
        encoded = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        assert ["a/bin/program", f"sha256={encoded}", "4"] in rows
        assert wheel.getinfo("a/bin/program").external_attr >> 16 == 0o100755
        assert wheel.getinfo("a/__init__.py").external_attr >> 16 == 0o100644


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no build folder; run scripts/build release"),
        (["CMakeCache.txt"], "was configured without packages"),
        (["CMakeCache.txt", "CPackConfig.cmake"], "bin/tandem-server is missing"),
    ],
)
def test_a_folder_that_cannot_be_packaged_is_refused(tmp_path, files, message):
    for name in files:
        (tmp_path / name).write_text("")
    done = subprocess.run(
        [ROOT / "scripts/package", tmp_path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and message in done.stderr


def test_packages_of_the_playground(sbom, tmp_path):
    """Only of a build with the playground, and without the bundler."""
    assert sbom.web_packages(tmp_path) == []
    for name in ("preact", "uplot", "marked", "dompurify", "highlight.js", "esbuild"):
        folder = tmp_path / "node_modules" / name
        folder.mkdir(parents=True)
        (folder / "package.json").write_text('{"version": "1.2.3", "license": "MIT"}')
        (folder / "LICENSE").write_text(f"of {name}")
    (tmp_path / "playground").mkdir()
    (tmp_path / "playground/modules").write_text(f"{tmp_path / 'node_modules'}\n")
    found = sbom.web_packages(tmp_path)
    names = ["dompurify", "highlight.js", "marked", "preact", "uplot"]
    assert [one.purl for one in found] == [f"pkg:npm/{name}@1.2.3" for name in names]
    assert all(one.texts and one.place == "inside" for one in found)
