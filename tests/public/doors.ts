/** The doors of the library, and what `deno doc` tells of them. @module */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { programOf } from "../support/rank_process.ts";

const root = new URL("../../", import.meta.url);

/** Modules that a program imports, by the name that it does so by. */
export function doors(): ReadonlyMap<string, URL> {
  const { exports }: { exports: Record<string, string> } = JSON.parse(readFileSync(new URL("deno.json", root), "utf8"));
  const importable = Object.entries(exports).filter(([name]) => name !== "./cli");
  return new Map(importable.map(([name, file]) => [`fullyshard${name.slice(1)}`, new URL(file, root)]));
}

/** The names of a door's values. */
export async function valuesOfDoor(door: URL): Promise<readonly string[]> {
  const values: Readonly<Record<string, unknown>> = await import(door.href);
  return Object.keys(values).sort();
}

/** The lines that declare something; comments and members are indented. */
export function signaturesOf(door: URL): readonly string[] {
  const program = programOf("deno") ?? assert.fail("Deno is not installed");
  const env = { ...process.env, NO_COLOR: "1" };
  const text = execFileSync(program, ["doc", "--quiet", fileURLToPath(door)], { encoding: "utf8", env });
  const declares = /^(?:(?:abstract )?class|const|enum|(?:async )?function|interface|type) /;
  return text.split("\n").filter((line) => declares.test(line));
}
