"""Other engines that run the same weights on the same cores, each as fast as it goes by its own means.

Every runner decodes greedily a fixed number of tokens for each of several equally long prompts,
and says how long that took, prompts included. `pass_seconds` is one pass over several new rows
behind a context, as a verification makes it; None where the engine offers no such thing.
"""

import ctypes
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
import transformers

from tuning.benchmark.models import HOME
from tuning.benchmark.peer import VARIANTS, Variant

PEERS = HOME / "peers"  # scripts/setup --peers
CONVERTED = HOME / "benchmark" / "converted"


def import_peers() -> None:
    """Makes ctranslate2, llama_cpp and gguf importable."""
    if not PEERS.exists():
        raise SystemExit("ctranslate2 and llama.cpp are missing: run scripts/setup --peers")
    if str(PEERS) not in sys.path:
        sys.path.append(str(PEERS))


def converted(source: Path, name: str, make) -> Path:
    """CONVERTED/<model>-<name>, made by make(source, path) when it is missing."""
    path = CONVERTED / f"{source.name}-{name}"
    if not path.exists():
        CONVERTED.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(path.name + ".new")
        if beside.is_dir():
            shutil.rmtree(beside)
        make(source, beside)
        beside.rename(path)
    return path


class Transformers:
    """In PyTorch, in the fastest of the variants that its documentation names."""

    def __init__(self, source: Path, precision: str, threads: int):
        torch.set_num_threads(threads)
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
        load = transformers.AutoModelForCausalLM.from_pretrained
        self.model = load(source, dtype=dtype, attn_implementation="sdpa").eval()
        self.name, self.precision = "Transformers", precision
        self.variant: Variant | None = None

    def run(self, prompts, new_tokens: int, variant: Variant):
        self.model.set_attn_implementation(variant.attention)
        config = transformers.GenerationConfig(
            do_sample=False,
            max_new_tokens=new_tokens,
            eos_token_id=None,
            pad_token_id=0,
            cache_implementation=None if variant.cache == "dynamic" else variant.cache,
        )
        self.model.generation_config = config
        ids = torch.tensor(prompts)
        start = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config
            )
        return out[:, ids.shape[1] :].tolist(), time.perf_counter() - start

    def generate(self, prompts, new_tokens: int):
        if self.variant is None:
            times = {v: self.run(prompts, max(8, new_tokens // 4), v)[1] for v in VARIANTS}
            self.variant = min(times, key=times.get)
        return self.run(prompts, new_tokens, self.variant)

    @torch.inference_mode()
    def pass_seconds(self, context: int, rows: int, repeats: int) -> float:
        self.model.set_attn_implementation("sdpa")
        times = []
        cache = self.model(torch.zeros(1, context, dtype=torch.long)).past_key_values
        for _ in range(repeats):
            start = time.perf_counter()
            self.model(torch.zeros(1, rows, dtype=torch.long), past_key_values=cache)
            times.append(time.perf_counter() - start)
            cache.crop(-rows)
        return statistics.median(times)


class CTranslate2:
    def __init__(self, source: Path, precision: str, threads: int):
        import_peers()
        import ctranslate2
        from ctranslate2.converters import TransformersConverter

        kind = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}[precision]
        self.version = ctranslate2.__version__
        # bfloat16 weights are not always computed with as such; what is really used is shown.
        folder = converted(
            source,
            f"ct2-{kind}",
            lambda s, t: TransformersConverter(str(s)).convert(str(t), quantization=kind),
        )
        self.generator = ctranslate2.Generator(
            str(folder), device="cpu", compute_type=kind, inter_threads=1, intra_threads=threads
        )
        self.name, self.precision = "CTranslate2", precision
        self.compute_type = self.generator.compute_type
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(source)

    def generate(self, prompts, new_tokens: int):
        words = [self.tokenizer.convert_ids_to_tokens(p) for p in prompts]
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

    def pass_seconds(self, context: int, rows: int, repeats: int):
        return None  # a forward pass over given tokens cannot go on from a cache


class LlamaCpp:
    def __init__(self, source: Path, precision: str, threads: int):
        import_peers()
        import llama_cpp

        from tuning.benchmark import gguf_file

        self.api, self.version = llama_cpp, llama_cpp.__version__
        kind = {"fp32": "F32", "bf16": "BF16", "fp16": "F16", "int8": "Q8_0"}[precision]
        path = converted(source, f"{kind}.gguf", lambda s, t: gguf_file.write(s, t, kind))
        with quiet():
            llama_cpp.llama_backend_init()
            params = llama_cpp.llama_model_default_params()
            self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
            assert self.model, path
            options = llama_cpp.llama_context_default_params()
            options.n_ctx = 8 * 1024
            options.n_batch = options.n_ubatch = 512
            options.n_seq_max = 8
            options.n_threads = options.n_threads_batch = threads
            options.kv_unified = True
            self.context = llama_cpp.llama_init_from_model(self.model, options)
        assert self.context
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self.model)
        )
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)
        self.name, self.precision = "llama.cpp", precision

    def decode(self, rows) -> np.ndarray:
        """rows: (token, position, sequence, wanted); logits [wanted, vocabulary]."""
        b = self.batch
        b.n_tokens = len(rows)
        wanted = []
        for i, (token, position, sequence, want) in enumerate(rows):
            b.token[i], b.pos[i], b.logits[i] = token, position, want
            b.n_seq_id[i], b.seq_id[i][0] = 1, sequence
            if want:
                wanted.append(i)
        assert self.api.llama_decode(self.context, b) == 0
        get = self.api.llama_get_logits_ith
        return [
            np.ctypeslib.as_array(
                ctypes.cast(get(self.context, i), ctypes.POINTER(ctypes.c_float)),
                shape=(self.vocabulary,),
            )
            for i in wanted
        ]

    def clear(self):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def generate(self, prompts, new_tokens: int):
        self.clear()
        tokens = [[] for _ in prompts]
        start = time.perf_counter()
        n = len(prompts[0])
        for s, prompt in enumerate(prompts):
            rows = [(t, i, s, i == n - 1) for i, t in enumerate(prompt)]
            tokens[s].append(int(self.decode(rows)[0].argmax()))
        for step in range(new_tokens - 1):
            rows = [(tokens[s][-1], n + step, s, True) for s in range(len(prompts))]
            for s, logits in enumerate(self.decode(rows)):
                tokens[s].append(int(logits.argmax()))
        return tokens, time.perf_counter() - start

    def pass_seconds(self, context: int, rows: int, repeats: int) -> float:
        self.clear()
        self.decode([(0, i, 0, i == context - 1) for i in range(context)])
        times = []
        memory = self.api.llama_get_memory(self.context)
        for _ in range(repeats):
            start = time.perf_counter()
            for logits in self.decode([(0, context + i, 0, True) for i in range(rows)]):
                logits.argmax()
            times.append(time.perf_counter() - start)
            self.api.llama_memory_seq_rm(memory, 0, context, -1)
        return statistics.median(times)


class quiet:
    """llama.cpp writes hundreds of lines to the standard error's file descriptor while it loads."""

    def __enter__(self):
        self.kept = os.dup(2)
        self.null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(self.null, 2)

    def __exit__(self, *_):
        os.dup2(self.kept, 2)
        os.close(self.kept)
        os.close(self.null)
