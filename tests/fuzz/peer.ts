/**
 * Asks PyTorch about cases.
 *
 * @module
 */
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Case } from "./cases.ts";

const SCRIPT = fileURLToPath(new URL("../parity/make_fuzz.py", import.meta.url));

/** The output of `tests/parity/make_fuzz.py` for cases. */
export function askPeer(python: string, cases: readonly Case[]): Uint8Array<ArrayBuffer> {
  const folder = mkdtempSync(join(tmpdir(), "fuzz-"));
  try {
    const [lines, out] = [join(folder, "cases"), join(folder, "out")];
    writeFileSync(lines, cases.map(({ line }) => `${line}\n`).join(""));
    execFileSync(python, [SCRIPT, lines, out], { stdio: ["ignore", "ignore", "inherit"] });
    return new Uint8Array(readFileSync(out));
  } finally {
    rmSync(folder, { recursive: true });
  }
}
