/**
 * The dynamic linker's interface: table and constants, no logic. Since glibc 2.34 and in musl it is part of the C
 * library.
 *
 * @module
 */
import type { LibrarySpec } from "../library.ts";

export const RTLD_NOW = 2;
export const RTLD_GLOBAL = 0x100;

/** Functions of the dynamic linker. */
const LIBDL_BINDINGS = {
  dlopen: { args: ["cstring", "i32"], result: "address", check: "notNull" },
  // (handle of dlopen, symbol); null if the library lacks it
  dlsym: { args: ["address", "cstring"], result: "address", check: "none" },
} as const;

/** The dynamic linker of this process. */
export const LIBDL: LibrarySpec<typeof LIBDL_BINDINGS> = {
  name: "libdl",
  bindings: LIBDL_BINDINGS,
  sonames: ["libc.so.6", "libdl.so.2", "libc.musl-x86_64.so.1", "libc.musl-aarch64.so.1"],
  packageDirectories: [],
  systemOnly: true,
  gives: "libraries that stay loaded",
  remedy: "It is part of every Linux system",
};
