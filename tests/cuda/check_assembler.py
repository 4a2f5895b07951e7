"""What the assembler makes of the kernels that every step runs: no spills, no local memory, wide loads.

Usage: check_assembler.py PTX REPORT      the compiler's text of kernels.cu, and what ptxas -v says of it
"""

import re
import sys
from pathlib import Path

REGISTERS = 128  # of a thread: then four blocks of 128 threads fit a multiprocessor
# Range reduction of sine and cosine keeps a few words in local memory, for angles that no context has.
STACK = {"rope_and_store_kernel": 48}
WIDE = {"attention_kernel": ("ld",), "move_kernel": ("ld", "st")}  # in words of 16 bytes
KERNELS = {
    "attention_kernel",
    "merge_kernel",
    "norm_kernel",
    "rope_and_store_kernel",
    "gate_kernel",
    "copy_rows_kernel",
    "move_kernel",
    "answer_rows_kernel",
}


def kernel_of(symbol):
    return next((name for name in KERNELS if name in symbol), symbol)


def reported(report):
    """By kernel: bytes of stack, spill stores and spill loads, registers."""
    found = {}
    for part in report.split("Compiling entry function '")[1:]:
        stack, stores, loads = map(
            int,
            re.search(
                r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill", part
            ).groups(),
        )
        registers = int(re.search(r"Used (\d+) registers", part)[1])
        found[kernel_of(part.split("'")[0])] = (stack, stores, loads, registers)
    return found


def bodies(ptx):
    """By kernel: its instructions."""
    return {kernel_of(part.split("(")[0]): part for part in ptx.split(".entry ")[1:]}


def check(ptx, report):
    wrong = []
    found = reported(report)
    if set(found) != KERNELS:
        wrong.append(f"kernels in the report: {sorted(found)}; expected: {sorted(KERNELS)}")
    for name, (stack, stores, loads, registers) in sorted(found.items()):
        print(
            f"{name:24} {registers:4} registers, {stack} bytes of stack, {stores + loads} spilled"
        )
        if stores + loads > 0:
            wrong.append(f"{name}: spills {stores} + {loads} bytes")
        if stack > STACK.get(name, 0):
            wrong.append(f"{name}: {stack} bytes of local memory; allowed: {STACK.get(name, 0)}")
        if registers > REGISTERS:
            wrong.append(f"{name}: {registers} registers; allowed: {REGISTERS}")
    texts = bodies(ptx)
    for name, ways in WIDE.items():
        for what in ways:
            if not re.search(rf"\b{what}\.global[.\w]*\.v4\.[bu]32", texts.get(name, "")):
                wrong.append(f"{name}: no {what}.global of 16 bytes")
    return wrong


def self_test():
    """The check finds what it is for."""
    line = "ptxas info : Compiling entry function '_Z11{}I' for 'sm_90a'\n {} bytes stack frame, {} bytes spill stores, 0 bytes spill loads\nptxas info : Used {} registers\n"
    good = "".join(line.format(k, 0, 0, 32) for k in sorted(KERNELS))
    ptx = "".join(f".entry _Z11{k}I()\n ld.global.v4.u32; st.global.v4.u32" for k in sorted(WIDE))
    assert not check(ptx, good)
    assert check(ptx.replace("ld.global.v4", "ld.global.v2"), good)
    assert check(ptx, good + line.format("gate_kernel", 0, 8, 32))
    assert check(ptx, good + line.format("gate_kernel", 16, 0, 32))
    assert check(ptx, good + line.format("gate_kernel", 0, 0, 168))
    assert check(ptx, good.replace("gate_kernel", "other"))


def main():
    self_test()
    print()
    wrong = check(*(Path(path).read_text(encoding="utf-8") for path in sys.argv[1:3]))
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
