/**
 * The log files of a run: what each rank wrote, byte for byte, in one file a stream.
 *
 * @module
 */

import { makeDirectory, makeTemporaryDirectory, openWritable, type WritableFile } from "../runtime/files.ts";
import type { RunPlan } from "./plan.ts";
import type { StreamName } from "./terminal.ts";

/** The log files of a run. */
export interface RunLogs {
  /** Folder of the files; undefined where none is written. */
  readonly folder: string | undefined;
  /** What takes the bytes of a stream; undefined where the stream is not kept. */
  writer(rank: number, stream: StreamName): ((bytes: Uint8Array) => void) | undefined;
  /** Closes all files. */
  close(): void;
}

/**
 * Opens the log files that a plan asks for.
 *
 * @param runId the name of the run, and of the folder
 * @throws {FileError} where the folder cannot be written
 */
export function openLogs(plan: RunPlan, runId: string): RunLogs {
  const files = new Map<string, WritableFile>();
  let root: string | undefined;
  for (let rank = 0; rank < plan.numRanks; rank++) {
    for (const stream of ["stdout", "stderr"] as const) {
      if (!plan.stream(rank, stream).kept) continue;
      // Other users have no business in it, and their folders are not in the way.
      root ??= `${plan.logDir ?? makeTemporaryDirectory("fullyshard-")}/${runId}`;
      makeDirectory(`${root}/rank${rank}`);
      files.set(`${rank} ${stream}`, openWritable(`${root}/rank${rank}/${stream}.log`, "create"));
    }
  }
  return {
    folder: root,
    writer(rank, stream): ((bytes: Uint8Array) => void) | undefined {
      const file = files.get(`${rank} ${stream}`);
      return file === undefined ? undefined : (bytes) => file.write(bytes);
    },
    close(): void {
      for (const file of files.values()) file.close();
    },
  };
}
