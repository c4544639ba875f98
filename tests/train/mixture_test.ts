/** Runs on mixtures of sources, seen from outside: the same bits on any number of ranks and after a resume, and what is refused. @module */
import assert from "node:assert/strict";
import { after } from "node:test";
import { fileURLToPath } from "node:url";
import { gzipSync, zstdCompressSync } from "node:zlib";
import { sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { keepRanks } from "./kept_ranks.ts";
import { essence, metricLines } from "./runs.ts";

const kept = keepRanks();
after(() => kept[Symbol.dispose]());
const { run } = kept;

const fixture = (name: string): string => fileURLToPath(new URL(`../fixtures/${name}`, import.meta.url));
const rowsOf = (count: number, mark: string): string =>
  Array.from(
    { length: count },
    (_, i) => `${JSON.stringify({ prompt: `${mark}${i}?`, completion: ` ${mark.repeat(1 + i)}` })}\n`,
  )
    .join("");

test(
  "a run on a mixture gives the same bits on one and two ranks, and resumed in its middle",
  { timeout: 120_000 },
  async () => {
    using folder = temporaryDirectory();
    const packed = [
      folder.write("a.jsonl.gz", gzipSync(rowsOf(12, "a"))),
      folder.write("b.jsonl.zst", zstdCompressSync(rowsOf(5, "b"))),
    ];
    const flags = (out: string, ...more: readonly string[]): readonly string[] => [
      ...[
        "vocab=512",
        "--data",
        `${packed[0]}:2`,
        "--data",
        `${packed[1]}:1`,
        "--data",
        `${fixture("parquet/texts.parquet")}:1`,
      ],
      ...[
        "--tokenizer",
        fixture("chat/bytes"),
        "--chat-template",
        fixture("chat/templates/chatml.jinja"),
        "--steps",
        "6",
      ],
      ...[
        "--global-batch",
        "4",
        "--sequence-length",
        "64",
        "--packing",
        "none",
        "--sample-tokens",
        "0",
        "--log-every",
        "1",
      ],
      ...["--cache", folder.file("cache"), "--out", folder.file(out), ...more],
    ];
    const two = await run(flags("two"));
    assert.equal(two.code, 0, two.stderr);
    assert.match(
      two.stderr,
      /A mixture of samples of 64 tokens at most, of '.*a\.jsonl\.gz' 50\.0 %, '.*b\.jsonl\.zst' 25\.0 %, '.*parquet' 25\.0 %: an epoch is 30 steps/,
    );
    const expected = metricLines(folder, "two").map(essence);
    assert.equal(expected.length, 6);
    const one = await run(flags("one", "--micro-batches", "2"), { ranks: 1 });
    assert.equal(one.code, 0, one.stderr);
    assert.deepEqual(metricLines(folder, "one").map(essence), expected);
    assert.equal((await run(flags("half", "--stop-after", "3"))).code, 0);
    assert.equal((await run(flags("half", "--resume", "auto", "--micro-batches", "2"), { ranks: 1 })).code, 0);
    assert.deepEqual(metricLines(folder, "half").map(essence), expected);
    const wrong = await run(flags("wrong", "--eval-data", `${packed[0]}:2`, "--eval-every", "2"), { ranks: 1 });
    assert.equal(wrong.code, 2);
    assert.match(wrong.stderr, /evalData: expected sources without weights, as an evaluation takes each sample once/);
  },
);
