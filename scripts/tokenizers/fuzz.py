"""Write random tokenizers and texts with what Python makes of them, for `compare.ts`.

Run: `python scripts/tokenizers/fuzz.py FILE [TOKENIZERS] [SEED]`.
"""

import json
import random
import sys
from pathlib import Path

from kinds import GPT2, LLAMA3, O200K, POSSESSIVE, TEXTS, answers, kinds
from tokenizers import Tokenizer

FRAGMENTS = [*TEXTS[1:40], *"abcxyzABCÀéßΣſK0159٣½ \t\n\r.,!?'-_▁\u00a0\u200d\u0301\u0323\ufeff日本語한ไ😀👍🏽", "the", " the", "'s", "'LL", "zebra", "<|endoftext|>", "</s>",
             "<unk>", "  ", "   ", "[UNK]", "\r\n", "naïve", "<0x41>", "<|im_end|>", "é", "Éclair", "éclair"]
PATTERNS = [
    GPT2, LLAMA3, O200K, POSSESSIVE, r"\s", r"\s+", r"\p{N}", r"\w+", r"\W", r"[\w']+", r"[^\s\w]+", r"\d{2,}", r"^a|b$", r"(?<=a)b?", r"(?<!\s)\p{P}(?=\s)",
    r"a|e|i", r"\p{Lu}\p{Ll}*", r"[^\p{L}&&[^abc]]", r"x*", r"\b", r"(?>a+|b)c?", r"[]\-a^]", r"[[:alpha:]]+", r"\P{L}+?", r"\p{^N}", "(?i:the|[aeo]x)", r"(\s)(a)?",
    r"\x41|\u00e9|\x{65E5}", r"a{2}|b{,2}c|d{1,}", r".", r"$", r"^", r"\Aa|a\z", r"[\s\S]{1,4}", r"\B", r"[\p{Han}\p{Hiragana}]+", r"[+--]|[a-]|[-z]", r"\{|\}|{|}|a{b}",
]
STRINGS = [" ", "a", "▁", "é", "the", ".", "  ", "\n", "😀", "s", "", "'"]


def normalizer(r: random.Random, depth: int = 0) -> dict | None:
    kind = r.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Prepend", "Replace", "Regex", "ByteLevel", "Bert", "Sequence"])
    if kind == "Strip":
        return {"type": kind, "strip_left": r.random() < 0.5, "strip_right": r.random() < 0.5}
    if kind == "Prepend":
        return {"type": kind, "prepend": r.choice(["▁", " ", "x"])}
    if kind == "Replace":
        return {"type": kind, "pattern": {"String": r.choice(STRINGS[:10])}, "content": r.choice(STRINGS)}
    if kind == "Regex":
        return {"type": "Replace", "pattern": {"Regex": r.choice(PATTERNS)}, "content": r.choice(STRINGS)}
    if kind == "Bert":
        flags = {key: r.random() < 0.5 for key in ("clean_text", "handle_chinese_chars", "lowercase")}
        return {"type": "BertNormalizer", **flags, "strip_accents": r.choice([None, True, False])}
    if kind == "Sequence":
        return {"type": kind, "normalizers": [] if depth > 1 else [normalizer(r, depth + 1) for _ in range(r.randrange(1, 4))]}
    return {"type": kind}


def pre_tokenizer(r: random.Random, depth: int = 0) -> dict:
    behaviors = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    kind = r.choice(["ByteLevel", "Split", "Split", "Split", "Digits", "Metaspace", "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Punctuation",
                     "CharDelimiterSplit", "FixedLength", "Sequence", "Sequence"])
    if kind == "ByteLevel":
        return {"type": kind, "add_prefix_space": r.random() < 0.5, "trim_offsets": True, "use_regex": r.random() < 0.5}
    if kind == "Split":
        pattern = {"String": r.choice(STRINGS[:10])} if r.random() < 0.3 else {"Regex": r.choice(PATTERNS)}
        return {"type": kind, "pattern": pattern, "behavior": r.choice(behaviors), "invert": r.random() < 0.3}
    if kind == "Digits":
        return {"type": kind, "individual_digits": r.random() < 0.5}
    if kind == "Metaspace":
        return {"type": kind, "replacement": r.choice("▁▁▁_ x"), "prepend_scheme": r.choice(["always", "first", "never"]), "split": r.random() < 0.5}
    if kind == "Punctuation":
        return {"type": kind, "behavior": r.choice(behaviors)}
    if kind == "CharDelimiterSplit":
        return {"type": kind, "delimiter": r.choice(" a▁é😀")}
    if kind == "FixedLength":
        return {"type": kind, "length": r.randrange(1, 7)}
    if kind == "Sequence":
        return {"type": kind, "pretokenizers": [] if depth > 1 else [pre_tokenizer(r, depth + 1) for _ in range(r.randrange(1, 4))]}
    return {"type": kind}


def decoder(r: random.Random, depth: int = 0) -> dict:
    kind = r.choice(["ByteLevel", "ByteFallback", "Fuse", "Strip", "Replace", "Metaspace", "WordPiece", "BPEDecoder", "Sequence", "Sequence"])
    if kind == "ByteLevel":
        return {"type": kind, "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    if kind == "Strip":
        return {"type": kind, "content": r.choice(" ▁ae"), "start": r.randrange(3), "stop": 0}
    if kind == "Replace":
        pattern = {"String": r.choice(STRINGS[:10])} if r.random() < 0.5 else {"Regex": r.choice(PATTERNS)}
        return {"type": kind, "pattern": pattern, "content": r.choice(STRINGS)}
    if kind == "Metaspace":
        return {"type": kind, "replacement": r.choice("▁▁_"), "prepend_scheme": r.choice(["always", "first", "never"]), "split": r.random() < 0.5}
    if kind == "WordPiece":
        return {"type": kind, "prefix": r.choice(["##", "a"]), "cleanup": r.random() < 0.5}
    if kind == "BPEDecoder":
        return {"type": kind, "suffix": r.choice(["</w>", "e"])}
    if kind == "Sequence":
        return {"type": kind, "decoders": [] if depth > 1 else [decoder(r, depth + 1) for _ in range(r.randrange(1, 4))]}
    return {"type": kind}


def text(r: random.Random) -> str:
    def fragment() -> str:
        if r.random() < 0.75:
            return r.choice(FRAGMENTS)
        code = r.choice([r.randrange(0x20, 0x250), r.randrange(0x300, 0x370), r.randrange(0x250, 0x3100), r.randrange(0x110000)])
        return "" if 0xD800 <= code <= 0xDFFF else chr(code)

    return "".join(fragment() for _ in range(r.randrange(1, 9)))


def added_tokens(r: random.Random, tokenizer: dict) -> list[dict]:
    vocab = tokenizer["model"]["vocab"]
    known = {entry[0]: i for i, entry in enumerate(vocab)} if isinstance(vocab, list) else vocab
    taken = {token["content"]: token for token in tokenizer["added_tokens"]} if r.random() < 0.7 else {}
    for content in r.sample(["zebra", "zeb", " ", "  ", "éclair", "é", "E", "the", "<|endoftext|>", "<|end", "\n", "▁the", "😀", "日本", "'s", "a", " a", "x "], r.randrange(6)):
        taken[content] = {"content": content, **{key: r.random() < 0.4 for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}}
    result, newest = [], -1
    for token in taken.values():
        id = known.get(token["content"], max(len(known), newest + 1))
        newest = max(newest, id)
        result.append({**token, "id": id})
    return result


def main() -> None:
    out, count, seed = Path(sys.argv[1]), int((sys.argv[2:3] or ["500"])[0]), int((sys.argv[3:4] or ["0"])[0])
    bases = [json.loads(tokenizer.to_str()) for _, tokenizer in kinds()]
    found = []
    for number in range(count):
        r = random.Random(f"{seed} {number}")
        json_ = json.loads(json.dumps(r.choice(bases)))
        if r.random() < 0.6:
            json_["normalizer"] = normalizer(r) if r.random() < 0.8 else None
        if r.random() < 0.6:
            json_["pre_tokenizer"] = pre_tokenizer(r) if r.random() < 0.9 else None
        if r.random() < 0.4:
            json_["decoder"] = decoder(r) if r.random() < 0.9 else None
        model = json_["model"]
        if model["type"] == "BPE" and r.random() < 0.4:
            for key in ("fuse_unk", "byte_fallback", "ignore_merges"):
                if r.random() < 0.5:
                    model[key] = r.random() < 0.5
            kept = r.random()
            if kept < 0.5:  # characters that are unknown
                merged = {token for pair in model["merges"] for token in (*pair, "".join(pair))}
                model["vocab"] = {token: i for token, i in model["vocab"].items() if token in merged or len(token) > 1 or r.random() < kept}
                names = sorted(model["vocab"], key=model["vocab"].get)
                model["vocab"] = {token: i for i, token in enumerate(names)}
                model["unk_token"] = r.choice([None, names[0]])
                json_["added_tokens"] = []
        if r.random() < 0.6:
            json_["added_tokens"] = added_tokens(r, json_)
        try:
            tokenizer = Tokenizer.from_str(json.dumps(json_))
        except BaseException as error:
            print("Python refuses:", str(error)[:100])
            continue
        texts = [text(r) for _ in range(12)]
        found.append({"name": f"{seed}/{number}", "tokenizer": json_, "texts": texts, **answers(tokenizer, texts)})
    out.write_text(json.dumps({"kinds": found}))


main()
