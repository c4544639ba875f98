/**
 * Advisory locks of files by Deno's own means, which need no `--allow-ffi`. Elsewhere there are none here: Bun locks by the C
 * library (`src/ffi/posix.ts`).
 *
 * Permissions on Deno: `--allow-read` and `--allow-write` of the file.
 *
 * @module
 */

/** A file that is open to be locked. */
export interface LockableFile {
  /** Number of the file on its device. */
  readonly inode: string;
  /**
   * Takes an exclusive lock, which ends when the file is closed or the process ends, however it ends.
   *
   * @returns false if another opening of the file has one
   * @throws if the file system has no locks
   */
  tryLock(): boolean;
  /** Closes the file and gives its lock up. */
  close(): void;
}

interface DenoFile {
  tryLockSync(exclusive: boolean): boolean;
  statSync(): { readonly ino: number | bigint | null };
  close(): void;
}

interface Deno {
  openSync(path: string, options: { readonly read: boolean; readonly write: boolean }): DenoFile;
}

/** Opens a file that is there; undefined where the runtime is not Deno. */
export function openLockable(path: string): LockableFile | undefined {
  const deno: unknown = Reflect.get(globalThis, "Deno");
  if (!isDeno(deno)) return undefined;
  const file = deno.openSync(path, { read: true, write: true });
  return {
    inode: String(file.statSync().ino),
    tryLock: () => file.tryLockSync(true),
    close: () => file.close(),
  };
}

function isDeno(candidate: unknown): candidate is Deno {
  return typeof candidate === "object" && candidate !== null && "openSync" in candidate;
}
