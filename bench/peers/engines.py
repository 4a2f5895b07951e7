"""Engines that run the same weights on the same cores, each with its fastest interface.

An engine is made from a Hugging Face directory and a precision, configured with settings from its
OPTIONS, and then decodes a fixed number of tokens greedily for several prompts of equal length. Each
runs in a separate process (worker.py), as thread pools of one process would compete.

Settings in capitals are environment variables and need a new process. The first value of an option
is the default of the engine, or the recommendation of its documentation.
"""

import contextlib
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from measure.paths import HOME, ROOT

PEERS = HOME / "peers"  # scripts/setup --peers
# the server and its client: scripts/build release tandem-server bench_client
OURS = [ROOT / "build/release/bin" / name for name in ("tandem-server", "bench_client")]
BINDINGS = HOME / "bindings"  # scripts/setup --bindings
CONVERTED = HOME / "benchmark" / "converted"


@dataclass
class Engine:
    """Base class: the methods that a worker calls."""

    OPTIONS = {}  # name: values to try, the default first
    PRECISIONS = ()

    client = None  # the client process, if it is not the engine's

    precision: str
    details: dict[str, str] = field(default_factory=dict)  # version, instructions and kernels

    def configure(self, **settings):
        """Sets these settings for the next calls; others are unchanged."""

    def generate(self, prompts: list[list[int]], new_tokens: int):
        """New tokens of each prompt, and seconds from the call to the last token."""
        raise NotImplementedError

    def pass_seconds(self, context: int, rows: int, repeats: int) -> float | None:
        """Seconds of a pass of several rows after a context, with logits of all; None if unsupported."""
        return None

    def close(self):
        pass


def cores() -> int:
    return len(os.sched_getaffinity(0))


THREADS = sorted({cores(), (cores() + 1) // 2}, reverse=True)


def import_from(folder: Path) -> None:
    """Makes packages of scripts/setup in `folder` importable."""
    if not folder.exists():
        raise SystemExit(f"{folder} is missing: run scripts/setup --{folder.name}")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def converted(source: Path, name: str, make) -> Path:
    """CONVERTED/<model>-<name>, created by make(source, path) if missing."""
    path = CONVERTED / f"{source.name}-{name}"
    if not path.exists():
        CONVERTED.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(path.name + ".new")
        if beside.is_dir():
            shutil.rmtree(beside)
        make(source, beside)
        beside.rename(path)
    return path


class Tandem(Engine):
    """Tandem's server in a separate process, over gRPC, one stream per prompt.

    The client is in C++, as one in Python would use a fifth of a small machine.
    """

    PRECISIONS = ("fp32", "bf16", "fp16", "int8")

    def __init__(self, source: Path, precision: str):
        super().__init__(precision)
        from measure import machine, serving

        name = source.name
        self.stack = contextlib.ExitStack()
        running = serving.server(models={name: source}, dtype=precision, end_with_parent=True)
        address = self.stack.enter_context(running).address
        self.asked = subprocess.Popen(
            machine.ending_with_parent([OURS[1], "--server", address, "--model", name]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.client = self.asked.pid

    def generate(self, prompts, new_tokens):
        ids = (",".join(map(str, prompt)) for prompt in prompts)
        with contextlib.suppress(BrokenPipeError):  # the process has ended
            print(new_tokens, *ids, sep=";", file=self.asked.stdin, flush=True)
        answer = self.asked.stdout.readline().rstrip()
        if not answer:
            raise RuntimeError(f"bench_client ended with {self.asked.wait()}")
        if answer.startswith("error:"):
            raise RuntimeError(f"bench_client: {answer}")
        seconds, *streams = answer.split(";")
        return [[int(token) for token in stream.split(",")] for stream in streams], float(seconds)

    def close(self):
        self.asked.stdin.close()
        self.asked.wait()
        self.stack.close()


class Transformers(Engine):
    """Transformers on PyTorch. int8: dynamically quantized linear layers (FBGEMM or oneDNN)."""

    OPTIONS = {
        "threads": THREADS,
        "attention": ["sdpa", "eager"],
        "cache": ["dynamic", "static"],
    }
    PRECISIONS = ("fp32", "bf16", "int8")
    LOADER = "AutoModelForCausalLM"

    def __init__(self, source: Path, precision: str):
        super().__init__(precision)
        import torch
        import transformers

        self.torch, self.transformers = torch, transformers
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        load = getattr(transformers, self.LOADER).from_pretrained
        self.model = load(source, dtype=dtype, attn_implementation="sdpa").eval()
        self.first = self.model.generation_config.decoder_start_token_id  # None: of a decoder
        if precision == "int8":
            each_row = {torch.nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
            self.model = torch.ao.quantization.quantize_dynamic(self.model, each_row)
        self.details = {
            "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
            "instructions": torch.backends.cpu.get_cpu_capability(),
        }

    def configure(self, threads=None, attention=None, cache=None):
        if threads:
            self.torch.set_num_threads(threads)
        if attention:
            self.model.set_attn_implementation(attention)
        if cache:
            self.cache = None if cache == "dynamic" else cache

    def generate(self, prompts, new_tokens):
        config = self.transformers.GenerationConfig(
            do_sample=False,
            max_new_tokens=new_tokens,
            eos_token_id=None,  # avoids the search for the end token
            pad_token_id=0,
            decoder_start_token_id=self.first,
            cache_implementation=self.cache,
        )
        self.model.generation_config = config
        ids = self.torch.tensor(prompts)
        start = time.perf_counter()
        with self.torch.inference_mode():
            out = self.model.generate(
                ids, attention_mask=self.torch.ones_like(ids), generation_config=config
            )
        return self.new_tokens_of(out, ids.shape[1]).tolist(), time.perf_counter() - start

    def new_tokens_of(self, out, width: int):
        """New tokens of generate()'s result for prompts of `width` tokens."""
        return out[:, width:]

    def pass_seconds(self, context, rows, repeats):
        zeros = self.torch.zeros
        long = self.torch.long
        times = []
        with self.torch.inference_mode():
            cache = self.model(zeros(1, context, dtype=long)).past_key_values
            for _ in range(repeats):
                start = time.perf_counter()
                self.model(zeros(1, rows, dtype=long), past_key_values=cache)
                times.append(time.perf_counter() - start)
                cache.crop(-rows)
        return statistics.median(times)


class CTranslate2(Engine):
    OPTIONS = {
        "threads": THREADS,
        "CT2_USE_MKL": ["", "1", "0"],  # its default depends on the maker of the processor
        "CT2_FORCE_CPU_ISA": ["", "AVX512", "AVX2"],
        "CT2_USE_EXPERIMENTAL_PACKED_GEMM": ["", "1"],
    }
    PRECISIONS = ("fp32", "bf16", "fp16", "int8")
    TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}
    LOADER = "Generator"

    def __init__(self, source: Path, precision: str):
        super().__init__(precision)
        import_from(PEERS)
        os.environ["CT2_VERBOSE"] = "1"
        for name in [n for n in os.environ if n.startswith("CT2_") and not os.environ[n]]:
            del os.environ[name]
        import ctranslate2

        self.api = ctranslate2
        kind = self.TYPES[precision]
        offered = ctranslate2.get_supported_compute_types("cpu")
        if kind not in offered:
            raise ValueError(f"{kind}: computes here with {', '.join(sorted(offered))} only")

        def convert(model, to):
            from ctranslate2.converters import TransformersConverter

            TransformersConverter(str(model)).convert(str(to), quantization=kind)

        self.folder = converted(source, f"ct2-{kind}", convert)
        tokenizer = json.loads((source / "tokenizer.json").read_text())
        self.words = {i: word for word, i in tokenizer["model"]["vocab"].items()}
        self.words.update({t["id"]: t["content"] for t in tokenizer["added_tokens"]})
        self.threads, self.generator = None, None

    def configure(self, threads=None, **environment):
        if threads in (None, self.threads):
            return
        self.threads, self.generator = threads, None
        with Captured() as log:
            self.generator = getattr(self.api, self.LOADER)(
                str(self.folder),
                device="cpu",
                compute_type=self.TYPES[self.precision],
                inter_threads=1,
                intra_threads=threads,
            )
        self.details = {"version": f"ctranslate2 {self.api.__version__}"}
        for name, key in [
            ("Selected ISA", "instructions"),
            ("SGEMM backend", "fp32 products"),
            ("GEMM_S8 backend", "int8 products"),
            ("Selected compute type", "compute type"),
        ]:
            found = [line.split(name + ": ")[1] for line in log.lines if name + ": " in line]
            if found:
                self.details[key] = found[-1].strip()

    def generate(self, prompts, new_tokens):
        words = [[self.words[token] for token in prompt] for prompt in prompts]
        start = time.perf_counter()
        results = self.generator.generate_batch(
            words,
            max_length=new_tokens,
            min_length=new_tokens,  # so that an end of text does not end it
            beam_size=1,
            sampling_topk=1,
            include_prompt_in_result=False,
            max_batch_size=0,
        )
        seconds = time.perf_counter() - start
        return [r.sequences_ids[0] for r in results], seconds


class LlamaCpp(Engine):
    """llama.cpp by its C interface, with a persistent thread pool, as its programs have."""

    OPTIONS = {
        "threads": THREADS,
        "flash_attention": [True, False],
        "kv": ["f16", "f32"],
        "one_kv_buffer": [False, True],  # for all sequences
        "poll": [50, 100, 0],  # how eagerly its threads wait, per cent
        "repack": [True, False],  # of the weights, at load
    }
    PRECISIONS = ("fp32", "bf16", "fp16", "int8")
    TYPES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16", "int8": "Q8_0"}
    SEQUENCES, ROWS_EACH, BATCH = 8, 1024, 512

    def __init__(self, source: Path, precision: str):
        super().__init__(precision)
        import_from(BINDINGS)
        import llama_cpp

        self.api = llama_cpp

        def write(model, to):
            from bench.peers import gguf_file

            gguf_file.write(model, to, self.TYPES[precision])

        self.path = converted(source, f"{self.TYPES[precision]}.gguf", write)
        with Captured():
            llama_cpp.llama_backend_init()
        self.model = self.context = self.pool = self.repack = None
        self.settings = {}
        self.batch = llama_cpp.llama_batch_init(self.BATCH, 0, 1)
        for i in range(self.BATCH):
            self.batch.n_seq_id[i] = 1
        self.details = {
            "version": f"llama-cpp-python {llama_cpp.__version__}",
            "instructions": self.instructions(),
        }

    def instructions(self) -> str:
        """Its instruction sets, from "CPU : SSE3 = 1 | AVX = 0 | ..."."""
        parts = self.api.llama_print_system_info().decode().replace("CPU :", "").split("|")
        return ", ".join(p.split("=")[0].strip() for p in parts if p.strip().endswith("= 1"))

    def load(self, repack: bool):
        self.repack = repack
        if self.context:
            self.api.llama_free(self.context)
        if self.model:
            self.api.llama_model_free(self.model)
        params = self.api.llama_model_default_params()
        params.use_extra_bufts = repack
        self.model = self.api.llama_model_load_from_file(str(self.path).encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {self.path}")
        vocabulary = self.api.llama_model_get_vocab(self.model)
        self.vocabulary = self.api.llama_vocab_n_tokens(vocabulary)
        self.context = None

    def configure(self, **settings):
        self.settings = {**{k: v[0] for k, v in self.OPTIONS.items()}, **self.settings, **settings}
        s, api = self.settings, self.api
        with Captured():
            if self.repack != s["repack"]:
                self.load(s["repack"])
            if self.context:
                api.llama_free(self.context)
            options = api.llama_context_default_params()
            options.n_ctx = self.SEQUENCES * self.ROWS_EACH
            options.n_batch = options.n_ubatch = self.BATCH
            options.n_seq_max = self.SEQUENCES
            options.n_threads = options.n_threads_batch = s["threads"]
            options.flash_attn_type = int(s["flash_attention"])
            options.type_k = options.type_v = {"f32": 0, "f16": 1}[s["kv"]]
            options.kv_unified = s["one_kv_buffer"]
            self.context = api.llama_init_from_model(self.model, options)
        if not self.context:
            raise RuntimeError(f"llama.cpp refuses {s}")
        self.attach(s["threads"], s["poll"])

    def attach(self, threads: int, poll: int):
        """Attaches a thread pool; otherwise each call starts and joins threads."""
        llama = ctypes.CDLL(str(next(self.libraries("libllama.so"))))
        ggml = ctypes.CDLL(str(next(self.libraries("libggml-base.so"))))
        cpu = ctypes.CDLL(str(next(self.libraries("libggml-cpu.so"))))
        ggml.ggml_threadpool_params_default.restype = PoolParams
        params = ggml.ggml_threadpool_params_default(ctypes.c_int(threads))
        assert params.n_threads == threads, "another layout of ggml_threadpool_params"
        params.poll = poll
        cpu.ggml_threadpool_new.restype = ctypes.c_void_p
        cpu.ggml_threadpool_free.argtypes = [ctypes.c_void_p]
        old, self.pool = self.pool, cpu.ggml_threadpool_new(ctypes.byref(params))
        llama.llama_attach_threadpool.argtypes = [ctypes.c_void_p] * 3
        llama.llama_attach_threadpool(self.context, self.pool, self.pool)
        if old:
            cpu.ggml_threadpool_free(old)

    def libraries(self, name: str):
        return (Path(self.api.__file__).parent / "lib").glob(name)

    def decode(self, tokens, positions, sequences, wanted) -> np.ndarray:
        """One llama_decode; logits [rows, vocabulary] of the wanted rows."""
        n, b = len(tokens), self.batch
        b.n_tokens = n
        for i in range(n):
            b.token[i], b.pos[i] = tokens[i], positions[i]
            b.seq_id[i][0], b.logits[i] = sequences[i], wanted[i]
        if self.api.llama_decode(self.context, b) != 0:
            raise RuntimeError("llama_decode failed")
        logits = ctypes.cast(
            self.api.llama_get_logits(self.context), ctypes.POINTER(ctypes.c_float)
        )
        return np.ctypeslib.as_array(logits, shape=(sum(wanted), self.vocabulary))

    def clear(self):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def read(self, prompts) -> list[int]:
        """Prefills the caches, as many prompts per call as fit; returns the first new tokens."""
        n, first = len(prompts[0]), []
        each = max(1, self.BATCH // n)
        for start in range(0, len(prompts), each):
            some = range(start, min(start + each, len(prompts)))
            logits = self.decode(
                [t for s in some for t in prompts[s]],
                [i for _ in some for i in range(n)],
                [s for s in some for _ in range(n)],
                [i == n - 1 for _ in some for i in range(n)],
            )
            first.extend(logits.argmax(axis=1).tolist())
        return first

    def generate(self, prompts, new_tokens):
        self.clear()
        streams, n = len(prompts), len(prompts[0])
        start = time.perf_counter()
        steps = [self.read(prompts)]
        sequences, wanted = list(range(streams)), [True] * streams
        for step in range(new_tokens - 1):
            logits = self.decode(steps[-1], [n + step] * streams, sequences, wanted)
            steps.append(logits.argmax(axis=1).tolist())
        seconds = time.perf_counter() - start
        return [list(stream) for stream in zip(*steps, strict=True)], seconds

    def pass_seconds(self, context, rows, repeats):
        self.clear()
        self.read([[0] * context])
        memory = self.api.llama_get_memory(self.context)
        times = []
        places = [context + i for i in range(rows)]
        for _ in range(repeats):
            start = time.perf_counter()
            self.decode([0] * rows, places, [0] * rows, [True] * rows).argmax(axis=1)
            times.append(time.perf_counter() - start)
            self.api.llama_memory_seq_rm(memory, 0, context, -1)
        return statistics.median(times)


class OpenVino(Engine):
    """OpenVINO GenAI on a GGUF file or the folder of its own model. `precision` is its pipeline, "batching" or "plain". The environment
    variable GGUF_READER selects its reader."""

    PRECISIONS = ("batching", "plain")

    def __init__(self, source: Path, precision: str):
        super().__init__(precision)
        import_from(PEERS)
        import openvino
        import openvino_genai

        self.tensor, self.api = openvino.Tensor, openvino_genai
        if precision == "batching":
            scheduler = openvino_genai.SchedulerConfig()
            self.pipe = openvino_genai.ContinuousBatchingPipeline(str(source), scheduler, "CPU")
        else:
            self.pipe = openvino_genai.LLMPipeline(str(source), "CPU")
        self.details = {"version": f"openvino-genai {openvino_genai.__version__}"}

    def generate(self, prompts, new_tokens):
        config = self.api.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        ids = np.array(prompts, dtype=np.int64)
        start = time.perf_counter()
        if self.precision == "batching":
            rows = [self.tensor(row[None]) for row in ids]
            results = self.pipe.generate(rows, [config] * len(rows))
            answers = [list(result.m_generation_ids[0]) for result in results]
        else:
            seen = self.tensor(np.ones_like(ids))
            answers = self.pipe.generate(
                self.api.TokenizedInputs(self.tensor(ids), seen), config
            ).tokens
        seconds = time.perf_counter() - start
        if any(len(answer) != new_tokens for answer in answers):
            raise RuntimeError(f"{[len(answer) for answer in answers]} tokens, not {new_tokens}")
        return [list(map(int, answer)) for answer in answers], seconds


class PoolParams(ctypes.Structure):
    """ggml_threadpool_params of ggml.h."""

    _fields_ = [
        ("cpumask", ctypes.c_bool * 512),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    ]


class Captured:
    """Captures the writes of libraries to the file descriptor of standard error, as `lines`."""

    def __enter__(self):
        sys.stderr.flush()
        self.lines: list[str] = []
        self.kept = os.dup(2)
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        os.dup2(self.file.fileno(), 2)
        return self

    def __exit__(self, *_):
        os.dup2(self.kept, 2)
        os.close(self.kept)
        self.file.seek(0)
        self.lines = self.file.read().decode("utf-8", "replace").splitlines()
        self.file.close()


ENGINES = {kind.__name__: kind for kind in (Tandem, Transformers, CTranslate2, LlamaCpp)}
SHOWN = {"LlamaCpp": "llama.cpp"}
Q8_0 = 34 / 32  # bytes of a weight: blocks of 32 with a scale in 16 bits


def bytes_per_weight(engine: str, precision: str) -> float:
    """Bytes per weight of matrices, without scales of whole rows."""
    if engine == "LlamaCpp" and precision == "int8":
        return Q8_0
    return {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}[precision]
