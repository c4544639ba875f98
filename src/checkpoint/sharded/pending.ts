/**
 * The asynchronous saves of this rank, by directory. A new save into a directory waits until no Worker writes there,
 * so that neither removes files of the other.
 *
 * @module
 */
import { ArgumentError, CheckpointError } from "../../errors.ts";
import { absolutePath } from "../../runtime/files.ts";
import type { SaveProgress } from "./save_progress.ts";

/** An asynchronous save. */
interface Pending {
  readonly directory: string;
  /** The save's name in messages. */
  readonly label: string;
  readonly progress: SaveProgress;
  /** Resolves when its Worker has ended and its directory is unlocked. */
  readonly closed: Promise<void>;
}

const pending = new Set<Pending>();

/** A Worker stops at its next MiB, or behind an fsync. */
const STOP_SECONDS = 60;

/** Counts a save as pending until it is given up, or was awaited, and its Worker has ended. */
export function addPending({ directory, ...save }: Pending): void {
  pending.add({ directory: absolutePath(directory), ...save });
}

/** Waits for the Workers of all saves that were given up. @returns false if one does not stop */
export async function givenUpSavesEnd(): Promise<boolean> {
  const ends = [...pending].filter(({ progress }) => progress.isGivenUp).map(({ closed }) => closed);
  const late = Promise.withResolvers<boolean>();
  const timer = setTimeout(() => late.resolve(false), STOP_SECONDS * 1000);
  try {
    return await Promise.race([Promise.all(ends).then(() => true), late.promise]);
  } finally {
    clearTimeout(timer); // it would keep a process alive that has nothing left to do
  }
}

/**
 * Waits for Workers that still write into a directory although nobody wants what they write.
 *
 * @param label the action there, for messages
 * @throws {ArgumentError} if an earlier save into that directory was neither awaited nor given up
 * @throws {CheckpointError} if a Worker does not stop
 */
export function endPending(directory: string, label: string): void {
  const path = absolutePath(directory);
  for (const save of pending) {
    const { progress } = save;
    if (save.directory === path && !progress.isGivenUp) {
      throw new ArgumentError(
        `Cannot ${label} in '${directory}': asyncSave() has begun there to ${save.label}; await what it gave first`,
      );
    }
    if (save.directory === path && !progress.waitForEnd(STOP_SECONDS)) {
      throw new CheckpointError(
        path,
        `The Worker that was to ${save.label}, given up, still writes after ${STOP_SECONDS} s`,
      );
    }
    if (progress.isGivenUp && progress.hasEnded) pending.delete(save);
  }
}
