"""What the assembler makes of all kernels: no spills, no local memory, wide loads, loads in flight.

Usage: check_assembler.py PTX REPORT [SASS]

PTX is the compiler's text of kernels.cu, REPORT what ptxas -v says of it. SASS is nvdisasm's text of the machine code,
if there is one.
"""

import contextlib
import functools
import re
import sys
from pathlib import Path

REGISTERS = 128  # of a thread: then four blocks of 128 threads fit a multiprocessor
READERS = (
    "answer_rows_kernel",
    "scan_parts_kernel",
    "cut_rows_kernel",
    "weigh_parts_kernel",
    "merge_answers_kernel",
)  # blocks of 1,024 threads
REGISTERS_OF = dict.fromkeys(READERS, 64)
# Range reduction of sine and cosine keeps a few words in local memory, for angles that no context has.
STACK = {"rope_and_store_kernel": 48}
# Accesses of 16 bytes in a kernel's text, at least: loops with several loads in flight are unrolled.
WIDE = {
    "answer_rows_kernel": {"ld.global": 12},
    "scan_parts_kernel": {"ld.global": 8},
    "weigh_parts_kernel": {"ld.global": 4},
    "attention_kernel": {"ld.global": 14, "ld.shared": 32},
    "gather_kernel": {"ld.global": 1, "st.global": 1},
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
    "gather_kernel",
    "copy_rows_kernel",
    "move_kernel",
    "product_kernel",
    "block_product_kernel",
    "quantize_rows_kernel",
    "round_rows_kernel",
    "lora_ranks_kernel",
    "lora_columns_kernel",
    "add_rows_kernel",
    "unpack_blocks_kernel",
    "choose_kernel",
    *READERS,
    "embed_kernel",
    "scale_rows_kernel",
    "add_positions_kernel",
    "norm_heads_kernel",
    "activate_kernel",
    "pack_kernel",
}
# Loads through the read-only path are of memory that no kernel writes: weights, which are also loaded before the wait.
# A compiler's own such load would read old rows where launches overlap. Sine and cosine read a table of the program.
READ_ONLY = {
    "product_kernel": {"LDG.E.NA.128.CONSTANT"},
    "block_product_kernel": {"LDG.E.NA.128.CONSTANT"},
    "unpack_blocks_kernel": {"LDG.E.NA.128.CONSTANT"},
    "rope_and_store_kernel": {"LDG.E.CONSTANT", "LDG.E.64.CONSTANT"},
}
# Loads of 16 bytes that a thread has on their way before it needs the first, at least.
IN_FLIGHT = {
    "attention_kernel": 4,
    "product_kernel": 8,
    "block_product_kernel": 8,
    "unpack_blocks_kernel": 4,
    "answer_rows_kernel": 4,
    "scan_parts_kernel": 4,
    "cut_rows_kernel": 4,
    "weigh_parts_kernel": 4,
}
# A multiprocessor of compute capability 9.0.
REGISTERS_THERE, THREADS_THERE, SHARED_THERE, BLOCKS_THERE = 65536, 2048, 227 * 1024, 32
THREADS = {
    "attention_kernel": "kAttentionThreads",
    "merge_kernel": "kMergeThreads",
    **dict.fromkeys(READERS, "kReadThreads"),
    "choose_kernel": "kChooseThreads",
}  # of a thread block; others: kThreads
HEADERS = Path(__file__).resolve().parents[2] / "engine/backend/torch/cuda/kernels"
RESIDENT = {"product_kernel": 2, "block_product_kernel": 2}  # thread blocks, at least
SIZES = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}  # bytes of a load; others: 4
LATENCY = 0.8e-6  # seconds of a read, an estimate
BANDWIDTH = 4.4e12 / 132  # bytes a second and multiprocessor


@functools.cache
def headers():
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(HEADERS.glob("*.h")))


def kernels_of_headers():
    """Names of all kernels there are."""
    text = headers()
    return set(re.findall(r"__global__ void (?:__launch_bounds__\([^)]*\)\s*)?(\w+)\(", text))


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


def resources(report):
    """Registers and bytes of shared memory of each instance, by symbol."""
    found = {}
    for part in report.split("Compiling entry function '")[1:]:
        shared = re.search(r"(\d+) bytes smem", part)
        registers = int(re.search(r"Used (\d+) registers", part)[1])
        found[part.split("'")[0]] = registers, int(shared[1]) if shared else 0
    return found


def threads_of(name):
    constant = THREADS.get(name, "kThreads")
    return int(re.search(rf"constexpr int {constant} = (\d+);", headers())[1])


def resident(name, registers, shared):
    """Thread blocks that a multiprocessor runs at once."""
    threads = threads_of(name)
    by_registers = REGISTERS_THERE // (threads * -(-registers // 8) * 8)
    return min(
        BLOCKS_THERE, THREADS_THERE // threads, by_registers, SHARED_THERE // (shared + 1024)
    )


INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[\dT]+\s+)?([A-Z][\w.]*)([^;]*);", re.M
)


def machine_code(sass):
    """The instructions of each instance, by symbol, each with its operands."""
    parts = re.split(r"\n\s*\.section\s+\.text\.", sass)[1:]
    return {part.split(",")[0]: INSTRUCTION.findall(part) for part in parts}


def registers_of(operand, count):
    """R8 and its successors."""
    first = re.match(r"\s*R(\d+)\b", operand)
    return {int(first[1]) + i for i in range(count)} if first else set()


def in_flight(code):
    """Loads on their way at once: the most bytes, and the most loads of 16 bytes, before an instruction that reads
    one of their registers."""
    most_bytes, most_wide, waiting = 0, 0, []
    for name, operands in code:
        target, _, rest = operands.partition(",")
        read = {int(r) for r in re.findall(r"\bR(\d+)\b", rest)}
        if any(read & one for one, _ in waiting):
            waiting = []
        if name.startswith("LDG"):
            size = next((n for part, n in SIZES.items() if part in name.split(".")), 4)
            waiting.append((registers_of(target, -(-size // 4)), size))
            most_bytes = max(most_bytes, sum(n for _, n in waiting))
            most_wide = max(most_wide, sum(n == 16 for _, n in waiting))
    return most_bytes, most_wide


def in_flight_at_products(code):
    """Loads of 16 bytes on their way at an instruction of the tensor cores, at most: those of the next weights too."""
    most, waiting = 0, []
    for name, operands in code:
        target, _, rest = operands.partition(",")
        read = {int(r) for r in re.findall(r"\bR(\d+)\b", rest)}
        waiting = [one for one in waiting if not read & one]
        if name.startswith(("HMMA", "IMMA")):
            most = max(most, len(waiting))
        elif name.startswith("LDG") and "128" in name.split("."):
            waiting.append(registers_of(target, 4))
    return most


def check_machine_code(sass, report):
    wrong = []
    found = machine_code(sass)
    used = resources(report)
    if found.keys() != used.keys():
        wrong.append(
            f"the machine code and the report differ: {sorted(found.keys() ^ used.keys())}"
        )
    for symbol, code in sorted(found.items(), key=lambda one: (kernel_of(one[0]), one[0])):
        name = kernel_of(symbol)
        names = [n for n, _ in code]
        local = sum(n.startswith(("LDL", "STL")) for n in names)
        if local and name not in STACK:
            wrong.append(f"{name}: {local} accesses to local memory")
        for n in sorted({n for n in names if n.startswith("LDG") and "CONSTANT" in n}):
            if n not in READ_ONLY.get(name, ()):
                wrong.append(f"{name}: {n} of memory that a kernel may have written")
        tensor = "HMMA" if name == "product_kernel" else "IMMA"
        if name in TENSOR_CORES and not any(n.startswith(tensor) for n in names):
            wrong.append(f"{name}: no {tensor}")
        # Before it, a kernel may access constant memory only.
        wait = names.index("ACQBULK") if "ACQBULK" in names else len(names)
        if wait == len(names):
            wrong.append(f"{name}: does not wait for the launch before")
        early = [n for n in names[:wait] if re.match(r"(LDG|STG|ATOM|RED|LD\.|ST\.)", n)]
        early = [n for n in early if n not in READ_ONLY.get(name, ())]
        if early:
            wrong.append(f"{name}: {early[0]} before the wait")
        size, loads = in_flight(code)
        if loads < IN_FLIGHT.get(name, 0):
            wrong.append(f"{name}: {loads} loads in flight; needed: {IN_FLIGHT[name]}")
        blocks = resident(name, *used.get(symbol, (255, 0)))
        least = RESIDENT.get(name, 1)
        if blocks < least:
            wrong.append(f"{name}: {blocks} resident thread blocks; needed: {least}")
        counts = {
            n: sum(one.split(".")[0] == n for one in names) for n in ("LDS", "FFMA", "HMMA", "IMMA")
        }
        counted = ", ".join(f"{count} {n}" for n, count in counts.items() if count)
        if name in TENSOR_CORES:
            counted += (
                f", at which {in_flight_at_products(code)} loads of 16 bytes are on their way"
            )
        # Bytes in flight / latency, of the bandwidth: an upper bound of what a kernel reaches.
        reach = min(1.0, size * threads_of(name) * blocks / LATENCY / BANDWIDTH)
        print(
            f"{name:24} {len(code):5} instructions, {size:3} bytes in flight, {loads} loads of 16 bytes,"
            f" {used.get(symbol, (0, 0))[0]} registers, {local} local accesses, {blocks} blocks resident:"
            f" at most {100 * reach:.0f} % of the bandwidth{'; ' if counted else ''}{counted}"
        )
    return wrong


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


def self_test_of_machine_code():
    """As self_test(), of the machine code."""
    head = '\n\t.section\t.text._Z11{}I,"ax"\n'
    one = "        /*0{:03x}0*/                   {} ;\n"

    def text(name, lines):
        return head.format(name) + "".join(one.format(i, line) for i, line in enumerate(lines))

    loads = [f"LDG.E.NA.128.CONSTANT R{8 + 4 * i}, desc[UR4][R2.64]" for i in range(8)]
    product = ["PREEXIT", "ACQBULK", *loads, "HMMA.16816.F32.BF16 R4, R8, R2, R4"]
    other = ["PREEXIT", "ACQBULK", "LDG.E R4, desc[UR4][R2.64]", "EXIT"]
    reads = [*product[:2], *(load.replace(".NA.128.CONSTANT", ".128") for load in loads)]
    codes = {name: list(reads if name in IN_FLIGHT else other) for name in KERNELS}
    codes |= {"product_kernel": product, "unpack_blocks_kernel": product}
    codes["block_product_kernel"] = [*product[:-1], "IMMA.16832.U8.S8 R4, R8, R2, R4"]
    line = "ptxas info : Compiling entry function '_Z11{}I' for 'sm_90a'\n 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info : Used {} registers, {} bytes smem\n"

    def wrong(changed, registers=64, shared=1024):
        report = "".join(line.format(k, registers, shared) for k in sorted(KERNELS))
        whole = "".join(text(k, v) for k, v in sorted({**codes, **changed}.items()))
        return check_machine_code(whole, report)

    assert not wrong({}), wrong({})
    assert wrong({"norm_kernel": other[:1] + other[2:]}), "no wait"
    assert wrong({"norm_kernel": [other[0], other[2], other[1]]}), "an early load"
    assert not wrong({"product_kernel": [product[0], *product[2:10], product[1], product[10]]})
    assert wrong({"product_kernel": [other[2], *product]}), "an early load of rows"
    assert wrong({"norm_kernel": [*other, "LDG.E.CONSTANT R4, desc[UR4][R2.64]"]})
    assert wrong({"norm_kernel": [*other, "STL [R1], R4"]})
    assert wrong({"product_kernel": codes["block_product_kernel"]}), "no HMMA"
    assert in_flight_at_products(machine_code(text("a", product))["_Z11aI"]) == 7
    early = [*product[:6], "FADD R1, R8, R9", *product[6:]]
    assert wrong({"product_kernel": early}), "needs a load before the others are on their way"
    assert not wrong({"attention_kernel": reads[:6]})
    assert wrong({"attention_kernel": reads[:5]}), "three loads in flight"
    assert wrong({}, registers=168), "too few thread blocks"
    assert wrong({}, shared=120 << 10), "too few thread blocks"
    del codes["gate_kernel"]
    assert wrong({})


def main():
    with contextlib.redirect_stdout(None):
        self_test()
        self_test_of_machine_code()
    texts = [Path(path).read_text(encoding="utf-8") for path in sys.argv[1:]]
    wrong = check(*texts[:2])
    if kernels_of_headers() != KERNELS:
        wrong.append(f"not in KERNELS, or not there: {sorted(kernels_of_headers() ^ KERNELS)}")
    if len(texts) > 2:
        wrong += check_machine_code(texts[2], texts[1])
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
