"""Byte-level BPE tokenizers of the demo models: one for the decoders, one for the encoder-decoder pair."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
PADDING, END = "<pad>", "</s>"  # of models with an encoder, ids 0 and 1, as T5 has them
VOCABULARY_SIZE = 4096

# Pieces that BPE may not merge across. Line ends and indentations are pieces of their own, so that
# a prompt is cut as the training text was, whether it ends behind a colon, a line's end or an
# indentation. Identifiers keep their underscores and one character in front ("(self", " def");
# digits come in groups of at most three.
PIECES = (
    r"\n+"
    r"|[ \t]{2,}"
    r"|(?: |[^\s\p{L}\p{N}_])?[\p{L}_]+"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}_]+"
    r"|\s"
)


def byte_level_bpe(texts: Iterable[str], size: int, special_tokens: list[str]) -> Tokenizer:
    """A byte-level BPE of exactly `size` entries, the first of which are `special_tokens`.

    It decodes any sequence of ids to exactly the bytes that they stand for.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special_tokens,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != size:
        raise ValueError(f"too little text: {tokenizer.get_vocab_size()} of {size} entries")
    return tokenizer


def train_tokenizer(texts: Iterable[str], size: int = VOCABULARY_SIZE) -> Tokenizer:
    """That of the decoders: it starts every text with END_OF_TEXT, id 0, as their training
    sequences do."""
    tokenizer = byte_level_bpe(texts, size, [END_OF_TEXT])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A",
        pair=f"{END_OF_TEXT} $A {END_OF_TEXT} $B",
        special_tokens=[(END_OF_TEXT, tokenizer.token_to_id(END_OF_TEXT))],
    )
    return tokenizer


def train_source_tokenizer(texts: Iterable[str], size: int = VOCABULARY_SIZE) -> Tokenizer:
    """That of models with an encoder: it ends every text with END, as T5's does."""
    tokenizer = byte_level_bpe(texts, size, [PADDING, END])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}",
        pair=f"$A {END} $B {END}",
        special_tokens=[(END, tokenizer.token_to_id(END))],
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json; `max_length` is in tokens."""
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,  # decoding must be exact
    ).save_pretrained(folder)


def save_source_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """As save_tokenizer, of a tokenizer of train_source_tokenizer."""
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PADDING,
        eos_token=END,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
