/**
 * Advisory locks of files by Deno's own functions, which need no `--allow-ffi`. Bun locks by the C library (`src/ffi/posix.ts`).
 *
 * Permissions on Deno: `--allow-read` and `--allow-write` of the file.
 *
 * @module
 */
import { codeOf } from "./errno.ts";
import { guarded } from "./files.ts";

/** A file that is open to be locked. */
export interface LockableFile {
  /** Number of the file on its device. */
  readonly inode: string;
  /**
   * Takes an exclusive lock, which ends when the file is closed or the process ends, in any way.
   *
   * @returns false if another descriptor of the file has the lock
   * @throws if the file system has no locks
   */
  tryLock(): boolean;
  /** Closes the file and gives up its lock. */
  close(): void;
}

interface DenoFile {
  tryLockSync(exclusive: boolean): boolean;
  statSync(): { readonly ino: number | bigint | null };
  close(): void;
}

interface DenoFiles {
  openSync(path: string, options: { readonly read: boolean; readonly write: boolean }): DenoFile;
}

/**
 * Opens an existing file; for reading alone where it may not be written, as another user's. Undefined if the runtime is not Deno.
 *
 * @throws {FileError} if it cannot be opened
 */
export function openLockable(path: string): LockableFile | undefined {
  const deno: unknown = Reflect.get(globalThis, "Deno");
  if (!isDeno(deno)) return undefined;
  const file = guarded(path, "open", () => {
    try {
      return deno.openSync(path, { read: true, write: true });
    } catch (error) {
      if (codeOf(error) !== "EACCES") throw error;
      return deno.openSync(path, { read: true, write: false });
    }
  });
  return {
    inode: String(file.statSync().ino),
    tryLock: () => file.tryLockSync(true),
    close: () => file.close(),
  };
}

function isDeno(candidate: unknown): candidate is DenoFiles {
  return typeof candidate === "object" && candidate !== null && "openSync" in candidate;
}
