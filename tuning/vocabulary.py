"""The byte-level BPE tokenizer that both demo models share."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
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


def train_tokenizer(texts: Iterable[str], size: int = VOCABULARY_SIZE) -> Tokenizer:
    """A byte-level BPE of exactly `size` entries whose id 0 is END_OF_TEXT.

    It starts every text with END_OF_TEXT, as the training sequences do, and decodes any sequence
    of ids to exactly the bytes that they stand for.
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
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != size:
        raise ValueError(f"too little text: {tokenizer.get_vocab_size()} of {size} entries")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A",
        pair=f"{END_OF_TEXT} $A {END_OF_TEXT} $B",
        special_tokens=[(END_OF_TEXT, tokenizer.token_to_id(END_OF_TEXT))],
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
