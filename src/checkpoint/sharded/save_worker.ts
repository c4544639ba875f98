/**
 * The Worker of an asynchronous save. Each rank has one:
 * 1. It writes the rank's files from the copy.
 * 2. It reports their lengths and checksums in a file beside them.
 * 3. On rank 0 it waits for the reports of all ranks, and completes the checkpoint.
 *
 * So no collective is needed, and a step that is being computed waits for nothing.
 *
 * @module
 */
import { CheckpointError, FileError } from "../../errors.ts";
import { pathKind, readTextSync, removePath, removeQuietly, replaceFile } from "../../runtime/files.ts";
import { workerScope } from "../../runtime/worker_scope.ts";
import type { WrittenFile } from "../format/pieces.ts";
import { completeCheckpoint, type Completion } from "./complete.ts";
import { failureOf, SaveProgress } from "./save_progress.ts";
import { writeShardFiles } from "./shard_files.ts";
import { boxBytes, type StagedBoxes, stagedPieces } from "./stager.ts";

/** The interval at which rank 0 looks for the reports of the other ranks, in milliseconds. */
const POLL_MS = 5;

/** The work of a Worker. */
export interface SaveJob extends StagedBoxes {
  readonly rank: number;
  readonly size: number;
  /** The directory that is written into. */
  readonly partial: string;
  /** The work of rank 0 after the files are written; undefined on the other ranks. */
  readonly completion: Completion | undefined;
  /** The memory of {@link SaveProgress}. */
  readonly progress: SharedArrayBuffer;
}

/** The report of a rank to rank 0. */
type SaveReport = { readonly files: readonly (readonly [string, WrittenFile])[] } | { readonly failed: string };

async function save(job: SaveJob, progress: SaveProgress): Promise<void> {
  const { rank, partial, memory, sections, completion } = job;
  const own = await writeShardFiles(sections, partial, rank, function* (box) {
    for (const piece of stagedPieces(memory, box.source, boxBytes(box))) {
      requireWanted(progress, partial);
      yield piece;
    }
  });
  progress.writtenBytes = [...own.values()].reduce((sum, { byteLength }) => sum + byteLength, 0);
  if (completion === undefined) return writeReport(job, { files: [...own] });
  progress.reach("written");
  workerScope().postMessage(progress.stage);
  completeCheckpoint(completion, new Map([...own, ...filesOfOthers(job, progress)]));
}

function requireWanted(progress: SaveProgress, partial: string): void {
  if (progress.isGivenUp) throw new CheckpointError(partial, "The save was given up");
}

/** Waits for the files of ranks 1, 2, …, in this order. */
function* filesOfOthers({ size, partial }: SaveJob, progress: SaveProgress): Generator<[string, WrittenFile]> {
  for (let rank = 1; rank < size; rank++) {
    const path = reportPath(partial, rank);
    while (pathKind(path) === "none") {
      requireWanted(progress, partial);
      if (pathKind(partial) === "none") throw new FileError(partial, "write", "it was removed meanwhile", "ENOENT");
      progress.pause(POLL_MS);
    }
    const report: SaveReport = JSON.parse(readTextSync(path));
    if ("failed" in report) throw new CheckpointError(partial, `rank ${rank} failed: ${report.failed}`);
    removePath(path);
    for (const [name, file] of report.files) yield [name, file];
  }
}

/** The path of a rank's report, until rank 0 has read it. */
function reportPath(partial: string, rank: number): string {
  return `${partial}/.rank-${rank}.json`;
}

function writeReport({ partial, rank }: SaveJob, report: SaveReport): void {
  replaceFile(reportPath(partial, rank), JSON.stringify(report));
}

function fail(job: SaveJob, progress: SaveProgress, error: unknown): void {
  const { rank, partial } = job;
  try {
    // A rank that still writes must hear of rank 0's error before it finds the directory gone: that rank's thread removes it.
    if (rank !== 0) writeReport(job, { failed: String(error) });
    else if (progress.isGivenUp) removeQuietly(partial);
  } catch {
    // Rank 0 learns it from the ranks' next collective: what failed may have been the disk.
  }
  // This is the last call: a rank that waits for it may use the directory at once.
  progress.fail(failureOf(error));
}

function isJob(data: unknown): data is SaveJob {
  return typeof data === "object" && data !== null && "completion" in data;
}

globalThis.addEventListener("message", async (event: Event) => {
  const data: unknown = event instanceof MessageEvent ? event.data : undefined;
  if (!isJob(data)) return;
  const progress = new SaveProgress(data.progress);
  try {
    await save(data, progress);
    progress.reach("done");
  } catch (error) {
    fail(data, progress, error);
  }
  workerScope().postMessage(progress.stage);
});
