/**
 * Binaries of this package, compared with the digests of their build. Imports nothing of Node, so that bundles for browsers may
 * contain it.
 *
 * Permission on Deno: `--allow-read` of the file, or `--allow-net` of the server that the package is imported from.
 *
 * @module
 */
import type * as fs from "node:fs";
import { FileError } from "../errors.ts";
import { permissionRemedy } from "./permissions.ts";

type Files = typeof fs;

/**
 * Reads the bytes of a binary.
 *
 * @param url a file or an address
 * @param kind name of its kind, for messages
 * @param expected its SHA-256
 * @throws {FileError} if it cannot be read, or has another digest
 */
export async function packagedBytes(url: URL, kind: string, expected: string): Promise<Uint8Array<ArrayBuffer>> {
  const files = url.protocol === "file:" ? nodeFiles() : undefined;
  const bytes = files === undefined ? await fetched(url) : read(url, files);
  const digest = await sha256Of(bytes);
  // Browsers compute no digests on unencrypted pages; these trust their server.
  if (digest === undefined || digest === expected) return bytes;
  const found = `its SHA-256 is ${digest}, that of this version's ${kind} ${expected}`;
  throw new FileError(nameOf(url), "open", `${found}; install the package anew`);
}

/** Reads a file synchronously: a fetch or a promise would add some milliseconds to the start. */
function read(url: URL, files: Files): Uint8Array<ArrayBuffer> {
  try {
    // Opening a pipe would wait for a writer.
    if (files.statSync(url).isFile()) return files.readFileSync(url);
  } catch (cause) {
    throw unread(url, isAbsent(cause) ? "it is not there" : undefined, cause);
  }
  throw unread(url, "it is not a regular file");
}

async function fetched(url: URL): Promise<Uint8Array<ArrayBuffer>> {
  let status: number;
  try {
    const response = await fetch(url);
    if (response.ok) return new Uint8Array(await response.arrayBuffer());
    status = response.status;
  } catch (cause) {
    throw unread(url, undefined, cause);
  }
  throw unread(url, `its server answers with status ${status}`);
}

function unread(url: URL, found: string | undefined, cause?: unknown): FileError {
  const reason = cause instanceof Error ? cause.message : String(cause);
  const detail = found === undefined
    ? permissionRemedy(cause) ?? `it cannot be read (${reason}); install the package anew`
    : `${found}; the package is incomplete, install it anew`;
  return new FileError(nameOf(url), "open", detail, undefined, { cause });
}

function isAbsent(error: unknown): boolean {
  return error instanceof Error && "code" in error && error.code === "ENOENT";
}

function nameOf(url: URL): string {
  return url.protocol === "file:" ? decodeURIComponent(url.pathname) : url.href;
}

async function sha256Of(bytes: Uint8Array<ArrayBuffer>): Promise<string | undefined> {
  const subtle: SubtleCrypto | undefined = crypto.subtle;
  if (subtle === undefined) return undefined;
  const digest = new Uint8Array(await subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The runtime's file functions; undefined in a browser. */
function nodeFiles(): Files | undefined {
  const host: unknown = Reflect.get(globalThis, "process");
  return hasBuiltins(host) ? host.getBuiltinModule("node:fs") : undefined;
}

function hasBuiltins(candidate: unknown): candidate is { getBuiltinModule(name: "node:fs"): Files | undefined } {
  return typeof candidate === "object" && candidate !== null && "getBuiltinModule" in candidate;
}
