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
];
