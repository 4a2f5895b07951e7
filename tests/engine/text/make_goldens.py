"""Makes the tokenizers, chat templates and expected results that the tests of engine/text compare with.

    python tests/engine/text/make_goldens.py

Needs Python 3.11 with transformers 5.23 and tokenizers 0.23; writes tests/engine/text/data. Everything is made
here: the tokenizers are trained on the standard library's sources and on the sentences below, the chat templates
are small versions of public styles. The answers are Transformers' own. Training breaks ties differently from run to run, so
vocabularies and answers belong together: commit all of data or nothing.
"""

import argparse
import inspect
import json
import random
import shutil
import textwrap
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

DATA = Path(__file__).resolve().parent / "data"

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, doesn't it? It's 1234567890 o'clock!",
    "Der schnelle braune Fuchs springt über den faulen Hund; Größe, Straße, Übung.",
    "Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter en canoë.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "いろはにほへと ちりぬるを 我が世誰ぞ 常ならむ 今日は良い天気ですね。",
    "敏捷的棕色狐狸跳过了懒狗。今天天气很好,我们去公园吧。",
    "다람쥐 헌 쳇바퀴에 타고파. 키스의 고유조건은 입술끼리 만나야 한다.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "def main(args):\n    for i in range(10):\n        print(f'{i:>4}', end='\\t')\n    return 0\n",
]

EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "👍🏽", "❤️", "1️⃣", "🧑🏿‍🚀", "☃︎", "🫠"]
SPECIALS = [
    "<s>",
    "</s>",
    "<unk>",
    "<pad>",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[UNK]",
    "[PAD]",
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|im_start|>",
    "<extra>",
    "<solo>",
    "<0x0A>",
    "▁",
    "##ing",
]


def hostile_strings() -> list[str]:
    rng = random.Random(7)
    texts = [
        "",
        " ",
        "  ",
        "\n",
        "\t",
        "\r\n",
        "\0",
        "\x7f",
        "\ufeff",
        "\u200b",
        "\u00a0",
        "\u3000",
        "\ufffd",
        "a",
        "é",
        "e\u0301",
    ]
    texts += SENTENCES + EMOJI + ["".join(EMOJI), " ".join(EMOJI), "x" + EMOJI[1] + "y"]
    texts += (
        [" " * n for n in (3, 4, 5, 8, 16, 33)]
        + ["\n" * n for n in (2, 3, 7)]
        + ["\t" * 3, " \n \n ", "\n  x\n", "a  b   c    d"]
    )
    texts += ["a" * n for n in (2, 10, 100, 400)] + [
        "_" * 200,
        "=" * 77,
        "-" * 40,
        "0" * 60,
        "ab" * 100,
        "é" * 50,
        "😀" * 20,
    ]
    texts += [
        "hello world",
        " hello world",
        "hello world ",
        "Hello, World!",
        "HELLO",
        "hElLo",
        "I'm you're he'll we'd they've it's 'S 'RE",
    ]
    texts += [
        "1",
        "12",
        "123",
        "1234",
        "12345678",
        "3.14159",
        "-1e-10",
        "0xDEADBEEF",
        "1,234,567.89",
        "٣٤٥",
        "४५६",
        "½ ² ³ Ⅷ ①",
    ]
    texts += [f"{a}{b}" for a in ("", " ", "x", "x ") for b in SPECIALS]
    texts += [f"{a}text{a}" for a in SPECIALS] + [
        "".join(SPECIALS),
        " ".join(SPECIALS),
        "<s><s>",
        "</s>\n</s>",
        "<extra> <extra>",
        "a<solo>b <solo> c",
    ]
    texts += [
        "cafe\u0301",
        "a\u0300\u0301\u0302\u0303b",
        "Z" + "\u0351" * 30,
        "\u1e9b\u0323",
        "\ufb01 \u2126 \u212b",
        "ＡＢＣ１２３",
        "㍿",
        "İstanbul ısı",
        "ǅ",
    ]
    texts += [
        "\u202eabc\u202c",
        "שלום world עולם",
        "مرحبا 123 عالم",
        "\u2066x\u2069",
        "\u2028\u2029",
        "\x1b[31mred\x1b[0m",
        "a\0b\0c",
        "\x01\x02\x03",
        "\x80\x9f",
    ]
    texts += [
        "𝕳𝖊𝖑𝖑𝖔",
        "𐍈",
        "\U0010ffff",
        "\ue000",
        "𠀀𠀁",
        "ꙮ",
        "ဗမာစာ",
        "ไทย ภาษา",
        "ქართული",
        "አማርኛ",
        "ᚠᛇᚻ",
        "ⵜⴰⵎⴰⵣⵉⵖⵜ",
    ]
    texts += [
        "if (a<b && c>d) { return a[i]++; } // x",
        "SELECT * FROM t WHERE a='b';",
        "<html>&nbsp;</html>",
        '{"a": [1, null, true]}',
        "a_b__c___d",
        "camelCaseWord",
        "$HOME/.x",
        "C:\\x\\y",
    ]
    texts += [
        "http://ex.org/a?b=c&d=%20#e",
        "me@ex.org",
        "#tag @user",
        "—–-‐",
        "“quoted” ‘text’ …",
        "`x` ``y`` ```z```",
        "1.\n2.\n  - x\n",
        "a\u00adb",
        "x\u200dy",
        "don 't can 't . , ? !",
    ]
    texts += [line for line in inspect.getsource(textwrap).splitlines() if line.strip()][:60]
    alphabets = [
        "ab ",
        "abcdefghijklmnopqrstuvwxyz  ",
        " \n\t\r",
        "0123456789 .,-",
        "éüñßøåç ",
        "абвгд ",
        "漢字仮名交 ",
        "ابجد ",
        "אבג ",
        "😀👍🏽‍❤️ ",
        "\u0301\u0302a ",
        "\0\x01\x7f\x80 ",
        "<>|s/▁# ",
        "'’sStTrReE ",
        "_-=+*/ ",
        "\u200b\u200d\ufeffx",
        "".join(chr(c) for c in range(0x20, 0x7F)),
    ]
    while len(texts) < 480:
        alphabet = rng.choice(alphabets)
        texts.append("".join(rng.choice(alphabet) for _ in range(rng.randint(1, 40))))
    while len(texts) < 500:
        point = [rng.choice((0x250, 0x3000, 0xFFFF, 0x10FFFF)) for _ in range(rng.randint(1, 20))]
        texts.append(
            "".join(
                chr(c) for c in (rng.randrange(1, p) for p in point) if not 0xD800 <= c <= 0xDFFF
            )
        )
    return texts[:500]


def corpus() -> list[str]:
    modules = [argparse, inspect, json, random, textwrap]
    return [inspect.getsource(module) for module in modules] + [
        s for s in SENTENCES for _ in range(20)
    ]


def special(text: str) -> AddedToken:
    return AddedToken(text, special=True, normalized=False)


def gpt2(add_prefix_space: bool) -> tuple[Tokenizer, dict]:
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tok.train_from_iterator(corpus(), trainer)
    tok.add_tokens(
        [AddedToken("<extra>", lstrip=True), AddedToken("<solo>", single_word=True, rstrip=True)]
    )
    config = {"add_prefix_space": add_prefix_space, "clean_up_tokenization_spaces": True}
    return tok, config | dict.fromkeys(["bos_token", "eos_token", "unk_token"], "<|endoftext|>")


def llama3() -> tuple[Tokenizer, dict]:
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tok = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1200, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tok.train_from_iterator(corpus(), trainer)
    names = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ]
    tok.add_special_tokens([special(name) for name in names])
    bos = names[0]
    template = processors.TemplateProcessing(
        single=f"{bos} $A",
        pair=f"{bos} $A {bos}:1 $B:1",
        special_tokens=[(bos, tok.token_to_id(bos))],
    )
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tok, {"bos_token": bos, "eos_token": "<|eot_id|>", "clean_up_tokenization_spaces": True}


def llama2() -> tuple[Tokenizer, dict]:
    seed = Tokenizer(models.BPE())
    seed.pre_tokenizer = pre_tokenizers.Metaspace()
    seed.train_from_iterator(
        corpus(), trainers.BpeTrainer(vocab_size=900, limit_alphabet=160, show_progress=False)
    )
    trained = json.loads(seed.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    pieces += sorted(trained["vocab"], key=trained["vocab"].get)
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [tuple(merge) for merge in trained["merges"]]
    tok = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tok.add_special_tokens([special(name) for name in ("<unk>", "<s>", "</s>")])
    tok.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    # <pad> and <extra> are known to tokenizer_config.json only: Transformers adds them when it loads.
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return tok, config | {
        "additional_special_tokens": ["<extra>"],
        "clean_up_tokenization_spaces": False,
    }


def bert() -> tuple[Tokenizer, dict]:
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=1500, special_tokens=names, limit_alphabet=300, show_progress=False
    )
    tok.train_from_iterator(corpus(), trainer)
    ids = [(name, tok.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ids
    )
    config = {
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "mask_token": "[MASK]",
    }
    return tok, config | {"clean_up_tokenization_spaces": True}


def t5() -> tuple[Tokenizer, dict]:
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=700,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tok.train_from_iterator(corpus(), trainer)
    tok.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    config = {
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "extra_special_tokens": ["<extra>"],
    }
    return tok, config | {"clean_up_tokenization_spaces": False}


def write_json(path: Path, value: object, indent: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    separators = None if indent else (",", ":")
    path.write_text(
        json.dumps(value, ensure_ascii=True, indent=indent, separators=separators) + "\n"
    )


def save(folder: Path, tok: Tokenizer, config: dict) -> PreTrainedTokenizerFast:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "tokenizer.json", json.loads(tok.to_str()))
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast"} | config,
        indent=1,
    )
    return PreTrainedTokenizerFast.from_pretrained(folder)


def tokenizer_goldens() -> None:
    texts = hostile_strings()
    write_json(DATA / "tokenizers" / "texts.json", texts)
    made = {
        "gpt2": gpt2(False),
        "gpt2_prefix": gpt2(True),
        "llama3": llama3(),
        "llama2": llama2(),
        "bert": bert(),
        "t5": t5(),
    }
    for name, (tok, config) in made.items():
        fast = save(DATA / "tokenizers" / name, tok, config)
        cases = []
        for text in texts:
            plain = fast.encode(text, add_special_tokens=False)
            ids = fast.encode(text, add_special_tokens=True)
            split = fast.encode(text, add_special_tokens=False, split_special_tokens=True)
            # What to put around the plain ids; null where the ids differ otherwise or a text is as given.
            at = next((i for i in range(len(ids)) if ids[i : i + len(plain)] == plain), None)
            around = None if at is None else [ids[:at], ids[at + len(plain) :]]
            decoded = [
                fast.decode(ids),
                fast.decode(ids, skip_special_tokens=True),
                fast.decode(plain),
            ]
            cases.append(
                [
                    plain,
                    ids if around is None else around,
                    [d if d != text else None for d in decoded],
                    split if split != plain else None,
                ]
            )
        rng = random.Random(name)
        sequences = []
        for n in range(120):
            pool = (
                range(len(fast))
                if n % 3
                else [i for i in range(len(fast)) if len(fast.convert_ids_to_tokens(i)) in (1, 6)]
            )
            ids = [rng.choice(pool) for _ in range(rng.randint(1, 12))]
            sequences.append([ids, fast.decode(ids), fast.decode(ids, skip_special_tokens=True)])
        write_json(
            DATA / "tokenizers" / name / "goldens.json",
            {
                "size": len(fast),
                "special_ids": sorted(fast.all_special_ids),
                "texts": cases,
                "ids": sequences,
            },
        )


def main() -> None:
    from make_template_goldens import template_goldens

    shutil.rmtree(DATA, ignore_errors=True)
    tokenizer_goldens()
    template_goldens(DATA / "chat")
    total = sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file())
    print(f"{DATA.name}: {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
