/**
 * The C library: table and constants, no logic (that is `src/ffi/posix.ts`). Constants are Linux's, from glibc 2.36's
 * headers, the same on x86-64 and arm64 except where they are given by architecture. `open` and `syscall` are variadic in C; on
 * Linux, variadic integers and pointers travel as named ones do. On Apple's arm64 they do not, so this table must
 * not be used there.
 *
 * @module
 */
import type { LibrarySpec } from "../library.ts";

export const O_RDONLY = 0;
export const O_RDWR = 0o2;
export const O_CREAT = 0o100;
export const O_EXCL = 0o200;
export const O_CLOEXEC = 0o2000000;
/** By architecture, as `process.arch` names it. */
export const O_NOFOLLOW: Readonly<Record<string, number>> = { x64: 0o400000, arm64: 0o100000 };

export const AT_EMPTY_PATH = 0x1000;
export const STATX_UID = 0x8;

export const PROT_READ = 1;
export const PROT_WRITE = 2;

export const MAP_SHARED = 0x01;
export const MAP_PRIVATE = 0x02;
export const MAP_FIXED = 0x10;
export const MAP_ANONYMOUS = 0x20;
export const MAP_NORESERVE = 0x4000;

export const LOCK_SH = 1;
export const LOCK_EX = 2;
export const LOCK_NB = 4;
export const LOCK_UN = 8;

export const FUTEX_WAIT = 0;
export const FUTEX_WAKE = 1;

export const _SC_PAGESIZE = 30;
export const _SC_PHYS_PAGES = 85;

/** Numbers of signals. */
export const SIGNALS = { SIGKILL: 9 } as const;

/** System call numbers by architecture, as `process.arch` names it. */
export const SYS_futex: Readonly<Record<string, number>> = { x64: 202, arm64: 98 };
export const SYS_getdents64: Readonly<Record<string, number>> = { x64: 217, arm64: 61 };
export const SYS_statx: Readonly<Record<string, number>> = { x64: 332, arm64: 291 };

/** Bytes of `struct statx`, and the byte offset of the member read. */
export const STATX = { byteLength: 256, stx_uid: 20 } as const;

/** Bytes of `struct statvfs`, and the byte offsets of the members read. */
export const STATVFS = { byteLength: 112, f_frsize: 8, f_blocks: 16, f_bavail: 32 } as const;

/** Byte offsets in `struct linux_dirent64`. */
export const DIRENT64 = { d_reclen: 16, d_type: 18, d_name: 19 } as const;

/** Functions of the C library. */
export const LIBC_BINDINGS = {
  open: { args: ["cstring", "i32", "u32"], result: "i32", check: "errno" },
  // The same, for a file that may well be absent.
  tryOpen: {
    symbol: "open",
    args: ["cstring", "i32", "u32"],
    result: "i32",
    check: { errno: ["ENOENT"] },
  },
  close: { args: ["i32"], result: "i32", check: "errno" },
  read: { args: ["i32", "buffer", "usize"], result: "i64", check: "errno" },
  write: { args: ["i32", "buffer", "usize"], result: "i64", check: "errno" },
  unlink: { args: ["cstring"], result: "i32", check: { errno: ["ENOENT"] } },
  posix_fallocate: { args: ["i32", "i64", "i64"], result: "i32", check: "errnoResult" },
  flock: { args: ["i32", "i32"], result: "i32", check: { errno: ["EAGAIN"] } }, // EWOULDBLOCK is EAGAIN
  statvfs: { args: ["cstring", "buffer"], result: "i32", check: "errno" },

  mmap: { args: ["address", "usize", "i32", "i32", "i32", "i64"], result: "address", check: "errno" },
  munmap: { args: ["address", "usize"], result: "i32", check: "errno" },
  memcpy: { args: ["address", "address", "usize"], result: "void", check: "none" },
  memmove: { args: ["address", "address", "usize"], result: "void", check: "none" },
  memset: { args: ["address", "i32", "usize"], result: "void", check: "none" },

  // long syscall(long number, uint32_t *word, int op, uint32_t value, const struct timespec *timeout)
  futex: {
    symbol: "syscall",
    args: ["i64", "address", "i32", "u32", "optionalBuffer"],
    result: "i64",
    check: { errno: ["EAGAIN", "EINTR", "ETIMEDOUT"] },
  },
  // long syscall(long number, unsigned fd, void *entries, unsigned byteLength)
  getdents64: { symbol: "syscall", args: ["i64", "i32", "buffer", "u32"], result: "i64", check: "errno" },
  // long syscall(long number, int fd, const char *path, int flags, unsigned mask, struct statx *into)
  statx: {
    symbol: "syscall",
    args: ["i64", "i32", "cstring", "i32", "u32", "buffer"],
    result: "i64",
    check: "errno",
  },

  // The process may have ended, or be another user's.
  kill: { args: ["i32", "i32"], result: "i32", check: { errno: ["ESRCH", "EPERM"] } },
  alarm: { args: ["u32"], result: "u32", check: "none" },
  getpid: { args: [], result: "i32", check: "none" },
  getuid: { args: [], result: "u32", check: "none" },
  sched_getaffinity: { args: ["i32", "usize", "buffer"], result: "i32", check: "errno" },
  setenv: { args: ["cstring", "cstring", "i32"], result: "i32", check: "errno" },
  unsetenv: { args: ["cstring"], result: "i32", check: "errno" },
  getenv: { args: ["cstring"], result: "cstring", check: "none" },
  sysconf: { args: ["i32"], result: "i64", check: "none" },
  gnu_get_libc_version: { args: [], result: "cstring", check: "none", optional: true },
} as const;

/** The C library of this process: glibc, or musl. */
export const LIBC: LibrarySpec<typeof LIBC_BINDINGS> = {
  name: "libc",
  bindings: LIBC_BINDINGS,
  sonames: ["libc.so.6", "libc.musl-x86_64.so.1", "libc.musl-aarch64.so.1"],
  override: "FULLYSHARD_LIBC_LIBRARY",
  packageDirectories: [],
  systemOnly: true,
  gives: "shared memory between ranks, locks that tell a dead rank, and room checks",
  remedy: "It is part of every Linux system; elsewhere, use the 'loopback' transport",
};
