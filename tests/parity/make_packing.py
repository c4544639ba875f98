"""Rows that TRL packs of documents of some lengths, as tests/fixtures/packing.json. Needs trl.

python tests/parity/make_packing.py
"""

import json
import random
from pathlib import Path

from datasets import Dataset
from trl import pack_dataset

FIXTURE = Path(__file__).parent.parent / "fixtures" / "packing.json"
STRATEGIES = ("bfd", "bfd_split")


def packed(lengths, seq_length, strategy):
    """Each row as pairs of a document and of how many of its tokens are before; a token tells both."""
    ids = [[document * 1000 + i for i in range(length)] for document, length in enumerate(lengths)]
    rows = pack_dataset(Dataset.from_dict({"input_ids": ids}), seq_length, strategy)
    found = []
    for row_ids, row_lengths in zip(rows["input_ids"], rows["seq_lengths"]):
        parts, at = [], 0
        for length in row_lengths:
            parts.append([row_ids[at] // 1000, row_ids[at] % 1000, length])
            at += length
        found.append(parts)
    return found


def main():
    draw = random.Random(7)
    cases = []
    for count, longest, seq_length in [(5, 4, 4), (60, 20, 16), (120, 90, 64), (150, 40, 64), (40, 200, 33)]:
        lengths = [draw.randint(0 if i % 17 == 3 else 1, longest) for i in range(count)]
        rows = {strategy: packed(lengths, seq_length, strategy) for strategy in STRATEGIES}
        cases.append({"lengths": lengths, "sequenceLength": seq_length, **rows})
    FIXTURE.write_text(json.dumps(cases, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
