"""scripts/tidy finds what clang-tidy finds in each file, although it checks the files of a folder as one source."""

import json
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class TidyTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        (self.root / "scripts").mkdir()
        shutil.copy(ROOT / "scripts/tidy", self.root / "scripts/tidy")
        shutil.copy(ROOT / ".clang-tidy", self.root)

    def write(self, unity=False, **texts):
        """Files engine/sched/NAME.cpp, and how they are compiled: one by one, or as one source."""
        sched = self.root / "engine/sched"
        build = self.root / "build/test"
        sched.mkdir(parents=True, exist_ok=True)
        build.mkdir(parents=True, exist_ok=True)
        entries = []
        for name, text in texts.items():
            file = sched / f"{name}.cpp"
            file.write_text(text, encoding="utf-8")
            command = f"clang++-19 -std=c++20 -o {name}.o -c {file}"
            entries.append({"directory": str(build), "command": command, "file": str(file)})
        if unity:
            source = build / "Unity/unity_0_cxx.cxx"
            source.parent.mkdir()
            source.write_text("".join(f'#include "{entry["file"]}"\n' for entry in entries))
            command = f"clang++-19 -std=c++20 -o unity.o -c {source}"
            entries = [{"directory": str(build), "command": command, "file": str(source)}]
        (build / "compile_commands.json").write_text(json.dumps(entries), encoding="utf-8")
        return [f"engine/sched/{name}.cpp" for name in texts]

    def tidy(self, files):
        command = [self.root / "scripts/tidy", "build/test", *files]
        run = subprocess.run(command, capture_output=True, text=True, cwd=self.root)
        return run.returncode, run.stdout

    def test_clean_files_are_checked_once(self):
        files = self.write(a="int one() { return 1; }\n", b="int two() { return 2; }\n")
        self.assertEqual(self.tidy(files), (0, "clang-tidy: 2 files to check, 2 in all\n"))
        self.assertEqual(self.tidy(files), (0, "clang-tidy: 0 files to check, 2 in all\n"))
        self.write(a="int one() { return 1; }\n", b="int three() { return 3; }\n")
        self.assertEqual(self.tidy(files), (0, "clang-tidy: 2 files to check, 2 in all\n"))

    def test_findings_in_any_file_are_reported(self):
        files = self.write(a="int one() { return 1; }\n", b="int BadName() { return 2; }\n")
        for _ in range(2):  # a file with findings is not recorded as clean
            status, output = self.tidy(files)
            self.assertEqual(status, 1)
            self.assertIn("engine/sched/b.cpp:1:5: error: invalid case style", output)

    def test_files_of_a_unity_build_are_checked(self):
        files = self.write(
            unity=True, a="int one() { return 1; }\n", b="int BadName() { return 2; }\n"
        )
        status, output = self.tidy(files)
        self.assertEqual(status, 1)
        self.assertIn("clang-tidy: 2 files to check", output)
        self.assertIn("engine/sched/b.cpp:1:5: error: invalid case style", output)

    def test_files_that_conflict_as_one_source_are_checked_one_by_one(self):
        helper = "namespace {\nint helper() { return 1; }\n}  // namespace\n"
        files = self.write(
            a=helper + "int one() { return helper(); }\n",
            b=helper + "int two() { return helper(); }\n",
        )
        status, output = self.tidy(files)
        self.assertEqual(status, 0, output)
        self.assertIn("one by one", output)
        self.assertIn("redefinition of 'helper'", output)
        self.assertEqual(self.tidy(files), (0, "clang-tidy: 0 files to check, 2 in all\n"))


if __name__ == "__main__":
    unittest.main()
