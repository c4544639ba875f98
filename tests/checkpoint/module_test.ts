/** Modules of one's own in files: saved by any number of ranks, loaded by any other, refused before anything is written. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import * as fs from "node:fs";
import { describe } from "node:test";
import { fileURLToPath } from "node:url";
import { RUNTIME } from "../support/rank_process.ts";
import { sharedTest as it } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { valuesOf, world } from "../support/world.ts";
import { type Cut, load, refuse, save, type Saving } from "./module_ranks.ts";

const NAMES = ["head.weight", "in_layer.bias", "layers.0.bias", "layers.0.weight", "layers.1.weight"];
const STORED = [...NAMES, "running_mean", "scale"];

/** Names of a safetensors file's tensors, by the format's description. */
function namesIn(file: string): readonly string[] {
  const bytes = fs.readFileSync(file);
  const header: unknown = JSON.parse(bytes.toString("utf8", 8, 8 + Number(bytes.readBigUInt64LE(0))));
  return Object.keys(Object(header)).filter((name) => name !== "__metadata__").sort();
}

describe("a module of one's own", () => {
  const cases: readonly (readonly [Saving["by"], Cut, number, readonly (readonly [Cut, number])[]])[] = [
    ["module", "in units", 3, [["plain", 1], ["sharded", 2], ["replicated", 2]]],
    ["module", "plain", 1, [["in units", 4]]],
    ["directory", "replicated", 2, [["sharded", 3]]],
    ["checkpoint", "sharded", 2, [["in units", 3], ["plain", 1]]],
    ["async", "in units", 2, [["sharded", 3]]],
  ];

  for (const [by, cut, size, loads] of cases) {
    it(`is saved by ${size} ranks, ${cut}, and loaded by others: ${by}`, async () => {
      using folder = temporaryDirectory();
      const directory = folder.file("saved");
      valuesOf(await world(size, save, { data: { by, cut, directory } }));
      for (const [other, ranks] of loads) {
        for (const isFresh of by === "checkpoint" ? [false] : [true, false]) {
          const data = { by, cut: other, directory, isFresh };
          for (const { loaded, expected } of valuesOf(await world(ranks, load, { data }))) {
            assert.deepEqual(loaded, expected);
          }
        }
      }
      if (by !== "module") return;
      assert.deepEqual(namesIn(`${directory}/model.safetensors`), STORED);
      assert.deepEqual(JSON.parse(fs.readFileSync(`${directory}/config.json`, "utf8")), {
        inputs: 5,
        dtype: "float32",
      });
    });
  }

  it("is merged of a checkpoint, each tensor under its name", async () => {
    using folder = temporaryDirectory();
    const directory = folder.file("saved");
    valuesOf(await world(2, save, { data: { by: "checkpoint" as const, cut: "sharded" as const, directory } }));
    const bin = fileURLToPath(new URL("../../bin/fullyshard.mjs", import.meta.url));
    const merged = folder.file("merged");
    const args = [bin, "--runtime", RUNTIME, "merge", `${directory}/checkpoint-1`, merged];
    const { status, stderr } = spawnSync("node", args, { encoding: "utf8" });
    assert.equal(status, 0, stderr);
    assert.deepEqual(namesIn(`${merged}/model.safetensors`), STORED);
    const data = { by: "module" as const, cut: "in units" as const, directory: merged, isFresh: true };
    for (const { loaded, expected } of valuesOf(await world(3, load, { data }))) assert.deepEqual(loaded, expected);
  });

  it("that cannot be saved is refused by every save before anything is written", async () => {
    using folder = temporaryDirectory();
    const directory = folder.file("none");
    for (const said of valuesOf(await world(2, refuse, { data: directory }))) {
      const expected: Readonly<Record<string, RegExp>> = {
        hidden: /Field 'map' is a Map, whose modules and parameters are not part of the model/,
        twice: /Two parameters are named 'inner_layer\.weight': fields become snake_case, so rename one/,
        empty: /Cannot save Empty: it has no parameters and no buffers/,
        "no values": /Cannot save 'head\.weight': it has no values; initialize or load it first/,
        alone: /Cannot save '.*' alone as this rank holds \d+ of its \d+ elements: give the group of the ranks/,
        handle: /Cannot save an instance of FullyShardedModule: expected a Module, such as the model itself/,
        "no group":
          /^ArgumentError: Cannot (save|load) .* with group an object: expected the group itself, not in an object/,
        "a number": /^ArgumentError: Cannot .* with group 2: expected the ranks that hold the model, e\.g\. run\.group/,
        missing: /none: Expected a directory with weights, got none/,
      };
      for (const [name, pattern] of Object.entries(expected)) {
        for (const text of said[name] ?? []) assert.match(text, pattern, name);
      }
      assert.deepEqual(Object.keys(said).sort(), Object.keys(expected).sort());
    }
    assert.ok(!fs.existsSync(directory));
  });
});
