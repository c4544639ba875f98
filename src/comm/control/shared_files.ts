/**
 * Files of shared memory that the ranks of a group map. A shared file has a name only until all ranks have opened it, so a later
 * crash leaves no file behind.
 *
 * @module
 */
import { at } from "../../at.ts";
import { FileError, NativeError, OutOfMemoryError } from "../../errors.ts";
import type { NativeAddress } from "../../ffi/types.ts";
import { formatBytes } from "../../words.ts";
import type { ControlPlane } from "../control_plane.ts";
import type { ShareParts } from "../rank_parts.ts";
import { acquire, type Acquired, attempt, exchangeOutcomes } from "../together.ts";
import type { RunFiles } from "./run_files.ts";

/** Size and purpose of a shared file. */
export interface SharedFileRequest {
  /** Bytes reserved when it is made. */
  readonly byteLength: number;
  /** Bytes that every rank maps. @default byteLength */
  readonly mappedBytes?: number;
  /** Purpose, for messages. */
  readonly owner: string;
  /** The rank that makes the shared file. */
  readonly leader: number;
}

/**
 * Reserves disk space for a file, so that no page of it can be missing later.
 *
 * @throws {OutOfMemoryError} naming the bytes asked for and free, and the container's option
 * @throws {FileError} if the process may not have files of that size
 */
export function reserve(files: RunFiles, descriptor: number, byteLength: number, owner: string, begin = 0): void {
  const { posix, directory } = files;
  const outOfMemory = (): OutOfMemoryError => {
    const { freeBytes, totalBytes } = posix.spaceAt(directory);
    const detail =
      `It was for ${owner}; ${formatBytes(freeBytes)} are free. Give a container more with '--shm-size', or the ` +
      "directory more with 'mount -o remount,size=…'; a smaller 'stagingBytes' needs less";
    return new OutOfMemoryError(directory, byteLength, totalBytes - freeBytes, totalBytes, detail);
  };
  if (byteLength > posix.spaceAt(directory).freeBytes) throw outOfMemory();
  try {
    posix.reserve(descriptor, byteLength, begin);
  } catch (error) {
    if (!(error instanceof NativeError)) throw error;
    if (error.code === "EFBIG") {
      const detail = `${byteLength} bytes for ${owner} are more than a file may have by 'ulimit -f'. Give it more`;
      throw new FileError(directory, "share memory in", detail, "EFBIG");
    }
    throw error.code === "ENOSPC" ? outOfMemory() : error;
  }
}

/**
 * Makes a shared file and maps it on every rank. Collective over `control`, which may have several leaders: each rank gets its
 * own leader's shared file. If any rank fails, no rank keeps anything.
 *
 * @param use uses the mapped shared file on this rank, and puts what undoes it on the stack
 * @param noteOf the text that each rank gives the others when it has succeeded
 */
export function shareFile<T>(
  control: ControlPlane,
  files: RunFiles,
  { byteLength, mappedBytes = byteLength, owner, leader }: SharedFileRequest,
  use: (descriptor: number, address: NativeAddress, kept: DisposableStack) => T,
  noteOf?: (value: T) => string,
): Acquired<T> {
  const { posix } = files;
  using made = new DisposableStack();
  const create = (): string => {
    if (control.rank !== leader) return "";
    const path = files.path(`shared-${crypto.randomUUID()}`);
    const descriptor = posix.createFile(path);
    made.defer(() => void posix.unlink(path));
    made.defer(() => posix.close(descriptor));
    reserve(files, descriptor, byteLength, owner);
    return path;
  };
  const { notes: paths } = exchangeOutcomes(control, attempt(create), (path) => path);
  const path = at(paths, leader, "shared file of rank");
  return acquire(control, (kept) => {
    const descriptor = posix.openFile(path, "readWrite");
    if (descriptor === undefined) throw control.failure(`shared file ${path} is gone`);
    made.defer(() => posix.close(descriptor));
    const address = posix.mapShared(descriptor, mappedBytes);
    kept.defer(() => posix.unmap(address, mappedBytes));
    return use(descriptor, address, kept);
  }, noteOf);
}

/** Makes shared parts for the ranks of this host, in shared files. */
export function shareInFiles(files: RunFiles): ShareParts {
  return (control, byteLength, owner) => {
    const request = { byteLength: control.size * byteLength, owner, leader: 0 };
    const { value, kept } = shareFile(
      control,
      files,
      request,
      (_, address) => files.posix.provider.viewOf(address, request.byteLength),
    );
    return {
      parts: control.worldRanks.map((_, rank) => new Uint8Array(value, rank * byteLength, byteLength)),
      publish(): void {},
      follow(): void {},
      onChange(): void {},
      [Symbol.dispose]: () => kept.dispose(),
    };
  };
}
