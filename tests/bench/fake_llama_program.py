"""Programs that take the flags of llama.cpp's and ik_llama.cpp's, and refuse others, as these do.

fake_llama_program.py llama.cpp|older llama.cpp|ik_llama.cpp server|batched-bench [FLAG ...]
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# Lines of --help: of llama.cpp's build 11434, of a build half a year older, and of ik_llama.cpp 8337e4c.
COMMON = """\
-h,    --help, --usage                  print usage and exit
-t,    --threads N                      number of CPU threads to use during generation (default: -1)
-c,    --ctx-size N                     size of the prompt context
-b,    --batch-size N                   logical maximum batch size (default: 2048)
-ub,   --ubatch-size N                  physical maximum batch size (default: 512)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use ('on', 'off', or 'auto', default: 'auto')
-m,    --model FNAME                    model path to load
"""
SERVER = """\
--host HOST                             ip address to listen
--port PORT                             port to listen
-np,   --parallel N                     number of server slots
-md,   --model-draft FNAME              draft model for speculative decoding (default: unused)
-td,   --threads-draft N                number of threads to use during generation
--spec-type TYPE                        type of speculative decoding to use
"""
BENCH = """\
-npp n0,n1,...                          number of prompt tokens
-ntg n0,n1,...                          number of text generation tokens
-npl n0,n1,...                          number of parallel prompts
--output-format FORMAT                  output format
"""
MAINLINE = """\
--poll <0...100>                        use polling level to wait for work (0 - no polling, default: 50)
--poll-draft <0|1>                      Use polling to wait for draft model work
--repack, -nr, --no-repack              whether to enable weight repacking (default: enabled)
--spec-draft-n-max N                    number of tokens to draft for speculative decoding (default: 3)
--spec-draft-p-min, --draft-p-min P     minimum speculative decoding probability (greedy) (default: 0.00)
"""
SIZES = """\
--spec-ngram-simple-size-n N            ngram size N for ngram-simple speculative decoding (default: 12)
--spec-ngram-simple-size-m N            ngram size M for ngram-simple speculative decoding (default: 48)
--spec-ngram-size-n N                   the argument has been removed. use the respective --spec-ngram-*-size-n
--spec-ngram-size-m N                   the argument has been removed. use the respective --spec-ngram-*-size-m
"""
OLDER_SIZES = """\
--spec-ngram-size-n N                   ngram size N for ngram-simple speculative decoding (default: 12)
--spec-ngram-size-m N                   ngram size M for ngram-simple speculative decoding (default: 48)
"""
IK = """\
-rtr,   --run-time-repack               repack tensors if interleaved variant is available
-ctk,   --cache-type-k TYPE             KV cache data type for K (default: f16)
-ctv,   --cache-type-v TYPE             KV cache data type for V (default: f16)
--spec-type SPEC[:k=v,...]              canonical speculative stage entry
                                        canonical keys: n_max,n_min,p_min,ngram_size_n,ngram_size_m
                                        legacy --spec-stage, --draft-*, --spec-ngram-* flags are rejected
"""
OWN = {"llama.cpp": MAINLINE + SIZES, "older llama.cpp": MAINLINE + OLDER_SIZES, "ik_llama.cpp": IK}
SWITCHES = ("--no-repack", "--run-time-repack")
STAGE_KEYS = ("n_max", "p_min", "ngram_size_n", "ngram_size_m")


def help_text(flavor: str, kind: str) -> str:
    return COMMON + OWN[flavor] + (SERVER if kind == "server" else BENCH)


def parsed(flavor: str, kind: str, arguments: list[str]) -> dict[str, str]:
    """Values by flag. Exits with status 1 if the program does not take a flag."""
    flags = {}
    for line in help_text(flavor, kind).splitlines():
        words = line[:40].split() if not line.startswith(" ") else []
        for word in words:
            if word.startswith("-"):
                flags[word.strip(",")] = "has been removed" not in line
    found, left = {}, list(arguments)
    while left:
        flag = left.pop(0)
        if not flags.get(flag, False):
            sys.exit(f"error: unknown argument: {flag}")
        found[flag] = "" if flag in SWITCHES else left.pop(0)
    check_spec_type(flavor, found.get("--spec-type", ""))
    return found


def check_spec_type(flavor: str, spec: str) -> None:
    kind, _, keys = spec.partition(":")
    if flavor == "ik_llama.cpp":
        names = [pair.split("=")[0] for pair in keys.split(",") if pair]
        right = kind in ("", "draft", "ngram-simple") and all(n in STAGE_KEYS for n in names)
    else:
        right = not keys and kind in ("", "draft-simple", "ngram-simple")
    if not right:
        sys.exit(f"error: unknown speculative type: {spec}")


def batched_bench(flavor: str, flags: dict[str, str]) -> None:
    """Faster without polling when it decodes, slower when it reads; ik_llama.cpp is faster repacked."""
    fast = 2 if flags.get("--poll") == "0" or "--run-time-repack" in flags else 1
    prompt, new = int(flags["-npp"]), int(flags["-ntg"])
    print("a line of something else")
    for streams in map(int, flags["-npl"].split(",")):
        if streams * (prompt + new) > int(flags["-c"]):
            print("n_ctx_req is greater than n_kv_max")
            continue
        decoding, reading = 10.0 * fast * streams, 600.0 / fast
        if flavor == "ik_llama.cpp":
            print("|    PP |     TG |    B |   N_KV | T_PP s | S_PP t/s |", file=sys.stderr)
            cells = (prompt, new, streams, streams * (prompt + new), 0.5, reading)
            cells += (0.5, 3 * decoding, 1.0, 1.0)
            print("|" + "|".join(f" {cell:8} " for cell in cells) + "|", file=sys.stderr)
        else:
            row = {"pp": prompt, "tg": new, "pl": streams}
            print(json.dumps({**row, "speed_tg": decoding, "speed_pp": reading}))


class Handler(BaseHTTPRequestHandler):
    """Answers with the program's own flags."""

    def do_GET(self):
        self.say({"status": "ok"} if self.path == "/health" else {})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"content": " ".join(sys.argv[3:]), "tokens_predicted": asked["n_predict"]}
        if sys.argv[1] != "ik_llama.cpp":
            answer["tokens"] = list(range(asked["n_predict"]))
        self.say(answer)

    def say(self, answer: dict):
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def write_program(path: Path, flavor: str, kind: str) -> Path:
    """An executable of this kind."""
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "{flavor}" {kind} "$@"\n')
    path.chmod(0o755)
    return path


def main() -> None:
    flavor, kind, *arguments = sys.argv[1:]
    if "--help" in arguments:
        print(help_text(flavor, kind))
        sys.exit(1 if flavor == "ik_llama.cpp" else 0)
    flags = parsed(flavor, kind, arguments)
    if kind == "batched-bench":
        batched_bench(flavor, flags)
    else:
        ThreadingHTTPServer(("127.0.0.1", int(flags["--port"])), Handler).serve_forever()


if __name__ == "__main__":
    main()
