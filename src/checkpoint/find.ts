/**
 * Finding a checkpoint to go on from: the one named, or the newest whole one. Whole means that the manifest is there and
 * sound, and every file it lists is there with its length and checksum; ranks share the work of checking.
 *
 * @module
 */
import { CheckpointError } from "../errors.ts";
import { fileByteLength, pathKind, readBytes } from "../runtime/files.ts";
import { listCheckpoints, restoreCheckpoint, tidyCheckpoints } from "./directory.ts";
import { type Manifest, MANIFEST_FILE, parseManifest } from "./manifest.ts";
import type { Ranks } from "./ranks.ts";
import { checksumFile } from "./safetensors.ts";

/** A whole checkpoint. */
export interface FoundCheckpoint {
  readonly path: string;
  readonly manifest: Manifest;
  /** Newer ones that are not whole, each with what is wrong with it. */
  readonly skipped: readonly string[];
}

/**
 * Finds a checkpoint. Every rank must call it.
 *
 * @param wanted `auto`: the newest whole one; else the path of one
 * @returns `undefined` if `auto` is wanted and there is none at all
 * @throws {CheckpointError} if the one named is not whole (saying what is wrong and which is the last whole one), or if there
 *   are some, none of them whole
 */
export async function findCheckpoint(
  directory: string,
  wanted: string,
  ranks: Ranks,
): Promise<FoundCheckpoint | undefined> {
  if (wanted === "auto") {
    await ranks.together("tidy checkpoints", () => ranks.rank === 0 && tidyCheckpoints(directory));
    const skipped: string[] = [];
    const found = await newestWhole(directory, undefined, ranks, skipped);
    if (found !== undefined || skipped.length === 0) return found;
    throw new CheckpointError(directory, `Expected a whole checkpoint, got none:\n  ${skipped.join("\n  ")}`);
  }
  // Nothing else there is tidied: it may be the directory of a run that is saving.
  await ranks.together("restore checkpoint", () => ranks.rank === 0 && restoreCheckpoint(wanted));
  const verdict = await judge(wanted, ranks);
  if (typeof verdict !== "string") return { path: wanted, manifest: verdict, skipped: [] };
  const parent = wanted.replace(/\/+$/, "").replace(/[^/]*$/, "").replace(/(.)\/$/, "$1");
  for (const place of new Set([parent === "" ? "." : parent, directory])) {
    const found = await newestWhole(place, wanted, ranks, []);
    if (found === undefined) continue;
    throw new CheckpointError(wanted, `${verdict}; the last whole checkpoint is '${found.path}': resume from that`);
  }
  throw new CheckpointError(wanted, `${verdict}; there is no other whole checkpoint in '${directory}'`);
}

/** The newest whole checkpoint; `skipped` gets what is wrong with newer ones. */
async function newestWhole(
  directory: string,
  except: string | undefined,
  ranks: Ranks,
  skipped: string[],
): Promise<FoundCheckpoint | undefined> {
  // Rank 0's list, lest ranks see different ones.
  const own = await ranks.together("list checkpoints", () => listCheckpoints(directory).map(({ path }) => path));
  const paths: readonly string[] = JSON.parse(ranks.exchangeText(JSON.stringify(own), "list checkpoints")[0] ?? "[]");
  for (const path of paths) {
    if (path === except) continue;
    const verdict = await judge(path, ranks);
    if (typeof verdict !== "string") return { path, manifest: verdict, skipped };
    skipped.push(`${path}: ${verdict}`);
  }
  return undefined;
}

/** A checkpoint's manifest if it is whole, else what is wrong, the same on every rank. */
async function judge(path: string, ranks: Ranks): Promise<Manifest | string> {
  let manifest: Manifest | undefined;
  let problem = "";
  try {
    manifest = await readManifest(path);
    await checkFiles(path, manifest, ranks);
  } catch (error) {
    problem = error instanceof Error ? error.message : String(error);
    // The path is said once, where the verdict is reported.
    if (problem.startsWith(`${path}: `)) problem = problem.slice(path.length + 2);
    else if (problem.startsWith(`${path}/`)) problem = problem.slice(path.length + 1);
  }
  const problems = new Set(ranks.exchangeText(problem, "check checkpoint").filter((text) => text !== ""));
  return manifest === undefined || problems.size > 0 ? [...problems].join("; ") : manifest;
}

async function readManifest(path: string): Promise<Manifest> {
  const kind = pathKind(path);
  if (kind !== "directory") {
    const got = kind === "none" ? "nothing there" : "a file";
    throw new CheckpointError(path, `Expected a checkpoint directory, got ${got}`);
  }
  const file = `${path}/${MANIFEST_FILE}`;
  if (pathKind(file) !== "file") {
    throw new CheckpointError(path, `${MANIFEST_FILE} is missing: the checkpoint was not written to its end`);
  }
  return parseManifest(await readBytes(file), file);
}

/** Lengths of all files, and checksums of this rank's part of them. */
async function checkFiles(path: string, { files }: Manifest, ranks: Ranks): Promise<void> {
  const problems: string[] = [];
  for (const [index, [name, { byteLength, crc32 }]] of [...files].entries()) {
    const file = `${path}/${name}`;
    const found = pathKind(file) === "file" ? fileByteLength(file) : undefined;
    const checksum = found === byteLength && index % ranks.size === ranks.rank ? await checksumFile(file) : crc32;
    if (found === undefined) problems.push(`${name} is missing`);
    else if (found !== byteLength) {
      problems.push(`${name} should have ${byteLength} bytes, got ${found}: it is cut off or changed`);
    } else if (checksum !== crc32) {
      problems.push(`${name} should have checksum ${crc32}, got ${checksum}: it is damaged`);
    }
  }
  if (problems.length > 0) throw new CheckpointError(path, problems.join("; "));
}
