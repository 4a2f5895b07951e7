"""scripts/configuration_reference reads the protos completely and finds stale pages."""

import importlib.machinery
import importlib.util
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/configuration_reference"
LOADER = importlib.machinery.SourceFileLoader("configuration_reference", str(SCRIPT))
SPEC = importlib.util.spec_from_loader(LOADER.name, LOADER)
reference = importlib.util.module_from_spec(SPEC)
sys.modules[LOADER.name] = reference
SPEC.loader.exec_module(reference)

PROTO = """\
// A file.
message Config {
  // Colours.
  enum Colour {
    COLOUR_UNSPECIFIED = 0;
    COLOUR_RED = 1;  // Like blood.
  }
  // Size, in mm. Range: [0.5, 2]. Default: 1.5 on a CPU (2 on CUDA).
  optional double size = 1;
  repeated Part parts = 2;  // Its parts.

  // A remark about the next fields.

  // Required.
  oneof source {
    string path = 3;  // A | file.
    Colour colour = 4;
  }
  map<string, Part> by_name = 5;  // By name: first,
                                  // then last.
}

// A part. It is small.
//
//   parts { }
message Part {}

// Speeds.
enum Speed {
  SPEED_UNSPECIFIED = 0;
}
"""


class ConfigurationReferenceTest(unittest.TestCase):
    def test_a_comment_becomes_columns(self):
        for comment, meaning, allowed, default in [
            ("Rows. Range: [1, 4], at most. Default: 2.", "Rows.", "[1, 4], at most", "2"),
            ("Rows.\nRange: (0, 0.5].\nDefault: none. More.", "Rows. More.", "(0, 0.5]", "none"),
            ("Name. Required.", "Name.", "", "required"),
            ("Only this", "Only this", "", ""),
        ]:
            self.assertEqual(reference.columns(comment), (meaning, allowed, default))

    def test_messages_fields_and_enums_are_read(self):
        found = reference.parse(PROTO)
        self.assertEqual(list(found), ["Config", "Config.Colour", "Part", "Speed"])
        page = reference.page(PROTO, "")
        for line in [
            "| `size` | double | [0.5, 2] | 1.5 on a CPU (2 on CUDA) | Size, in mm. |",
            "| `parts` | list of [Part](#part) |  |  | Its parts. |",
            "| `path` | string |  | one of `path`, `colour` is required | A \\| file. |",
            "| `colour` | [Colour](#configcolour) |  | one of `path`, `colour` is required |  |",
            "| `by_name` | map of string to [Part](#part) |  |  | By name: first, then last. |",
            "| `COLOUR_RED` | Like blood. |",
            "| [Part](#part) | `parts` | A part. |",
            "### Config.Colour",
            "## Speed",
        ]:
            self.assertIn(line + "\n", page)
        self.assertNotIn("remark", page)
        self.assertNotIn("parts {", page.partition("## Messages")[2])

    def test_every_field_of_the_protos_is_on_the_page(self):
        page = (ROOT / reference.PAGE).read_text("utf-8")
        text = (ROOT / reference.DEPLOYMENT).read_text("utf-8")
        names = re.findall(r"^\s+[^/]*?(\w+) = \d+;", text, re.M)
        self.assertGreater(len(names), 150)
        for name in names:
            self.assertIn(f"| `{name}` |", page)
        for link in re.findall(r"\]\(#([\w-]+)\)", page):
            headings = re.findall(r"^#+ (.+)$", page, re.M)
            anchors = [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings]
            self.assertIn(link, anchors)

    def test_a_stale_page_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name in [reference.DEPLOYMENT, reference.GENERATION]:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text((ROOT / name).read_text("utf-8"), "utf-8")
            (root / "docs").mkdir()

            def run(*flags):
                command = [sys.executable, str(SCRIPT), *flags, folder]
                return subprocess.run(command, capture_output=True, text=True, check=False)

            self.assertEqual(run("--check").returncode, 1)
            self.assertEqual(run().returncode, 0)
            self.assertEqual(run("--check").returncode, 0)
            (root / reference.PAGE).write_text("# Configuration\n", "utf-8")
            stale = run("--check")
            self.assertEqual(stale.returncode, 1)
            self.assertIn("update it with: scripts/configuration_reference", stale.stdout)


if __name__ == "__main__":
    unittest.main()
