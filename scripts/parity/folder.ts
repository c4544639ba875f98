/**
 * A folder that the ranks of a group share for a while.
 *
 * @module
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import type { ProcessGroup } from "../../doors/comm.ts";

/** Makes a folder, calls `use` with it on every rank, and removes it when all have returned. */
export async function withFolder<T>(group: ProcessGroup, use: (folder: string) => Promise<T>): Promise<T> {
  const isFirst = group.rank === 0;
  const [folder] = group.exchangeText(isFirst ? mkdtempSync(`${tmpdir()}/fullyshard-parity-`) : "", "folder");
  if (folder === undefined) throw new Error("a group of no rank");
  try {
    return await use(folder);
  } finally {
    group.barrier("folder used");
    if (isFirst) rmSync(folder, { recursive: true });
  }
}
