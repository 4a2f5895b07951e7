"""scripts/check_prose.py finds what it is there to find, and nothing else."""

import importlib.util
import pathlib
import re
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_prose.py"
SPEC = importlib.util.spec_from_file_location("check_prose", SCRIPT)
check_prose = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_prose)


class CheckProseTest(unittest.TestCase):
    def check(self, **files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                name = name.replace("__", "/")
                path = root / re.sub(r"_(md|h|py|proto)$", r".\1", name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            subprocess.run(["git", "init", "-q", root], check=True)
            subprocess.run(["git", "-C", root, "add", "-A"], check=True)
            return check_prose.check(root)

    def test_plain_text_passes(self):
        text = "# Title\n\nThe server streams tokens. Each request chooses its method.\n"
        self.assertEqual(self.check(README_md=text), [])

    def test_a_long_sentence_is_found(self):
        found = self.check(README_md="The " + "very " * 40 + "long one ends.\n")
        self.assertIn("README.md: 44 words in a sentence; allowed: 40", "\n".join(found))

    def test_long_sentences_on_average_are_found(self):
        found = self.check(README_md=("The " + "very " * 30 + "long one ends. ") * 4)
        self.assertTrue(any(line.startswith("median sentence: 34") for line in found), found)
        self.assertTrue(any(line.startswith("90th percentile") for line in found), found)

    def test_avoided_words_are_found_in_prose_alone(self):
        for word in ["nobody", "Whoever", "doors", "so many", "lets in", "as it is"]:
            found = self.check(README_md=f"Here {word} stays.\n")
            self.assertEqual(len(found), 1, (word, found))
            self.assertIn(repr(word), found[0])
        code = (
            "Run it.\n\n```sh\necho nobody\n```\n\n| nobody | x |\n|---|---|\n\nA `nobody` user.\n"
        )
        self.assertEqual(self.check(README_md=code), [])

    def test_a_user_page_has_a_bound_and_a_report_has_none(self):
        text = "The server streams ten tokens of text to one client. " * 160
        self.assertEqual(len(self.check(docs__operations_md=text)), 1)
        self.assertEqual(self.check(docs__reports__speed_md=text), [])

    def test_comments_are_counted(self):
        line = "// Nobody waits for it.\n"
        found = self.check(engine__a_h=line * (check_prose.COMMENT_HITS + 1))
        self.assertIn("engine/a.h:1: 'Nobody' in a comment", found)
        self.assertEqual(self.check(engine__a_h=line * check_prose.COMMENT_HITS), [])

    def test_docstrings_and_comments_of_python_are_comments(self):
        limit = check_prose.COMMENT_HITS
        text = 'x = "nobody"  # nobody\n' + '"""Whoever. A `nobody` user."""\n' * limit
        found = self.check(tests__a_py=text)
        self.assertIn("tests/a.py:1: 'nobody' in a comment", found)
        self.assertIn("tests/a.py:2: 'Whoever' in a comment", found)
        self.assertEqual(len(found), limit + 2)

    def test_comments_of_scripts_and_protos_are_counted(self):
        limit = check_prose.COMMENT_HITS
        found = self.check(
            scripts__run="#!/bin/sh\n" + "# Nobody runs it.\n" * limit,
            proto__a_proto="// Told to answer.\n",
        )
        self.assertIn("scripts/run:2: 'Nobody' in a comment", found)
        self.assertIn("proto/a.proto:1: 'Told' in a comment", found)


if __name__ == "__main__":
    unittest.main()
