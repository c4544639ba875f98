/**
 * Writes the snapshots of the doors as they are, byte for byte as `doors_suite.ts -- --update` does where JSR answers.
 *
 * Usage: node scripts/runtime.mjs bun tests/public/take_snapshots.ts
 *
 * @module
 */
import { writeFileSync } from "node:fs";
import { doors, signaturesOf, valuesOfDoor } from "./doors.ts";

/** A text in the quotes that need no escapes, inside of a template of JavaScript. */
function quoted(text: string): string {
  const quote = !text.includes('"') ? '"' : !text.includes("'") ? "'" : "`";
  return `${quote}${text}${quote}`.replaceAll(/[\\`$]/g, "\\$&");
}

function entryOf(name: string, texts: readonly string[]): string {
  return `snapshot[\`${name} 1\`] = \`\n[\n${texts.map((text) => `  ${quoted(text)},\n`).join("")}]\n\`;\n`;
}

/** The file's text. */
export async function snapshots(): Promise<string> {
  const entries: string[] = [];
  for (const [name, door] of doors()) {
    entries.push(entryOf(`${name} > exports these values`, await valuesOfDoor(door)));
    entries.push(entryOf(`${name} > has these signatures`, signaturesOf(door)));
  }
  return `export const snapshot = {};\n\n${entries.join("\n")}`;
}

if (import.meta.main) {
  writeFileSync(new URL("__snapshots__/doors_suite.ts.snap", import.meta.url), await snapshots());
}
