"""Tokenizers of all kinds that the models of this library have, small and trained on a few lines, and texts that are
awkward. `make.py` writes fixtures of them; `fuzz.py` makes random ones.
"""

import json
from collections.abc import Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's what we've been told, they'll say; I'm sure he'd agree!",
    "interface Array<T> {\n    readonly length: number;\n\treturn x[0] + 12345 * 3.14;\r\n}\n\n\n",
    "日本語のテキスト 中文分词测试 한국어 문장 ไทย ภาษา",
    "naïve Straße œuvre café déjà vu Ελληνικά κείμενα Русский текст שלום عَرَبِي हिन्दी",
    "👩‍👩‍👧‍👦 🏳️‍🌈 😀😀 ½ ² Ⅷ ﬁ",
    "aaaa aaa aa a the the then there   three  spaces     five",
] * 3

# The words of the families, as their tokenizer.json spells them.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+").replace(
    r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{M}\p{N}]+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
POSSESSIVE = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
INTERSECTION = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"

TEXTS = [
    "", " ", "  ", "a", "\n", "\t", "\r\n", "\r", "\x00", "\x00\x01\x7f\x80\x85\x9f", "\ufeff", "\ufeffstart of a file", "mid\ufeffdle",
    "The quick brown fox jumps over the lazy dog.", "hello  two   three    spaces     end ", " leading", "trailing   ", "\ttabs\t\tmore\t",
    "line\nline\r\nline\r\rline\n\n\n  x\n \n", "it's WE'LL they'RE o'clock 'S 'ſ I'M HE'D you'Ve ''s", "don't, can't. won't! n't 's",
    "1 12 123 1234 12345678 3.14159 0x1F ١٢٣٤ ½ ² Ⅷ 𝟜 ௧", "naïve Straße ŒUVRE e\u0301 E\u0301 o\u0308 \u0301start ΟΔΟΣ Σ ς",
    "日本語のテキスト 中文，分词。한국어 ㍻㋿ｶﾞ", "שלום עולם عَرَبِي ‏rtl‎ हिन्दी क्षि ไทยภาษา", "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ☃️ 👍🏽 😀",
    "\u00a0nbsp\u2003em\u2028ls\u2029ps\u200bzw\u200cnj\u200dj\u3000wide\u180emvs\u1680", "▁under▁▁score ▁ x▁", "private \ue000\uf8ff\U000f0000 use",
    "\U0001f600\U00020000\U0002a6d6 four bytes \U0010ffff \ufffd \uffff", "end<|endoftext|>start <|endoftext|> <|endoftext <|endoftext|><|endoftext|>",
    "<s>[INST] hi </s><unk>  <pad> </s>x<s>", "<|im_start|>user\n hi <|im_end|>\n<|im_end|> zebra zebras zebra.zebra_zebra éclair",
    "!!!???...---___===~~~ «»“”‘’ €$£ +−×÷ ^`|\\", "/** @param {Foo<Bar[]>} x */ const a=b?.c??d;", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa aaaa",
    "ABC Abc aBC camelCase snake_case kebab-case HTTPServer XMLHttpRequest2", "ﬁ ﬂ ﬀ ß ẞ ŉ ǰ İ ı ǅ K Å", "<0x41><0xE9> <0x0A>\x0b\x0c\x1c\x1f",
    "a" * 300 + " " + "é" * 100 + "日" * 50, "\u088f\ua7ce\ua7cf\U00011de0\U0001fac8 newer than most \U0001e6e3 \u0295\u1c89",
    "x\u0323\u0307 q\u0307\u0323 \u1100\u1161\u11a8 ᄀ각 \u0344\u0958 \U000105d2\u0307 \U0001d165\U0001d15e", "¹²³ ¼½¾ ªº µ · ܏ ॱ ᳲ ៳",
]


def added(content: str, **options: bool) -> AddedToken:
    return AddedToken(content, **{"normalized": False, **options})


def special(*contents: str, **options: bool) -> list[AddedToken]:
    return [added(content, special=True, **options) for content in contents]


def bpe(words: pre_tokenizers.PreTokenizer, tokens: list[AddedToken], normalizer=None, size: int = 420, **model) -> Tokenizer:
    """Byte-level BPE."""
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens([token for token in tokens if token.special])
    tokenizer.add_tokens([token for token in tokens if not token.special])
    return tokenizer


def split(*patterns: str) -> pre_tokenizers.PreTokenizer:
    """Words by expressions, then letters for bytes."""
    steps = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def sentencepiece_bpe(byte_fallback: bool = True, fuse_unk: bool = True, size: int = 420) -> Tokenizer:
    """A BPE of SentencePiece, with blanks as letters and bytes for what is unknown."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))] if byte_fallback else ["<unk>", "<s>", "</s>"]
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    # Blanks in a row are tokens too.
    corpus = [line.encode("ascii", "ignore").decode() for line in CORPUS]
    learner.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size - 258, show_progress=False))
    learned = json.loads(learner.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]] + [("▁", "▁"), ("▁▁", "▁▁"), ("▁▁", "▁"), ("e", "r"), ("n", "t")]
    tokens = [*pieces, *learned["vocab"]]
    tokens += [a + b for a, b in merges if a + b not in tokens]
    vocab = {token: id for id, token in enumerate(dict.fromkeys(tokens))}
    model = models.BPE(vocab=vocab, merges=list(dict.fromkeys(merges)), unk_token="<unk>", fuse_unk=fuse_unk, byte_fallback=byte_fallback)
    return Tokenizer(model)


def llama2(legacy: bool = True, tokens: list[AddedToken] | None = None, **model) -> Tokenizer:
    tokenizer = sentencepiece_bpe(**model)
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>"))
    if tokens:
        tokenizer.add_special_tokens([token for token in tokens if token.special])
        tokenizer.add_tokens([token for token in tokens if not token.special])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    return tokenizer


def unigram(byte_fallback: bool = False, normalizer=None, words=None, tokens: list[AddedToken] | None = None) -> Tokenizer:
    learner = Tokenizer(models.Unigram())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    corpus = CORPUS if not byte_fallback else CORPUS[:2]
    learner.train_from_iterator(corpus, trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "<s>", "</s>", "<pad>"], unk_token="<unk>", show_progress=False,
    ))
    vocab = [tuple(piece) for piece in json.loads(learner.to_str())["model"]["vocab"]]
    if byte_fallback:
        vocab += [(f"<0x{byte:02X}>", -12.0 - byte / 64) for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram(vocab, 0, byte_fallback))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = words or pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]) if byte_fallback else decoders.Metaspace()
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>", "<pad>"))
    if tokens:
        tokenizer.add_tokens(tokens)
    return tokenizer


def wordpiece(normalizer, words) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=40))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, words
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=names, show_progress=False))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def wordlevel(words, normalizer=None, **options) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = words
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(CORPUS, trainers.WordLevelTrainer(vocab_size=60, special_tokens=["[UNK]", "[EOS]"], show_progress=False))
    tokenizer.add_tokens([added("zebra", single_word=True, normalized=True), added("éclair", normalized=True, lstrip=True, rstrip=True)])
    return tokenizer


CHAT = special("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ODD = [
    *special("<|endoftext|>"), *special("<|im_end|>", rstrip=True), *special("<|im_start|>", lstrip=True),
    added("zebra", single_word=True, normalized=True), added("  ", normalized=False), added("<|endoftext", normalized=True),
    added("éclair", normalized=True, lstrip=True, rstrip=True), added(" x", rstrip=True), added("zeb", normalized=False),
]
SPACES = [added(" " * count, normalized=True) for count in range(24, 1, -1)]


def bert(**options) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(**options)


def suffixed() -> Tokenizer:
    """CLIP's and OpenAI GPT's: a mark at the end of words."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.decoder = decoders.BPEDecoder()
    return tokenizer


def prefixed() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>"], continuing_subword_prefix="##", limit_alphabet=40, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer


def kinds() -> Iterator[tuple[str, Tokenizer]]:
    """By name, all kinds."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    yield "gpt2", bpe(byte_level, special("<|endoftext|>"))
    yield "gpt2-odd-tokens", bpe(byte_level, ODD)
    yield "gpt2-prefix-space", bpe(pre_tokenizers.ByteLevel(add_prefix_space=True), special("<|endoftext|>"))
    yield "phi", bpe(byte_level, [*special("<|endoftext|>"), *SPACES])
    yield "llama3", bpe(split(LLAMA3), CHAT, ignore_merges=True)
    yield "qwen3", bpe(split(QWEN2), CHAT, normalizers.NFC())
    yield "qwen3_5", bpe(split(QWEN35), ODD, normalizers.NFC())
    yield "gpt_oss", bpe(split(O200K), CHAT)
    yield "glm", bpe(split(POSSESSIVE), CHAT)
    yield "deepseek3", bpe(split(r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3), special("<｜end▁of▁sentence｜>"))
    deepseek2 = [
        pre_tokenizers.Split(Regex(pattern), "isolated")
        for pattern in (r"[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓͰ-ͳ𐐀-𐑏]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", r"[一-龥ࠀ-一가-퟿]+")
    ]
    yield "deepseek2", bpe(
        pre_tokenizers.Sequence([*deepseek2, digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        special("<｜end▁of▁sentence｜>"),
    )
    yield "kimi", bpe(split(INTERSECTION), CHAT)
    yield "modernbert", bpe(
        byte_level, [*special("[UNK]", "[CLS]", "[SEP]", "[PAD]"), *special("[MASK]", lstrip=True), *SPACES, *special("<|endoftext|>")],
        normalizers.NFC(),
    )
    yield "llama2-legacy", llama2()
    yield "llama2", llama2(legacy=False)
    yield "phi3", llama2(tokens=[*special("<|endoftext|>"), *special("<|im_end|>", "<|im_start|>", rstrip=True)])
    yield "llama2-odd-tokens", llama2(tokens=[*ODD, added("▁x", normalized=True)])
    yield "llama2-first-odd-tokens", llama2(legacy=False, tokens=ODD)
    yield "llama2-no-bytes", llama2(byte_fallback=False)
    yield "llama2-no-bytes-no-fuse", llama2(byte_fallback=False, fuse_unk=False)
    yield "unigram", unigram()
    yield "unigram-bytes", unigram(byte_fallback=True)
    yield "unigram-nfkc", unigram(normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]))
    yield "unigram-first", unigram(True, words=pre_tokenizers.Metaspace(prepend_scheme="first"), tokens=ODD)
    yield "unigram-never", unigram(True, words=pre_tokenizers.Metaspace(prepend_scheme="never", split=False), tokens=ODD[3:])
    yield "unigram-words", unigram(
        normalizer=normalizers.Strip(), words=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
    )
    yield "wordpiece", wordpiece(bert(), pre_tokenizers.BertPreTokenizer())
    yield "wordpiece-cased", wordpiece(bert(lowercase=False, strip_accents=True), pre_tokenizers.BertPreTokenizer())
    yield "wordlevel", wordlevel(pre_tokenizers.Whitespace())
    yield "wordlevel-marks", wordlevel(pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("contiguous")]))
    yield "wordlevel-nfd", wordlevel(
        pre_tokenizers.Sequence([pre_tokenizers.CharDelimiterSplit(" "), pre_tokenizers.Digits(individual_digits=False)]),
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]),
    )
    yield "suffix", suffixed()
    yield "prefix", prefixed()
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            words = pre_tokenizers.Split(Regex(r"\s|\p{P}"), behavior, invert=invert)
            name = f"split-{behavior}{'-invert' if invert else ''}"
            yield name, bpe(pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)]), CHAT, size=300)


def answers(tokenizer: Tokenizer, texts: list[str]) -> dict[str, list]:
    """Ids of texts, and texts of these ids with and without special tokens; null where Python raises, -1 where it panics."""
    result: dict[str, list] = {"ids": [], "decoded": [], "skipped": []}
    for text in texts:
        try:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            both = [tokenizer.decode(ids, skip_special_tokens=skips) for skips in (False, True)]
        except Exception:
            ids, both = None, [None, None]
        except BaseException as error:  # pyo3's panics are no exceptions
            if type(error).__name__ != "PanicException":
                raise
            ids, both = [-1], [None, None]
        for key, value in zip(result, (ids, *both), strict=True):
            result[key].append(value)
    return result
