"""An engine for the tests of the benchmark's workers: answers by rule and reports its requests."""

import os
import time


class FakeEngine:
    OPTIONS = {"step": [2, 1, 3], "FAKE_FACTOR": ["", "10"]}

    def __init__(self, folder, precision):
        if precision == "none":
            raise ValueError("none: computes here with some only")
        print("written by a library to the standard output")
        self.folder, self.precision = str(folder), precision
        self.details = {"version": "fake 1"}
        self.settings = {}

    def configure(self, **settings):
        if settings.get("step") == 3:
            raise RuntimeError("no step of 3")
        self.settings.update(settings)

    def generate(self, prompts, new_tokens):
        """Counts up from the prompt's last token; a token takes `step` seconds, the prompt 5."""
        factor = int(os.environ.get("FAKE_FACTOR") or 1)
        step = self.settings.get("step", 2) * factor
        tokens = [[p[-1] + 1 + i for i in range(new_tokens)] for p in prompts]
        return tokens, 5 + step * (new_tokens - 1)

    def pass_seconds(self, context, rows, repeats):
        return None

    def spin(self, seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    def process(self):
        return os.getpid()

    def die(self):
        os.write(2, b"last words\n")
        os._exit(3)

    def close(self):
        pass


class TimedWorker:
    """A worker whose answers take 0.1 s for a first token and 0.01 for each other."""

    def __init__(self, *_):
        pass

    def ask(self, _, prompts, new_tokens):
        return prompts, 0.1 + 0.01 * (new_tokens - 1)

    def close(self):
        pass
