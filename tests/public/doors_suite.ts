/**
 * The public API as a program sees it: the values and signatures of each door. `doors_test.ts` runs this where JSR answers, from
 * which `@std/testing` comes. After a change that is meant: `deno test -A tests/public/doors_suite.ts -- --update`.
 *
 * @module
 */
import { describe, it } from "@std/testing/bdd";
import { assertSnapshot } from "@std/testing/snapshot";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";

const root = new URL("../../", import.meta.url);
const { exports }: { exports: Record<string, string> } = JSON.parse(readFileSync(new URL("deno.json", root), "utf8"));

/** The lines of `deno doc` that declare something; comments and members are indented. */
function signaturesOf(file: string): readonly string[] {
  const args = ["doc", "--quiet", fileURLToPath(new URL(file, root))];
  const text = execFileSync(process.execPath, args, { encoding: "utf8", env: { ...process.env, NO_COLOR: "1" } });
  return text.split("\n").filter((line) =>
    /^(?:(?:abstract )?class|const|enum|(?:async )?function|interface|type) /.test(line)
  );
}

for (const [name, file] of Object.entries(exports).filter(([name]) => name !== "./cli")) {
  describe(`fullyshard${name.slice(1)}`, () => {
    it("exports these values", async (context) => {
      const door: Readonly<Record<string, unknown>> = await import(new URL(file, root).href);
      await assertSnapshot(context, Object.keys(door).sort());
    });

    it("has these signatures", async (context) => {
      await assertSnapshot(context, signaturesOf(file));
    });
  });
}
