"""Real schemas without a model: which compile, what they accept, and whether random answers are valid.

    TANDEM_SCHEMAS=FOLDER python tests/schemas/coverage.py [--most N] [--tokenizer PATH]

The folder is as in answers.py. Files of MaskBench (`maskbench/data` of guidance-ai/jsonschemabench) also
have instances. Members of instances are in the order of the schema there, as llguidance requires.
"""

import argparse
import collections
import json
import statistics
import sys
import time
from pathlib import Path

import answers
import grammar_lines
import jsonschema


def lines_of(cases, walks, warm=False):
    for _, schema, tests in cases:
        texts = [[grammar_lines.dumps(test["data"])] for test in tests]
        yield {
            "text": json.dumps(schema),
            "groups": texts,
            "walks": walks,
            "most": 400,
            "warm": warm,
        }


def cases_in(folder):
    """(name, schema, instances)"""
    for path in sorted(folder.rglob("*.json")):
        value = grammar_lines.read_json(path.read_text())
        if isinstance(value, dict):
            yield path.stem, value.get("schema", value), value.get("tests", [])


def judge(cases, results):
    """Counts by outcome, refusals by keyword, and what is wrong."""
    counts, refusals, wrong = collections.Counter(), collections.Counter(), []
    for (name, schema, tests), result in zip(cases, results, strict=True):
        if "error" in result:
            counts["schema refused"] += 1
            refusals[answers.keyword_of(result["error"])] += 1
            continue
        counts["schema compiled"] += 1
        if result.get("failed"):
            counts[f"a step failed: {result['failed'][:60]}"] += 1
        for test, accepted in zip(tests, result["accepted"], strict=True):
            if test["valid"]:
                counts["valid instance " + ("accepted" if accepted else "refused")] += 1
            else:
                counts["invalid instance " + ("accepted" if accepted else "refused")] += 1
                if accepted:
                    wrong.append(f"{name}: accepts {json.dumps(test['data'])[:160]}")
        for text in result.get("walks") or []:
            if text is None:
                counts["random answer not finished"] += 1
                continue
            try:
                answers.is_valid(text, schema)
                counts["random answer valid"] += 1
            except (ValueError, jsonschema.ValidationError) as error:
                counts["random answer invalid"] += 1
                wrong.append(f"{name}: writes {text[:160]!r}: {str(error).splitlines()[0][:120]}")
            except (
                Exception
            ) as error:  # the validator cannot judge, as for an unresolvable reference
                counts["random answer without verdict"] += 1
                refusals[f"validator: {type(error).__name__}"] += 1
    return counts, refusals, wrong


def quantiles(values):
    values = sorted(values)
    if not values:
        return "none"
    named = {"median": 0.5, "p99": 0.99, "p99.9": 0.999}
    parts = [f"{name} {values[int(q * (len(values) - 1))]}" for name, q in named.items()]
    return ", ".join([*parts, f"max {values[-1]}", f"mean {statistics.fmean(values):.0f}"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=1 << 20, help="schemas, chosen at random")
    parser.add_argument("--tokenizer", default="", help="a model directory or GGUF file")
    parser.add_argument("--walks", type=int, default=2, help="random answers of each schema")
    parser.add_argument("--warm", action="store_true", help="also masks of texts seen before")
    parser.add_argument("--slowest", type=int, default=0, help="schemas to list by their masks")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    folder = Path(answers.os.environ["TANDEM_SCHEMAS"])
    cases = list(cases_in(folder))
    answers.random.Random(1).shuffle(cases)
    cases = cases[: arguments.most]
    began = time.monotonic()
    lines = lines_of(cases, arguments.walks, arguments.warm)
    results = grammar_lines.run(lines, arguments.tokenizer, arguments.jobs)
    print(f"{len(cases)} schemas in {time.monotonic() - began:.0f} s")
    counts, refusals, wrong = judge(cases, results)
    for found in (counts, refusals):
        for outcome, number in found.most_common(40):
            print(f"{number:7} {outcome}")
    print("compilation, us:", quantiles([result["compile_us"] for result in results]))
    print("mask, us:", quantiles([us for result in results for us in result.get("mask_us", [])]))
    if arguments.warm:
        again = [us for result in results for us in result.get("warm_us", [])]
        print("mask of a text seen before, us:", quantiles(again))
    compiled = [(case[0], result) for case, result in zip(cases, results, strict=True)]
    compiled = [(max(r["mask_us"]), name, r) for name, r in compiled if r.get("mask_us")]
    for longest, name, result in sorted(compiled, key=lambda one: -one[0])[: arguments.slowest]:
        slow = sum(us > 1000 for us in result["mask_us"])
        print(
            f"{longest:7} us: {name}, {slow} of {len(result['mask_us'])} masks above 1 ms,", end=" "
        )
        print(f"slowest behind {result['slowest'][-60:]!r}")
    for line in wrong:
        print("WRONG", line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
