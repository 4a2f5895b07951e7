"""scripts/http_fields reads every row of the table, and finds a stale page."""

import importlib.machinery
import importlib.util
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/http_fields"
LOADER = importlib.machinery.SourceFileLoader("http_fields", str(SCRIPT))
SPEC = importlib.util.spec_from_loader(LOADER.name, LOADER)
fields = importlib.util.module_from_spec(SPEC)
sys.modules[LOADER.name] = fields
SPEC.loader.exec_module(fields)

SOURCE = """
constexpr FieldRow kRows[] = {
    // A group.
    {"size", kBoth, kSet, "max_size", kOpenAi,
     "In mm, "
     "with a \\"sign\\"."},
    {"mode", kText, kOnly, "0|-1", kLlama, ""},
    {"mode", kChat | kMessages, kRefuse, "", kVllm, ""},
    {"user", kChat, kIgnore, "", kOpenAi, "No effect."},
};
"""


class HttpFields(unittest.TestCase):
    def test_rows_become_lines_of_their_apis(self):
        page = fields.page(SOURCE)
        completions, chat = page.split("## POST ")[1:3]
        self.assertIn('| `size` | OpenAI | `max_size`. In mm, with a "sign". |', completions)
        self.assertIn(
            "| `mode` | llama.cpp | `0`, `-1` or unset; other values are refused. |", completions
        )
        self.assertNotIn("`user`", completions)
        self.assertIn("| `mode` | vLLM | Refused. |", chat)
        self.assertIn("| `user` | OpenAI | Ignored. No effect. |", chat)
        self.assertIn("## POST /v1/messages", page)

    def test_wrong_rows_are_errors(self):
        for old, new in (("kIgnore", "kSkip"), ("kLlama", "kOther"), ("kChat |", "kNone |")):
            with self.assertRaises(SystemExit):
                fields.page(SOURCE.replace(old, new))
        with self.assertRaisesRegex(SystemExit, "two rows of /v1/completions: mode"):
            fields.page(SOURCE.replace('"size"', '"mode"'))

    def test_a_stale_page_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / fields.TABLE).parent.mkdir(parents=True)
            (root / fields.TABLE).write_text((ROOT / fields.TABLE).read_text("utf-8"), "utf-8")
            (root / "docs").mkdir()

            def run(*flags):
                command = [sys.executable, str(SCRIPT), *flags, folder]
                return subprocess.run(command, capture_output=True, text=True, check=False)

            self.assertEqual(run("--check").returncode, 1)
            self.assertEqual(run().returncode, 0)
            self.assertEqual(run("--check").returncode, 0)
            (root / fields.PAGE).write_text("# Fields\n", "utf-8")
            stale = run("--check")
            self.assertEqual(stale.returncode, 1)
            self.assertIn("update it with: scripts/http_fields", stale.stdout)

    def test_the_page_is_current(self):
        current = (ROOT / fields.PAGE).read_text("utf-8")
        self.assertEqual(current, fields.page((ROOT / fields.TABLE).read_text("utf-8")))


if __name__ == "__main__":
    unittest.main()
