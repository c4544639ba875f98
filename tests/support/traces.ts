/**
 * Text that would tell where a binary was built.
 *
 * @module
 */

/** Texts that no committed binary may hold. */
export const TRACES: readonly string[] = [
  "/root",
  "/home",
  "/Users",
  "/tmp",
  "/work",
  ".cargo",
  ".rustup",
  "rustc/",
  "crates",
  "registry",
];
