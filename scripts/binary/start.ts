/**
 * The beginning of the single executable. The package lies in it as one archive. The first start writes it to a folder of the user's
 * cache, from which the command line, its Workers and its native libraries are loaded; later starts find it there. Ranks are the same
 * executable, which then behaves as Bun does.
 *
 * @module
 */
import { dlopen, ptr } from "bun:ffi";
import { createHash } from "node:crypto";
import {
  accessSync,
  constants,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import process from "node:process";
import { gunzipSync } from "node:zlib";
import { unpack } from "./archive.ts";

/** Marks a folder that is complete. */
const COMPLETE = ".complete";

/**
 * Unpacks the archive where that is not done, and runs the command line with the arguments of this process.
 *
 * @param archive path of the archive in the executable
 * @param digest its SHA-256 in hexadecimal digits
 * @param version the package's version
 */
export function start(archive: string, digest: string, version: string): void {
  let folder: string;
  try {
    folder = installed(archive, digest, version);
  } catch (error) {
    process.stderr.write(`fullyshard: ${error instanceof Error ? error.message : String(error)}\n`);
    process.exitCode = 1;
    return;
  }
  const modules = join(folder, "node_modules");
  const paths = [process.env["NODE_PATH"], modules].filter((path) => path !== undefined && path !== "");
  // Scripts of the ranks find the package there, if nowhere else.
  const variables = { ...process.env, BUN_BE_BUN: "1", NODE_PATH: paths.join(delimiter) };
  replaceProcess(
    [process.execPath, join(modules, "fullyshard/bin/fullyshard.mjs"), ...process.argv.slice(2)],
    variables,
  );
}

/** Runs another command in the place of this process, which keeps its id. Returns only by an error. */
function replaceProcess(command: readonly string[], variables: Readonly<Record<string, string | undefined>>): never {
  const texts = (list: readonly string[]) => list.map((text) => new TextEncoder().encode(`${text}\0`));
  const table = (strings: readonly Uint8Array[]) =>
    BigUint64Array.from([...strings.map((text) => BigInt(ptr(text))), 0n]);
  const set = Object.entries(variables).flatMap(([name, value]) => value === undefined ? [] : [`${name}=${value}`]);
  const [args, env] = [texts(command), texts(set)];
  const { symbols } = dlopen("libc.so.6", { execve: { args: ["ptr", "ptr", "ptr"], returns: "i32" } });
  symbols.execve(args[0] ?? null, table(args), table(env));
  throw new Error(`Cannot run ${command[0]}`);
}

/** The folder of the unpacked package. */
function installed(archive: string, digest: string, version: string): string {
  const cache = cacheFolder();
  const folder = join(cache, `fullyshard-${version}-${digest.slice(0, 16)}`);
  if (existsSync(join(folder, COMPLETE))) return folder;
  const bytes = readFileSync(archive);
  const found = createHash("sha256").update(bytes).digest("hex");
  if (found !== digest) {
    throw new Error(`The SHA-256 of the package in ${process.execPath} is ${found}, expected ${digest}: get it again`);
  }
  const aside = mkdtempSync(`${folder}.`);
  try {
    for (const { path, content } of unpack(gunzipSync(bytes))) {
      mkdirSync(dirname(join(aside, path)), { recursive: true });
      writeFileSync(join(aside, path), content);
    }
    writeFileSync(join(aside, COMPLETE), "");
    renameSync(aside, folder);
  } catch (error) {
    rmSync(aside, { recursive: true, force: true });
    // Another start may have unpacked it at the same moment.
    if (!existsSync(join(folder, COMPLETE))) throw error;
  }
  return folder;
}

/** A folder for caches that this user alone writes. */
function cacheFolder(): string {
  const { XDG_CACHE_HOME, HOME } = process.env;
  const wanted = XDG_CACHE_HOME
    ? join(XDG_CACHE_HOME, "fullyshard")
    : HOME
    ? join(HOME, ".cache/fullyshard")
    : undefined;
  if (wanted !== undefined && canWrite(wanted)) return wanted;
  const own = join(tmpdir(), `fullyshard-${process.getuid?.()}`);
  if (canWrite(own)) {
    const { uid, mode } = statSync(own);
    if (uid === process.getuid?.() && (mode & 0o022) === 0) return own;
  }
  const tried = [wanted, own].filter((path) => path !== undefined).join("' nor '");
  throw new Error(
    `Cannot unpack itself: neither '${tried}' can be written by this user alone. Name a folder in XDG_CACHE_HOME`,
  );
}

function canWrite(folder: string): boolean {
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    accessSync(folder, constants.W_OK);
    return true;
  } catch {
    return false;
  }
}
