/**
 * Makes tests/fixtures/fuzz/expected.bin, or only compares: `PEER_PYTHON=python bun tests/fuzz/make.ts [first count]` writes the
 * fixture, of the numbers from 0 on, or with two numbers compares the cases from `first` on with PyTorch. Prints by op and dtype
 * how many cases there are, and what share of the allowed distance the worst one takes.
 *
 * @module
 */
import { mkdirSync, writeFileSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { openDevice } from "../../src/device/registry.ts";
import { makeCase } from "./cases.ts";
import { againstExpected } from "./compare.ts";
import { readExpected } from "./expected.ts";
import { FUZZ_OPS } from "./ops.ts";
import { askPeer } from "./peer.ts";

/** Cases of the fixture. */
const STORED = 6000;

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

const python = process.env["PEER_PYTHON"];
if (python === undefined) throw new Error("PEER_PYTHON: expected a Python that has torch, got nothing");
const [first, count] = process.argv.slice(2).map(Number);
const isFixture = first === undefined || count === undefined;
const device = await openDevice("cpu", { memoryBytes: 2 ** 24 });
const [from, length] = isFixture ? [0, STORED] : [first, count];
const cases = Array.from({ length }, (_, i) => makeCase(from + i, FUZZ_OPS, device));
const bytes = askPeer(python, cases);
if (isFixture) {
  const folder = new URL("../fixtures/fuzz/", import.meta.url);
  mkdirSync(fileURLToPath(folder), { recursive: true });
  writeFileSync(new URL("expected.bin", folder), bytes);
}
const rows = new Map<string, { cases: number; refused: number; different: number; worst: number }>();
const expected = readExpected(bytes);
for (const [i, one] of cases.entries()) {
  const { share, text } = againstExpected(device, one, expected[i]);
  const name = `${one.text.op} ${one.text.dtype}`;
  const row = rows.get(name) ?? { cases: 0, refused: 0, different: 0, worst: 0 };
  row.cases++;
  if (expected[i]?.arrays === undefined) row.refused++;
  if (share > 1) {
    row.different++;
    print(`${name}: ${share.toPrecision(3)} times what is allowed: ${text}: ${one.line}`);
  }
  row.worst = Math.max(row.worst, share);
  rows.set(name, row);
}
for (const [name, row] of [...rows].sort(([a], [b]) => a < b ? -1 : 1)) {
  const { cases: n, refused, different, worst } = row;
  print(
    `${name.padEnd(36)} ${n} cases, ${refused} refused, ${different} different, worst ${worst.toPrecision(2)}`,
  );
}
print(`${cases.length} cases, ${bytes.length} bytes`);
