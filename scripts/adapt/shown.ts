/**
 * Items that tests show by fixtures of the reference: `tests/parity/make_optimizers.py` and `make_quantized.py` make them, and need
 * bitsandbytes, which the peer of a run need not have.
 *
 * @module
 */
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { fileURLToPath } from "node:url";
import type { ConformanceItem, Tests } from "../conformance/items.ts";
import { judge } from "../conformance/judge.ts";
import type { JobResult } from "../run_tests.ts";
import { type AdaptItem, type Outcome, verdict } from "./item.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));

function runTests(files: readonly string[]): readonly JobResult[] {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-adapt-`);
  try {
    const report = `${folder}/report.json`;
    const args = ["scripts/runtime.mjs", "bun", "scripts/run_tests.ts", "--runtime", "bun", "--report", report];
    spawnSync("node", [...args, ...files], { cwd: root, stdio: ["ignore", "ignore", "inherit"] });
    return JSON.parse(readFileSync(report, "utf8"));
  } finally {
    rmSync(folder, { recursive: true });
  }
}

async function judged(name: string, shownBy: readonly Tests[]): Promise<Outcome> {
  const item: ConformanceItem = { name, shownBy };
  const results = runTests([...new Set(shownBy.map(([file]) => file))]);
  const { status, reason } = judge(item, ["bun"], results);
  return verdict(status === "pass" ? [] : [reason], { tests: reason });
}

function shown(name: string, ...shownBy: readonly Tests[]): AdaptItem {
  return { name, run: () => judged(name, shownBy) };
}

const optimizers = "tests/optim/families_test.ts";
const quantized = "tests/adapters/quantized_test.ts";
const documents = "tests/models/documents_pytorch_test.ts";
const inspected = "tests/cli/inspect_data_test.ts";
const rows = "tests/data/rows/rows_test.ts";
const parquet = "tests/data/rows/parquet_test.ts";
const streams = "tests/data/stream_test.ts";

/** Objectives whose runs have the same bits sharded, replicated and resumed, with their tests. */
const OBJECTIVES: readonly (readonly [name: string, file: string, test: string])[] = [
  ["ORPO", "tests/train/odds_ratio_test.ts", "gives the same bits"],
  ["KTO", "tests/train/labeled_test.ts", "gives the same bits"],
  ["a teacher", "tests/train/distillation_test.ts", "gives the same bits"],
];

/** The items. */
export const SHOWN: readonly AdaptItem[] = [
  shown("Muon follows torch.optim for 10 steps", [optimizers, "Muon 'muon"]),
  shown("Adafactor follows torch.optim for 10 steps", [optimizers, "Adafactor 'adafactor"]),
  shown("Lion follows bitsandbytes for 10 steps", [optimizers, "Lion 'lion"]),
  shown("AdamW with 8-bit states follows bitsandbytes for 10 steps", [optimizers, "AdamW8bit 'adamw8bit"]),
  shown(
    "NF4 has bitsandbytes' table and layout, and PEFT's losses beside it",
    [quantized, "stores the bytes that bitsandbytes stores"],
    [quantized, "quantizes magnitudes as bitsandbytes does"],
    [quantized, "has the losses of PEFT beside what bitsandbytes dequantizes"],
  ),
  shown("a row of several documents is what transformers computes with a mask of blocks", [
    documents,
    "documentStarts give",
  ]),
  ...OBJECTIVES.map(([name, file, test]) =>
    shown(`FSDP = DDP = accumulation to the bit, and resumed: ${name}`, [file, test])
  ),
  shown(
    "a teacher's divergences are those of TRL's GKDTrainer and of PyTorch",
    ["tests/train/distillation_test.ts", "has the losses of PyTorch"],
  ),
  shown(
    "streamed rows are taken once, on any number of ranks, and after a resume on another",
    [streams, "give each row once in an epoch"],
    [streams, "goes on from a step on another number"],
    ["tests/train/stream_test.ts", "goes on from a checkpoint on the other number"],
  ),
  shown(
    "multiple choice has transformers' log-likelihoods, behind examples and under a chat template",
    ["tests/cli/eval_test.ts", "gives choices the log-likelihoods of transformers"],
  ),
  shown(
    "hostile files are refused by file and place: Parquet without the column or cut off, gzip and zstd cut off, 50 MB, no UTF-8",
    [parquet, "names the columns that are there"],
    [parquet, "refuses a file that was cut off"],
    [rows, "does not keep a row of more than 50 MB"],
    [rows, "names file and place of a file that is cut off or broken"],
    [rows, "reads all frames of zstd, and refuses"],
    [rows, "gives rows that cannot be read"],
    ["tests/data/documents_test.ts", "names the byte that is not UTF-8"],
  ),
  shown(
    "hostile chats are refused by file and line: no assistant, a template that throws or rewrites, none at all, one of another tokenizer",
    [inspected, "refuses"],
    [inspected, "names marks of a template that the tokenizer has no token for"],
    ["tests/train/chats_test.ts", "refuses a row without a target by file and line"],
  ),
  shown(
    "a step in which no token has a label has no loss and no NaN",
    ["tests/train/step_test.ts", "with no label at all has no loss and no gradient"],
  ),
];
