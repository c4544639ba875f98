/**
 * Linux's error numbers (asm-generic/errno*.h: the same on x86-64 and arm64) in words, and the reader of errno.
 *
 * Note [Reading errno]: errno lives in thread-local storage. Its address is fetched once per thread (`__errno_location`)
 * and wrapped as an Int32Array, so that reading it after a call is a plain load: no second native call, and no
 * allocation, lies between the C function's return and the read, and a runtime has no occasion to run C code of its own
 * on this thread. It is set to 0 before each checked call; a 0 after a failure would show that something had
 * overwritten it, and is reported as such.
 *
 * @module
 */
import { at } from "../at.ts";

/** Name and text of each error number that the C library's calls here can give. */
export const ERRNO: Readonly<Record<number, readonly [name: string, text: string]>> = {
  1: ["EPERM", "operation not permitted"],
  2: ["ENOENT", "no such file or directory"],
  3: ["ESRCH", "no such process"],
  4: ["EINTR", "interrupted system call"],
  5: ["EIO", "input/output error"],
  6: ["ENXIO", "no such device or address"],
  7: ["E2BIG", "argument list too long"],
  9: ["EBADF", "bad file descriptor"],
  10: ["ECHILD", "no child processes"],
  11: ["EAGAIN", "resource temporarily unavailable"],
  12: ["ENOMEM", "cannot allocate memory"],
  13: ["EACCES", "permission denied"],
  14: ["EFAULT", "bad address"],
  16: ["EBUSY", "device or resource busy"],
  17: ["EEXIST", "file exists"],
  19: ["ENODEV", "no such device"],
  20: ["ENOTDIR", "not a directory"],
  21: ["EISDIR", "is a directory"],
  22: ["EINVAL", "invalid argument"],
  23: ["ENFILE", "too many open files in system"],
  24: ["EMFILE", "too many open files"],
  25: ["ENOTTY", "inappropriate ioctl for device"],
  26: ["ETXTBSY", "text file busy"],
  27: ["EFBIG", "file too large"],
  28: ["ENOSPC", "no space left on device"],
  29: ["ESPIPE", "illegal seek"],
  30: ["EROFS", "read-only file system"],
  32: ["EPIPE", "broken pipe"],
  34: ["ERANGE", "result out of range"],
  35: ["EDEADLK", "resource deadlock avoided"],
  36: ["ENAMETOOLONG", "file name too long"],
  37: ["ENOLCK", "no locks available"],
  38: ["ENOSYS", "function not implemented"],
  39: ["ENOTEMPTY", "directory not empty"],
  40: ["ELOOP", "too many levels of symbolic links"],
  71: ["EPROTO", "protocol error"],
  75: ["EOVERFLOW", "value too large for defined data type"],
  88: ["ENOTSOCK", "socket operation on non-socket"],
  95: ["EOPNOTSUPP", "operation not supported"],
  97: ["EAFNOSUPPORT", "address family not supported"],
  98: ["EADDRINUSE", "address already in use"],
  99: ["EADDRNOTAVAIL", "cannot assign requested address"],
  100: ["ENETDOWN", "network is down"],
  101: ["ENETUNREACH", "network is unreachable"],
  103: ["ECONNABORTED", "software caused connection abort"],
  104: ["ECONNRESET", "connection reset by peer"],
  107: ["ENOTCONN", "socket is not connected"],
  110: ["ETIMEDOUT", "connection timed out"],
  111: ["ECONNREFUSED", "connection refused"],
  113: ["EHOSTUNREACH", "no route to host"],
  115: ["EINPROGRESS", "operation now in progress"],
  122: ["EDQUOT", "disk quota exceeded"],
};

/** Access to the calling thread's errno. */
export interface Errno {
  /** Sets it to 0. */
  clear(): void;
  /** Its value. */
  read(): number;
}

/** The thread's errno as the one element of `view`. */
export function errnoOver(view: Int32Array): Errno {
  return {
    clear(): void {
      view[0] = 0;
    },
    read(): number {
      return at(view, 0, "errno");
    },
  };
}

/** C libraries that export `__errno_location`: glibc, then musl. */
const LIBC_SONAMES = ["libc.so.6", "libc.musl-x86_64.so.1", "libc.musl-aarch64.so.1"];

/**
 * The thread's errno, looked for at the first call.
 *
 * @param locate gives the 4 bytes at which a C library keeps it; the library is never closed, as it stays loaded anyway
 */
export function lazyErrno(locate: (soname: string) => ArrayBuffer): () => Errno {
  const find = (): Errno => {
    let cause: unknown;
    for (const soname of LIBC_SONAMES) {
      try {
        return errnoOver(new Int32Array(locate(soname)));
      } catch (error) {
        cause = error;
      }
    }
    throw new Error(`Cannot find errno in any of ${LIBC_SONAMES.join(", ")}`, { cause });
  };
  let found: Errno | undefined;
  return () => found ??= find();
}

/**
 * The number of an error name.
 *
 * @param name e.g. `EAGAIN`
 * @returns its number, or undefined if the table lacks it
 */
export function errnoNumber(name: string): number | undefined {
  for (const [number, [known]] of Object.entries(ERRNO)) if (known === name) return Number(number);
  return undefined;
}

/** An error number in words: `ENOSPC (no space left on device)`. */
export function errnoText(number: number): string {
  const entry = ERRNO[number];
  if (entry !== undefined) return `${entry[0]} (${entry[1]})`;
  return number === 0 ? "unknown error (errno was lost)" : `errno ${number}`;
}

/** The name of an error number, e.g. `ENOSPC`. */
export function errnoName(number: number): string | undefined {
  return ERRNO[number]?.[0];
}
