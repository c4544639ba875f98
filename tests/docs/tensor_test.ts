/**
 * The page of tensor operations lists what there is: each method of a tensor and each function, and nothing else.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Tensor } from "../../mod.ts";
import * as create from "../../src/tensor/create.ts";
import * as functional from "../../src/nn/functional.ts";

/** Members that only the library uses. */
const INTERNAL = ["heldBytes", ...[
  "constructor",
  "layout",
  "buffer",
  "ptr",
  "edge",
  "setEdge",
  "requireAlive",
  "rebind",
], ...[
  "spawn",
  "view",
  "alias",
  "absorb",
]];

const page = readFileSync(new URL("../../docs/tensor.md", import.meta.url), "utf8");
const rows = page.split("\n").filter((line) => /^\| [^-]/.test(line)).map((line) =>
  line.split("|").map((c) => c.trim())
);
/** The text in the column of our names. */
const ours = rows.flatMap(([, , here = ""]) => [...here.matchAll(/`([^`]+)`/g)].map(([, code = ""]) => code));

/** The files in which a tensor's class and its bases are written. */
function prototypes(): object[] {
  const found: object[] = [];
  for (let at: object = Tensor.prototype; at !== Object.prototype; at = Object.getPrototypeOf(at)) found.push(at);
  return found;
}

function members(): string[] {
  const names = prototypes().flatMap((at) => Object.getOwnPropertyNames(at));
  return names.filter((name) => !INTERNAL.includes(name));
}

test("docs/tensor.md lists each method of a tensor once, and none that is not there", () => {
  const listed = ours.filter((code) => code.startsWith("x.")).map((code) => code.replace(/^x\.(\w+).*$/, "$1"));
  assert.deepEqual(listed.toSorted(), members().toSorted());
});

test("docs/tensor.md lists each function once, and none that is not there", () => {
  const listed = ours.filter((code) => !code.startsWith("x.")).map((code) => code.replace(/\(.*$/, ""));
  const functions = Object.entries({ ...create, ...functional }).filter(([, value]) => typeof value === "function");
  assert.deepEqual(listed.toSorted(), functions.map(([name]) => name).toSorted());
});

test("docs/tensor.md names the parameters of methods as they are", () => {
  const methods = new Map<string, unknown>(
    prototypes().flatMap((at) => Object.entries(Object.getOwnPropertyDescriptors(at)))
      .map(([name, { value }]) => [name, value]),
  );
  let compared = 0;
  for (const code of ours) {
    const [, name = "", list = "…"] = /^x\.(\w+)\((.*)\)$/.exec(code) ?? [];
    const method = methods.get(name);
    // Numbers and what is left out are examples; comparisons and arithmetic call the other tensor y.
    if (typeof method !== "function" || /…|\d|\by\b/.test(list)) continue;
    const own = /\(([^)]*)\)/.exec(String(method))?.[1]?.split(",").map((one) => one.split("=")[0]?.trim()).join(", ");
    assert.equal(list, own, code);
    compared++;
  }
  assert.ok(compared > 25, `${compared} were compared`);
});
