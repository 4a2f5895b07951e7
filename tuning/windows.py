"""Training batches cut from one stream of tokens.

A batch depends only on the seed and the step, so an interrupted training resumes with the same batches.
"""

import numpy as np
from tokenizers import Tokenizer

from tuning.vocabulary import END_OF_TEXT


class TokenStream:
    """All documents as ids with END_OF_TEXT before, between and after them.

    `ids`: [tokens] uint16, of vocabularies above 65536 int32. `starts`: ascending positions in `ids` of statements in column 0.
    """

    def __init__(self, tokenizer: Tokenizer, texts: list[str]):
        self.end_of_text: int = tokenizer.token_to_id(END_OF_TEXT)
        parts: list[int] = [self.end_of_text]
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            parts.extend(encoding.ids)
            parts.append(self.end_of_text)
        small = tokenizer.get_vocab_size() <= 1 << 16
        self.ids = np.array(parts, dtype=np.uint16 if small else np.int32)

        pieces = [tokenizer.decode([i]) for i in range(tokenizer.get_vocab_size())]
        ends_line = np.array([piece.endswith("\n") for piece in pieces])
        ends_line[self.end_of_text] = True
        begins_statement = np.array([not piece[:1].isspace() for piece in pieces])
        begins_statement[self.end_of_text] = False
        is_start = ends_line[self.ids[:-1]] & begins_statement[self.ids[1:]]
        self.starts = np.flatnonzero(is_start) + 1

    def __len__(self) -> int:
        return len(self.ids)


class Windows:
    """Batches of `tokens_per_batch` tokens, each epoch a new cut and a new order of the stream.

    Attention makes long windows costly on a CPU, so most batches hold short ones: of every
    GROUP batches, the first few hold windows of `long` tokens and the others of `short`.

    Every window begins with END_OF_TEXT, as every prompt does, and where a statement in column 0
    is near its cut it begins there, so that the model learns to continue any first line.
    """

    GROUP = 4

    def __init__(
        self, stream: TokenStream, tokens_per_batch: int, short: int, long: int, seed: int
    ):
        if long % short or tokens_per_batch % long:
            raise ValueError(f"lengths {short}, {long} do not divide {tokens_per_batch} evenly")
        self.stream = stream
        self.short, self.long = short, long
        self.seed = seed
        self.rows = tokens_per_batch // long  # long windows in a batch
        self.groups = (len(stream) // long - 1) // (self.rows * self.GROUP)  # in an epoch
        if self.groups < 1:
            raise ValueError(f"{len(stream)} tokens are too few for {self.GROUP} batches")

    def batch(self, step: int, long_batches: int) -> np.ndarray:
        """Batch number `step`, where `long_batches` of its group's batches are long ones.

        Returns [windows, length + 1] int64; a row is a window's inputs and its last target.
        """
        epoch, within = divmod(step, self.groups * self.GROUP)
        group, slot = divmod(within, self.GROUP)
        random = np.random.default_rng((self.seed, epoch))
        offset = int(random.integers(self.long))
        blocks = random.permutation(self.groups * self.GROUP * self.rows)
        blocks = offset + self.long * blocks.reshape(self.groups, self.GROUP, self.rows)[group]
        if slot < long_batches:
            return self._windows(blocks[slot], self.long)
        # The short windows of a group are mixed, so that a batch sees as many files as it can.
        parts = self.long // self.short
        cuts = blocks[long_batches:, :, None] + self.short * np.arange(parts)
        cuts = np.random.default_rng((self.seed, epoch, group)).permutation(cuts.reshape(-1))
        return self._windows(cuts.reshape(-1, self.rows * parts)[slot - long_batches], self.short)

    def _windows(self, cuts: np.ndarray, length: int) -> np.ndarray:
        return np.stack([self._window(int(cut), length) for cut in cuts])

    def _window(self, cut: int, length: int) -> np.ndarray:
        before = np.searchsorted(self.stream.starts, cut, side="right") - 1
        if before >= 0 and cut - self.stream.starts[before] <= length // 4:
            cut = int(self.stream.starts[before])
        text = self.stream.ids[cut : cut + length].astype(np.int64)
        return np.concatenate([[self.stream.end_of_text], text])
