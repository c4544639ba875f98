/**
 * Every op by generated cases: in each dtype that it takes, of inputs that other ops computed, lying in memory in many ways, some
 * frozen or one tensor twice, and with gradients that arrive in many ways. The gate compares cases with what PyTorch gave, as
 * `tests/fuzz/make.ts` stored it, and further cases with their plain form: float32, dense, of leaves. `--all` compares 100,000: with
 * PyTorch where `PEER_PYTHON` names a Python that has it, else with their plain form.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import process from "node:process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { OPS } from "../../src/device/kernels/signature.ts";
import { openNativeDevice } from "../../src/device/native/device.ts";
import { openWasmDevice } from "../../src/device/wasm/device.ts";
import { binaryOp, unaryOp } from "../../src/ops/elementwise.ts";
import { compareOp } from "../../src/ops/mask.ts";
import { available } from "../support/available.ts";
import { CheckedDevice } from "../support/checked_device.ts";
import { onlyInAll } from "../support/share.ts";
import { type Case, makeCase } from "./cases.ts";
import { type Difference, type Expected, hashOf, readExpected } from "./expected.ts";
import { againstExpected, againstPlain } from "./compare.ts";
import { FUZZ_OPS } from "./ops.ts";
import { askPeer } from "./peer.ts";

const memoryBytes = 2 ** 24;
const fixture = new URL("../fixtures/fuzz/expected.bin", import.meta.url);
const expected = readExpected(new Uint8Array(readFileSync(fixture)));
/** Cases that are compared with their plain form in the gate, and all of `--all`. */
const [PLAIN_CASES, ALL_CASES] = [4000, 100_000];
const python = process.env["PEER_PYTHON"];

const wasm = await openWasmDevice({ cpuMath: "wasm", memoryBytes });
const native = await available(openNativeDevice({ memoryBytes }));

function casesFrom(first: number, count: number): Case[] {
  return Array.from({ length: count }, (_, i) => makeCase(first + i, FUZZ_OPS, wasm));
}

/** Fails with all cases that differ. */
function refuse(cases: readonly Case[], compare: (one: Case, i: number) => Difference): void {
  const wrong: string[] = [];
  for (const [i, one] of cases.entries()) {
    const { share, text } = compare(one, i);
    if (share > 1) wrong.push(`${share.toPrecision(3)} times what is allowed: ${text}: ${one.line}`);
  }
  assert.equal(wrong.length, 0, `${wrong.length} of ${cases.length} cases differ:\n${wrong.slice(0, 5).join("\n")}`);
}

test("every op of src/ops is fuzzed: an op without an entry in tests/fuzz fails here", async () => {
  const folder = new URL("../../src/ops/", import.meta.url);
  const records: { readonly name: string; readonly record: object }[] = [
    ...OPS.unaryOp.map((name) => ({ name, record: unaryOp(name) })),
    ...OPS.binaryOp.map((name) => ({ name, record: binaryOp(name) })),
    ...OPS.compareOp.map((name) => ({ name, record: compareOp(name) })),
  ];
  for (const file of readdirSync(fileURLToPath(folder))) {
    const exported: Readonly<Record<string, unknown>> = await import(new URL(file, folder).href);
    for (const [name, record] of Object.entries(exported)) {
      const isRecord = typeof record === "object" && record !== null && "name" in record &&
        ("forward" in record || "view" in record);
      if (isRecord) records.push({ name, record });
    }
  }
  assert.ok(records.length > 70, "the records were found");
  const fuzzed = new Set([...FUZZ_OPS.values()].map(({ record }) => record));
  assert.deepEqual(records.filter(({ record }) => !fuzzed.has(record)).map(({ name }) => name), []);
});

test("the fixture is of the cases that are generated, and has some thousands of all ops", () => {
  assert.ok(expected.length >= 5000);
  for (const [i, { line, text }] of casesFrom(0, expected.length).entries()) {
    const found = expected[i];
    assert.equal(found?.hash, hashOf(line), `case ${i} (${text.op}) is another one: run tests/fuzz/make.ts`);
  }
});

for (const [name, device] of [["wasm", wasm], ["native", native]] as const) {
  const options = { skip: device === undefined && "native kernels do not run here" };
  test(`${expected.length} cases are what PyTorch computes, on ${name} kernels`, options, () => {
    if (device === undefined) return;
    refuse(casesFrom(0, expected.length), (one, i) => againstExpected(device, one, expected[i]));
  });
}

test("cases touch allocated memory only, and overlap nothing", async () => {
  const checked = new CheckedDevice(await openWasmDevice({ cpuMath: "wasm", memoryBytes }));
  refuse(casesFrom(0, expected.length), (one, i) => {
    return i % 3 === 0 ? againstExpected(checked, one, expected[i]) : { share: 0, text: "left out" };
  });
  const idle = Object.keys(checked.kernels).filter((kernel) => !checked.calls.has(kernel));
  // Weights of `gemmQuantized` are no tensors that an op could compute.
  const needed = idle.filter((kernel) => /backward|attention|softmax|gemm/i.test(kernel) && kernel !== "gemmQuantized");
  assert.deepEqual(needed, [], "kernels that ran");
});

test(`${PLAIN_CASES} further cases are what their plain form is`, () => {
  refuse(casesFrom(expected.length, PLAIN_CASES), (one) => againstPlain(native ?? wasm, one));
});

const CHUNK = 20_000;
for (const first of onlyInAll(Array.from({ length: ALL_CASES / CHUNK }, (_, i) => i * CHUNK))) {
  const by = python === undefined ? "their plain form is" : "PyTorch computes";
  test(`cases ${first} to ${first + CHUNK - 1} of ${ALL_CASES} are what ${by}`, () => {
    const cases = casesFrom(2 ** 20 + first, CHUNK);
    if (python === undefined) return refuse(cases, (one) => againstPlain(native ?? wasm, one));
    const answers: Expected[] = readExpected(askPeer(python, cases));
    refuse(cases, (one, i) => againstExpected(native ?? wasm, one, answers[i]));
  });
}
