"""scripts/tidy finds what clang-tidy finds in each file, although it checks the files of a folder as one source."""

import json
import os
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

    def header(self, name, text):
        path = self.root / f"engine/sched/{name}.h"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def write(self, unity=False, flags="", **texts):
        """Files engine/sched/NAME.cpp, and how they are compiled: one by one, or as one source."""
        sched = self.root / "engine/sched"
        build = self.root / "build/test"
        sched.mkdir(parents=True, exist_ok=True)
        build.mkdir(parents=True, exist_ok=True)
        entries = []
        for name, text in texts.items():
            file = sched / f"{name}.cpp"
            file.write_text(text, encoding="utf-8")
            command = f"clang++-19 -std=c++20 {flags} -I{self.root} -o {name}.o -c {file}"
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
        variables = os.environ | {"TANDEM_TIDY_CACHE": str(self.root / "clean")}
        run = subprocess.run(command, capture_output=True, text=True, cwd=self.root, env=variables)
        return run.returncode, run.stdout

    def expect_checked(self, files, checked):
        """That all are clean, and this many of them were not known to be."""
        expected = f"clang-tidy: {checked} files to check, {len(files)} in all\n"
        self.assertEqual(self.tidy(files), (0, expected))

    def test_clean_files_are_checked_once(self):
        files = self.write(a="int one() { return 1; }\n", b="int two() { return 2; }\n")
        self.expect_checked(files, 2)
        self.expect_checked(files, 0)
        self.write(a="int one() { return 1; }\n", b="int three() { return 3; }\n")
        self.expect_checked(files, 1)

    def test_a_fault_in_a_file_that_was_clean_is_found(self):
        files = self.write(a="int one() { return 1; }\n", b="int two() { return 2; }\n")
        self.expect_checked(files, 2)
        self.write(a="int one() { return 1; }\n", b="int BadName() { return 2; }\n")
        for _ in range(2):
            status, output = self.tidy(files)
            self.assertEqual(status, 1)
            self.assertIn("clang-tidy: 1 files to check, 2 in all", output)
            self.assertIn("engine/sched/b.cpp:1:5: error: invalid case style", output)
        self.write(a="int one() { return 1; }\n", b="int two() { return 2; }\n")
        self.expect_checked(files, 0)

    def test_files_are_checked_again_after_a_change_of_a_header_that_they_include(self):
        self.header("deep", "inline int deep() { return 1; }\n")
        self.header("near", '#include "engine/sched/deep.h"\n')
        self.header("local", "inline int local() { return 1; }\n")
        files = self.write(
            a='#include "engine/sched/near.h"\nint one() { return deep(); }\n',
            b='#include "local.h"\nint two() { return local(); }\n',
            c="int three() { return 3; }\n",
        )
        self.expect_checked(files, 3)
        self.header("unused", "inline int BadName() { return 1; }\n")
        self.expect_checked(files, 0)
        self.header("local", "inline int local() { return 2; }\n")
        self.expect_checked(files, 1)
        self.header("deep", "inline int deep() { return 1; }\ninline int BadName() { return 1; }\n")
        status, output = self.tidy(files)
        self.assertEqual(status, 1)
        self.assertIn("clang-tidy: 1 files to check, 3 in all", output)
        self.assertIn("engine/sched/deep.h:2:12: error: invalid case style", output)

    def test_files_are_checked_again_after_a_change_of_any_header_if_a_macro_names_one(self):
        subprocess.run(["git", "init", "-q"], cwd=self.root, check=True)
        self.header("named", "inline int named() { return 1; }\n")
        files = self.write(
            a='#define NAME "engine/sched/named.h"\n#include NAME\nint one() { return named(); }\n'
        )
        self.expect_checked(files, 1)
        self.expect_checked(files, 0)
        self.header("named", "inline int named() { return 2; }\n")
        self.expect_checked(files, 1)

    def test_files_are_checked_again_after_a_change_of_checks_or_of_their_command(self):
        texts = {"a": "#ifdef FAULT\nint BadName() { return 1; }\n#endif\n"}
        files = self.write(**texts)
        self.expect_checked(files, 1)
        with (self.root / ".clang-tidy").open("a", encoding="utf-8") as checks:
            checks.write("# A comment.\n")
        self.expect_checked(files, 1)
        self.write(flags="-DFAULT", **texts)
        status, output = self.tidy(files)
        self.assertEqual(status, 1)
        self.assertIn("engine/sched/a.cpp:2:5: error: invalid case style", output)

    def test_a_finding_in_a_header_is_reported_for_one_file(self):
        self.header("bad", "#pragma once\ninline int BadName() { return 1; }\n")
        include = '#include "engine/sched/bad.h"\n'
        files = self.write(a=include, b=include, c=include)
        status, output = self.tidy(files)
        self.assertEqual(status, 1)
        self.assertIn("1 of 3 files are checked one by one", output)
        # The reason of the check one by one, and its own finding.
        self.assertEqual(output.count("engine/sched/bad.h:2:12: error: invalid case style"), 2)

    def test_a_conflict_hides_no_finding(self):
        helper = "namespace {\nint helper() { return 1; }\n}  // namespace\n"
        files = self.write(
            a=helper + "int one() { return helper(); }\n",
            b=helper + "int two() { return helper(); }\n",
            c="int BadName() { return 3; }\n",
            d="int four() { return 4; }\n",
        )
        status, output = self.tidy(files)
        self.assertEqual(status, 1)
        self.assertIn("engine/sched/c.cpp:1:5: error: invalid case style", output)
        self.write(
            a=helper + "int one() { return helper(); }\n",
            b=helper + "int two() { return helper(); }\n",
            c="int three() { return 3; }\n",
            d="int four() { return 4; }\n",
        )
        status, output = self.tidy(files)
        self.assertEqual(status, 0, output)
        self.expect_checked(files, 0)

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
