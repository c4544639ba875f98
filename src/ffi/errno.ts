/**
 * The reader of errno, the number by which a C function says why it failed.
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

/** Access to the calling thread's errno. */
export interface Errno {
  /** Sets it to 0. */
  clear(): void;
  /** Its value. */
  read(): number;
}

/** The thread's errno as the one element of `view`. */
function errnoOver(view: Int32Array): Errno {
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
