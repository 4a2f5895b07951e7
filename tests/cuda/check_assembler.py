"""What the assembler makes of the kernels that every step runs: no spills, no local memory, wide loads.

Usage: check_assembler.py PTX REPORT      the compiler's text of kernels.cu, and what ptxas -v says of it
"""

import re
import sys
from pathlib import Path

REGISTERS = 128  # of a thread: then four blocks of 128 threads fit a multiprocessor
REGISTERS_OF = {"answer_rows_kernel": 64}  # blocks of 1,024 threads
# Range reduction of sine and cosine keeps a few words in local memory, for angles that no context has.
STACK = {"rope_and_store_kernel": 48}
# Accesses of 16 bytes in a kernel's text, at least: loops with several loads in flight are unrolled.
WIDE = {
    "answer_rows_kernel": {"ld.global": 12},
    "attention_kernel": {"ld.global": 14, "ld.shared": 32},
    "merge_kernel": {"ld.global": 4},
    "move_kernel": {"ld.global": 1, "st.global": 1},
    "product_kernel": {"ld.global": 8},
    "block_product_kernel": {"ld.global": 1},
    "unpack_blocks_kernel": {"ld.global": 1},
    "lora_ranks_kernel": {"ld.global": 1},
}
TENSOR_CORES = {"product_kernel": "m16n8k16", "block_product_kernel": "m16n8k32"}
KERNELS = {
    "attention_kernel",
    "merge_kernel",
    "norm_kernel",
    "rope_and_store_kernel",
    "gate_kernel",
    "copy_rows_kernel",
    "move_kernel",
    "product_kernel",
    "block_product_kernel",
    "quantize_rows_kernel",
    "lora_ranks_kernel",
    "lora_columns_kernel",
    "add_rows_kernel",
    "unpack_blocks_kernel",
    "choose_kernel",
    "answer_rows_kernel",
}


def kernel_of(symbol):
    return max((name for name in KERNELS if name in symbol), key=len, default=symbol)


def reported(report):
    """Of each kernel, by instance: name, bytes of stack, spill stores and spill loads, registers."""
    found = []
    for part in report.split("Compiling entry function '")[1:]:
        stack, stores, loads = map(
            int,
            re.search(
                r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill", part
            ).groups(),
        )
        registers = int(re.search(r"Used (\d+) registers", part)[1])
        found.append((kernel_of(part.split("'")[0]), stack, stores, loads, registers))
    return found


def bodies(ptx):
    """Of each kernel, by instance: its name and instructions."""
    return [(kernel_of(part.split("(")[0]), part) for part in ptx.split(".entry ")[1:]]


def check(ptx, report):
    wrong = []
    found = reported(report)
    names = {name for name, *_ in found}
    if names != KERNELS:
        wrong.append(f"kernels in the report: {sorted(names)}; expected: {sorted(KERNELS)}")
    for name, stack, stores, loads, registers in sorted(found):
        print(
            f"{name:24} {registers:4} registers, {stack} bytes of stack, {stores + loads} spilled"
        )
        if stores + loads > 0:
            wrong.append(f"{name}: spills {stores} + {loads} bytes")
        if stack > STACK.get(name, 0):
            wrong.append(f"{name}: {stack} bytes of local memory; allowed: {STACK.get(name, 0)}")
        most = REGISTERS_OF.get(name, REGISTERS)
        if registers > most:
            wrong.append(f"{name}: {registers} registers; allowed: {most}")
    texts = bodies(ptx)
    for name in sorted({*WIDE, *TENSOR_CORES} - {name for name, _ in texts}):
        wrong.append(f"{name}: no text")
    for name, text in texts:
        if "griddepcontrol.wait" not in text:
            wrong.append(f"{name}: does not wait for the launch before")
        for what, least in WIDE.get(name, {}).items():
            n = len(re.findall(rf"\b{re.escape(what)}[.:\w]*\.v4\.[bfu]32", text))
            if n < least:
                wrong.append(f"{name}: {n} {what} of 16 bytes; expected: {least} or more")
        if f"mma.sync.aligned.{TENSOR_CORES.get(name, '')}" not in text and name in TENSOR_CORES:
            wrong.append(f"{name}: nothing for tensor cores")
    return wrong


def self_test():
    """The check finds what it is for."""
    line = "ptxas info : Compiling entry function '_Z11{}I' for 'sm_90a'\n {} bytes stack frame, {} bytes spill stores, 0 bytes spill loads\nptxas info : Used {} registers\n"
    good = "".join(line.format(k, 0, 0, 32) for k in sorted(KERNELS))
    text = (
        " griddepcontrol.wait; st.global.v4.u32;"
        + 13 * " ld.global.nc.L1::no_allocate.v4.u32;"
        + " ld.global.v4.u32;"
        + 32 * " ld.shared.v4.f32;"
        + " mma.sync.aligned.m16n8k16; mma.sync.aligned.m16n8k32"
    )
    ptx = "".join(f".entry _Z11{k}I()\n{text}" for k in sorted(WIDE))
    assert not check(ptx, good)
    assert check(ptx.replace("no_allocate.v4", "no_allocate.v2"), good)
    assert check(ptx.replace(" ld.global.v4", " ld.global.v2"), good), "of all loads"
    assert check(ptx.replace("ld.shared.v4", "ld.shared.v2"), good)
    assert check(ptx.replace("m16n8k16", "m16n8k8"), good)
    assert check(ptx.replace("m16n8k32", "m16n8k16"), good)
    assert check(ptx.replace("griddepcontrol.wait", ""), good)
    assert check(ptx + f".entry _Z11{min(WIDE)}I()\n", good), "of every instance"
    assert check(ptx.replace("_Z11product_kernel", "_Z5other"), good)
    assert check(ptx, good + line.format("gate_kernel", 0, 8, 32))
    assert check(ptx, good + line.format("gate_kernel", 16, 0, 32))
    assert check(ptx, good + line.format("gate_kernel", 0, 0, 168))
    assert check(ptx, good + line.format("answer_rows_kernel", 0, 0, 65))
    assert check(ptx, good.replace("gate_kernel", "other"))


def main():
    self_test()
    print()
    wrong = check(*(Path(path).read_text(encoding="utf-8") for path in sys.argv[1:3]))
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
