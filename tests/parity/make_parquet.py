"""Writes tests/fixtures/parquet: small Parquet files of pyarrow, and their rows as JSON lines. Run: python tests/parity/make_parquet.py"""

import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

OUT = pathlib.Path(__file__).parent.parent / "fixtures" / "parquet"
CODECS = ["none", "snappy", "gzip", "brotli", "lz4", "zstd"]


def without_none(value):
    """As TRL's remove_none_values: Arrow gives each structure of a list the fields of all of them."""
    if isinstance(value, list):
        return [without_none(item) for item in value]
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return value


def write_rows(name, rows):
    lines = [json.dumps(without_none(row), ensure_ascii=False) for row in rows]
    (OUT / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def chats():
    rows = []
    for i in range(40):
        call = [{"function": {"name": "add", "arguments": f"{i}"}}] if i % 4 == 0 else None
        rows.append({
            "messages": [
                {"role": "user", "content": f"What is {i} + 1? é😀", "tool_calls": None},
                {"role": "assistant", "content": f"It is {i + 1}.", "tool_calls": call},
            ],
            "score": i if i % 3 else None,
            "ratio": i / 4,
            "tags": [f"t{j}" for j in range(i % 3)],
            "junk": "x" * 50,
        })
    return rows


def main():
    OUT.mkdir(exist_ok=True)
    rows = chats()
    table = pa.Table.from_pylist(rows)
    for codec in CODECS:
        pq.write_table(table, OUT / f"chats-{codec}.parquet", compression=codec, row_group_size=16)
    pq.write_table(table, OUT / "chats-v2.parquet", data_page_version="2.0", row_group_size=7, data_page_size=64,
                   write_page_index=True, use_dictionary=False, column_encoding=None)
    write_rows("chats.jsonl", pa.Table.to_pylist(table))
    # One row group of small pages, of which the file has no index; those of the first version begin inside of rows.
    for name, more in [("v1", {"use_dictionary": False}), ("v1-dictionary", {}), ("v2", {"data_page_version": "2.0"})]:
        pq.write_table(table, OUT / f"pages-{name}.parquet", data_page_size=64, write_batch_size=3, **more)

    texts = [f"Document {i}. " * (i % 5 + 1) for i in range(30)]
    pq.write_table(pa.table({"id": list(range(30)), "text": texts}), OUT / "texts.parquet", row_group_size=8)
    write_rows("texts.jsonl", [{"text": text} for text in texts])

    pq.write_table(pa.table({"id": [1, 2], "body": ["a", "b"]}), OUT / "columns.parquet")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), OUT / "empty.parquet")
    raw = pa.array([b"good", b"b\xffd", b"fine"], pa.binary())
    pq.write_table(pa.table({"text": raw}), OUT / "latin1.parquet", use_dictionary=False)
    long = pa.table({"text": ["short", "x" * 50_000_001, "last"]})
    pq.write_table(long, OUT / "long.parquet", compression="zstd", use_dictionary=False, write_statistics=False)
    pq.write_table(pa.table({"text": ["a"], "big": [2**60]}), OUT / "big.parquet")
    # Unpacked, one row group of 1 GiB in pages of 1 MiB, and one whose only page is larger than 1 GiB.
    huge = pa.table({"text": ["x" * 2**20] * 2**10})
    pq.write_table(huge, OUT / "huge-group.parquet", compression="zstd", use_dictionary=False, write_statistics=False,
                   write_batch_size=1)
    huge = pa.table({"text": ["x" * 2**25] * 33})
    pq.write_table(huge, OUT / "huge-page.parquet", compression="zstd", use_dictionary=False, write_statistics=False)


main()
