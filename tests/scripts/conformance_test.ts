/** Items of the conformance list, and how they are judged. @module */
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { type ConformanceItem, ITEMS } from "../../scripts/conformance/items.ts";
import { judge } from "../../scripts/conformance/judge.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));
const item: ConformanceItem = { name: "_comm: a", shownBy: [["tests/a_test.ts", "gathers"], ["tests/b_test.ts", ""]] };

/** Outcomes under both runtimes. */
function results(state: "passed" | "failed" | "skipped", name = "it gathers twice") {
  return (["bun", "deno"] as const).flatMap((runtime) => [
    {
      runtime,
      file: "tests/a_test.ts",
      outcomes: [{ name, state, seconds: 1 }, { name: "another", state: "failed" as const, seconds: 1 }],
    },
    { runtime, file: "tests/b_test.ts", outcomes: [{ name: "all", state: "passed" as const, seconds: 1 }] },
  ]);
}

describe("conformance", () => {
  it("has items of their own names, whose tests are there", () => {
    assert.equal(new Set(ITEMS.map(({ name }) => name)).size, ITEMS.length);
    const files = ITEMS.flatMap((one) => "shownBy" in one ? one.shownBy.map(([file]) => file) : []);
    for (const file of new Set(files)) assert.ok(existsSync(root + file), file);
  });

  it("passes an item whose tests pass under every runtime, and no others", () => {
    const both = ["bun", "deno"];
    assert.deepEqual(judge(item, both, results("passed")), {
      name: "_comm: a",
      status: "pass",
      reason: "4 passed in tests/a_test.ts, tests/b_test.ts",
    });
    assert.match(judge(item, both, results("failed")).reason, /bun .*'it gathers twice' failed; deno .* failed$/);
    assert.equal(judge(item, both, results("skipped")).status, "fail");
    assert.match(judge(item, both, results("passed", "renamed")).reason, /bun tests\/a_test\.ts has no test 'gathers'/);
    assert.equal(judge(item, both, results("passed").slice(0, 2)).status, "fail", "it did not run under deno");
  });

  it("gives the reason of items that have no meaning", () => {
    const none = { name: "n", notApplicable: "GPU only" };
    assert.deepEqual(judge(none, [], []), { name: "n", status: "not applicable", reason: "GPU only" });
  });
});
