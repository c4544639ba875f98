"""Write src/data/tokenizers/unicode_tables.ts: the code points that Python's tokenizers classes otherwise than the Unicode
data of a JavaScript runtime does, each found by asking tokenizers itself.

Run: `pip install tokenizers==0.23.3 && python scripts/tokenizers/unicode.py && npm run format`.
"""

import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from tokenizers import Regex, normalizers, pre_tokenizers

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "src" / "data" / "tokenizers" / "unicode_tables.ts"
ALL = [code for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]


def where(holds: Callable[[str], bool]) -> list[int]:
    return [code for code in ALL if holds(chr(code))]


def ranges(codes: Iterable[int]) -> str:
    found: list[list[int]] = []
    for code in codes:
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return " ".join(f"{a:x}" if a == b else f"{a:x}-{b:x}" for a, b in found)


def matched(pattern: str) -> set[int]:
    left = set(normalizers.Replace(Regex(pattern), "").normalize_str("".join(map(chr, ALL))))
    return {code for code in ALL if chr(code) not in left}


# A mark of any class changes places with one of class 1 after it, or with one of class 240 before it.
AROUND = ("%s", "%s\u0334", "\u0345%s")


def changed_by_rust(char: str) -> bool:
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    return nfkd.normalize_str(char) != char or any(nfd.normalize_str(form % char) != form % char for form in AROUND)


# Code points that normalization changes or reorders in JavaScript, and the beginnings of what it joins to one.
JAVASCRIPT = """
const found = new Set(), starts = new Set();
for (let code = 0; code < 0x110000; code++) {
  if (code >= 0xd800 && code <= 0xdfff) continue;
  const char = String.fromCodePoint(code);
  const around = [char + "\\u0334", "\\u0345" + char];
  if (char.normalize("NFKD") !== char || around.some((text) => text.normalize("NFD") !== text)) found.add(code);
  if (char.normalize("NFD") !== char) starts.add([code, char.normalize("NFD").codePointAt(0)]);
}
console.log(JSON.stringify([[...found], [...starts]]));
"""


def newer_in_javascript() -> list[int]:
    command = ["node", "scripts/runtime.mjs", "bun", "-e", JAVASCRIPT]
    found, starts = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    newer = {code for code in found if not changed_by_rust(chr(code))}
    return sorted(newer | {start for code, start in starts if code in newer})


assigned = matched(r"\P{Cn}")
python_categories = pre_tokenizers.Punctuation()
bert = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
bert_accents = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
accents = normalizers.StripAccents()

TABLES = {
    "ASSIGNED": ("All code points that Oniguruma and Rust's regular expressions know: those of Unicode 16.", sorted(assigned)),
    "PUNCTUATION": (
        "Marks that `Punctuation` and `BertPreTokenizer` cut at.",
        where(lambda char: python_categories.pre_tokenize_str("a" + char)[0][0] == "a"),
    ),
    "CONTROL": ("What `BertNormalizer` removes as control characters.", where(lambda char: bert.normalize_str("a" + char) == "a")),
    "BERT_ACCENTS": (
        "What `BertNormalizer` removes as accents.",
        where(lambda char: bert_accents.normalize_str("a" + char) == "a"),
    ),
    "ACCENTS": ("What `StripAccents` removes.", where(lambda char: accents.normalize_str("a" + char) == "a")),
    "NEWER": (
        "What the normalization of Python's `tokenizers` neither changes nor reorders nor joins, and JavaScript's does.",
        newer_in_javascript(),
    ),
}

lines = [
    "/**",
    " * Code points that Python's `tokenizers` classes by Unicode data of its own, as ranges in hexadecimal. Written by",
    " * `scripts/tokenizers/unicode.py`.",
    " *",
    " * @module",
    " */",
]
for name, (comment, codes) in TABLES.items():
    text = ranges(codes)
    lines += ["", f"/** {comment} */", f"export const {name}: string ="]
    rows, row = [], ""
    for part in text.split(" "):
        if len(row) + len(part) > 112:
            rows.append(row)
            row = ""
        row += part + " "
    rows.append(row.rstrip())
    lines += [f'  "{row}"{" +" if i + 1 < len(rows) else ";"}' for i, row in enumerate(rows)]
OUT.parent.mkdir(exist_ok=True)
OUT.write_text("\n".join(lines) + "\n")
for name, (_, codes) in TABLES.items():
    print(name, len(codes), len(ranges(codes)))
