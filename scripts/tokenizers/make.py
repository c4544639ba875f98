"""Write tests/fixtures/tokenizer/kinds.json: small tokenizers of all kinds, awkward texts, and what Python makes of them;
and classes.json: which characters Oniguruma's classes match.

Run: `pip install tokenizers==0.23.3 && python scripts/tokenizers/make.py`.
"""

import hashlib
import json
import sys
from pathlib import Path

from kinds import TEXTS, answers, kinds
from tokenizers import Regex, pre_tokenizers

CLASSES = [
    *(rf"\p{{{name}}}" for name in (
        "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Co Cn Alphabetic Uppercase "
        "Lowercase White_Space Han Hiragana Katakana Hangul Latin Cyrillic Greek Arabic Hebrew Thai Devanagari"
    ).split()),
    *r"\s \S \d \D \w \W [\w] [\W] [^\w] [\s\S] . \h \P{L} \p{^N} [^\s\p{L}\p{N}] [^\r\n\p{L}\p{N}] [\p{L}\p{M}] [[:alpha:]] [[:space:]]".split(),
    *r"[[:upper:]] [[:lower:]] [[:digit:]] [\p{L}&&[^\p{Han}]] [^\p{L}&&[^abc]] (?i:s) (?i:K) (?i:[a-z]) (?i:[sdmt]) (?i:x|y) [!-~] [一-龥]".split(),
]
EVERY = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF)


def matched(pattern: str) -> dict[str, object]:
    pieces = pre_tokenizers.Split(Regex(pattern), "removed", invert=True).pre_tokenize_str(EVERY)
    text = "".join(piece for piece, _ in pieces)
    return {"count": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}


OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2] / "tests/fixtures/tokenizer/kinds.json"
found = [{"name": name, "tokenizer": json.loads(tokenizer.to_str()), **answers(tokenizer, TEXTS)} for name, tokenizer in kinds()]
OUT.write_text(json.dumps({"texts": TEXTS, "kinds": found}, ensure_ascii=True, separators=(",", ":")) + "\n")
print(len(found), "kinds", len(TEXTS), "texts", OUT.stat().st_size, "bytes")
classes = OUT.with_name("classes.json")
classes.write_text(json.dumps({pattern: matched(pattern) for pattern in CLASSES}, separators=(",", ":"), ensure_ascii=True) + "\n")
