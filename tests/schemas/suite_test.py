"""The official JSON Schema Test Suite: what the grammar of a schema accepts.

A schema is compiled, and each instance is followed byte by byte. Three outcomes are allowed: the verdict
of the suite, a refusal of the schema that names a keyword, and the deviations in suite_deviations.json.

python tests/schemas/suite_test.py prints the table, and writes the deviations.
"""

import collections
import json
import pathlib
import re
import sys

import grammar_lines
import pytest

SUITE = grammar_lines.HOME / "json-schema-suite"
DEVIATIONS = pathlib.Path(__file__).with_name("suite_deviations.json")
DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}


def groups():
    """(draft, file, group of cases with one schema)"""
    for draft, uri in DRAFTS.items():
        folder = SUITE / draft
        for path in sorted(folder.rglob("*.json")):
            for group in grammar_lines.read_json(path.read_text()):
                schema = group["schema"]
                if isinstance(schema, dict) and "$schema" not in schema:
                    group["schema"] = {"$schema": uri, **schema}
                yield draft, str(path.relative_to(folder).with_suffix("")), group


def kind_of_refusal(error):
    """The keyword at the end of the path that an error begins with; or the error without values."""
    message = error.removeprefix("json_schema: ")
    path, _, rest = message.partition(": ")
    if path.startswith("/") and rest:
        return path.rsplit("/", 1)[-1]
    return re.sub(
        r"[\"'/`][^\"'`]*[\"'/`]|[\d.e+-]*\d|\s+while processing.*", "_", message, flags=re.S
    )[:60]


def outcomes():
    """(draft, file, group, case) -> outcome"""
    all_groups = list(groups())
    lines = [
        {
            "text": grammar_lines.dumps(group["schema"]),
            "groups": [
                grammar_lines.spellings(case["data"], group["schema"]) for case in group["tests"]
            ],
        }
        for _, _, group in all_groups
    ]
    out = {}
    for (draft, file, group), answer in zip(all_groups, grammar_lines.run(lines), strict=True):
        for i, case in enumerate(group["tests"]):
            if "error" in answer:
                outcome = f"refused: {kind_of_refusal(answer['error'])}"
            elif answer.get("failed"):
                outcome = f"failed: {answer['failed']}"
            elif answer["accepted"][i] == case["valid"]:
                outcome = "right"
            else:
                outcome = "invalid, but accepted" if answer["accepted"][i] else "valid, but refused"
            out[draft, file, group["description"], case["description"]] = outcome
    return out


def deviations(found):
    """Refusals by kind; and other outcomes that are not right: outcome -> file -> case -> drafts"""
    refused = collections.Counter()
    drafts = collections.defaultdict(list)
    for (draft, file, group, case), outcome in found.items():
        if outcome.startswith("refused: "):
            refused[outcome.removeprefix("refused: ")] += 1
        elif outcome != "right":
            drafts[outcome, file, f"{group}: {case}"].append(draft.removeprefix("draft"))
    out = {"cases of refused schemas": dict(sorted(refused.items()))}
    for (outcome, file, name), where in sorted(drafts.items()):
        out.setdefault(outcome, {}).setdefault(file, {})[name] = " ".join(where)
    return out


@pytest.mark.skipif(not SUITE.exists(), reason="requires the suite (scripts/setup --full)")
def test_the_official_suite():
    found = outcomes()
    assert len(found) > 6000
    assert deviations(found) == json.loads(DEVIATIONS.read_text())


if __name__ == "__main__":
    results = outcomes()
    counts = collections.Counter(
        (draft, outcome.split(":")[0]) for (draft, *_), outcome in results.items()
    )
    names = ["right", "valid, but refused", "invalid, but accepted", "refused", "failed"]
    print("| draft | cases |", " | ".join(names), "|")
    for draft in DRAFTS:
        row = [counts[draft, name] for name in names]
        print("|", draft, "|", sum(row), "|", " | ".join(map(str, row)), "|")
    for outcome, number in collections.Counter(results.values()).most_common():
        print(f"{number:6} {outcome}", file=sys.stderr)
    DEVIATIONS.write_text(json.dumps(deviations(results), indent=1) + "\n")
