/**
 * The public names with their declarations, as `deno doc --json` tells them.
 *
 * @module
 */
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";
import * as z from "zod";
import { type Declaration, declarationOf } from "./declaration.ts";

const ROOT = fileURLToPath(new URL("../../..", import.meta.url));

/** A public name. */
export interface ApiName {
  readonly name: string;
  /** The page of the name, from the root of the site. */
  readonly path: string;
  /** Several for a function with overloads, or a type beside a value. */
  readonly declarations: readonly Declaration[];
}

/** A module that programs import from. */
export interface Door {
  /** As programs import it: `fullyshard/nn`. */
  readonly door: string;
  readonly names: readonly ApiName[];
}

const output = z.object({
  nodes: z.record(
    z.string(),
    z.looseObject({
      symbols: z.array(z.object({ name: z.string(), declarations: z.array(z.looseObject({ kind: z.string() })) })),
    }),
  ),
});

/** Reads the names of all doors. */
export function readApi(): readonly Door[] {
  const { exports }: { exports: Record<string, string> } = JSON.parse(readFileSync(`${ROOT}deno.json`, "utf8"));
  const doors = Object.entries(exports).filter(([name]) => name !== "./cli")
    .map(([name, file]) => ({ door: `fullyshard${name.slice(1)}`, file: file.slice(2) }));
  const text = execFileSync(
    "node",
    ["scripts/runtime.mjs", "deno", "doc", "--quiet", "--json", ...doors.map(({ file }) => file)],
    { cwd: ROOT, encoding: "utf8", env: { ...process.env, NO_COLOR: "1" }, maxBuffer: 2 ** 26 },
  );
  const { nodes } = output.parse(JSON.parse(text));
  return doors.map(({ door, file }) => {
    const found = Object.entries(nodes).find(([url]) => url.endsWith(`/${file}`))?.[1];
    if (found === undefined) throw new Error(`deno doc says nothing of ${file}`);
    const symbols = found.symbols.toSorted((a, b) => a.name < b.name ? -1 : 1);
    const taken = new Set<string>();
    return {
      door,
      names: symbols.map(({ name, declarations }) => {
        // Some hosts take 'Tensor.html' and 'tensor.html' for one file.
        const isTaken = taken.has(name.toLowerCase());
        taken.add(name.toLowerCase());
        const path = `api/${door.replace("fullyshard/", "")}/${name}${isTaken ? "-value" : ""}.html`;
        return { name, path, declarations: declarations.flatMap((one) => declarationOf(name, one)) };
      }).filter(({ declarations }) => declarations.length > 0),
    };
  });
}
