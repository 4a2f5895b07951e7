"""Runs a GoogleTest program's suites one by one, each in a process of its own: a crash or a hang in
one hides no other. A figure for each that did not pass, and two counts."""

import json
import subprocess
import sys
import time


def listed(program: str) -> list[str]:
    text = subprocess.run(
        [program, "--gtest_list_tests"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    return [
        line.split("#")[0].strip()
        for line in text.splitlines()
        if line and line[0] not in " \t" and line.split("#")[0].strip().endswith(".")
    ]


def main(arguments: list[str]) -> int:
    program, limit, *patterns = arguments
    passed, wrong = 0, []
    for suite in listed(program):
        if patterns and not any(p in suite for p in patterns):
            continue
        start = time.monotonic()
        try:
            done = subprocess.run(
                [program, f"--gtest_filter={suite}*", "--gtest_brief=1"],
                capture_output=True,
                timeout=float(limit),
            )
            status = done.returncode
            said = (done.stdout + done.stderr).decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            status, said = "out of time", ""
        print(f"{suite} {status} {time.monotonic() - start:.1f} s", flush=True)
        if status == 0:
            passed += 1
            continue
        wrong.append(suite)
        print(said[-4000:], flush=True)
        print(json.dumps({"name": f"suite.{suite}", "value": str(status)}), flush=True)
    print(json.dumps({"name": "suites.passed", "value": passed}))
    print(json.dumps({"name": "suites.failed", "value": len(wrong)}))
    print("failed: " + ", ".join(wrong) if wrong else "all passed")
    return 1 if wrong or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
