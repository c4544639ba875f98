"""Train the example tokenizer: a byte-level BPE with 4096 entries on TypeScript's own lib*.d.ts files.

Run from anywhere: `python scripts/train_tokenizer.py [--check]`. Needs `pip install tokenizers==0.23.3` and the
project's `npm install`. Writes examples/data/tokenizer.json and tokenizer_config.json; the result depends only on the
version of the `typescript` package, so `--check` retrains and fails if the committed files differ.
"""

import argparse
import json
import sys
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "examples" / "data"
END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 4096

# Llama 3's word pattern: contractions, words with one leading mark, at most three digits, marks, line ends, blanks.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)


def corpus() -> list[Path]:
    """The lib*.d.ts files of whichever platform package of TypeScript is installed, sorted by name."""
    packages = sorted((ROOT / "node_modules" / "@typescript").glob("typescript-*/lib"))
    for folder in packages:
        files = sorted(folder.glob("lib*.d.ts"), key=lambda path: path.name)
        if files:
            return files
    sys.exit("No lib*.d.ts under node_modules/@typescript: run `npm install` first")


def train(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def render(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead of writing them")
    args = parser.parse_args()

    texts = [path.read_text(encoding="utf-8") for path in corpus()]
    tokenizer = train(texts)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        sys.exit(f"Expected {VOCAB_SIZE} entries, got {tokenizer.get_vocab_size()}")

    files = {
        "tokenizer.json": render(json.loads(tokenizer.to_str())),
        "tokenizer_config.json": render({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": END_OF_TEXT,
            "clean_up_tokenization_spaces": False,
        }),
    }
    OUT.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = OUT / name
        if not args.check:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.relative_to(ROOT)} differs from what this script makes")
    tokens = sum(len(tokenizer.encode(text).ids) for text in texts)
    print(f"{len(texts)} files, {sum(len(t.encode()) for t in texts)} bytes, {tokens} tokens")


if __name__ == "__main__":
    main()
