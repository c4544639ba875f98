/**
 * Finds a checkpoint to resume from: the one that was named, or the newest complete checkpoint. A checkpoint is complete if
 * - its manifest can be read;
 * - every file that the manifest lists has the listed length;
 * - every checksum holds.
 *
 * Rank 0 checks manifest and lengths for all ranks; each rank checks the checksums of the pieces that it reads.
 *
 * @module
 */
import { at } from "../../at.ts";
import { lockFolderIfFree } from "../../locks/folder_lock.ts";
import { CheckpointError, FileError } from "../../errors.ts";
import { type JsonObject, parseJsonObject } from "../../json.ts";
import { fileByteLength, pathKind, readBytes } from "../../runtime/files.ts";
import { otherCheckpoint, resumeRemedy } from "../format/other_programs.ts";
import { openVerified, PIECE_BYTES, type WrittenFile } from "../format/pieces.ts";
import type { Ranks } from "../format/ranks.ts";
import { MANIFEST_DEPTH } from "../state_dict/savable.ts";
import { listCheckpoints, needsRestoring, needsTidying, restoreCheckpoint, tidyCheckpoints } from "./directory.ts";
import { CONFIG_FILE, type Manifest, MANIFEST_FILE } from "./manifest.ts";
import { parseManifest } from "./parse_manifest.ts";

/** The beginning of the error that refuses another program's checkpoint. */
const NOT_OURS = "Expected a checkpoint of this library, got ";

/** A complete checkpoint. */
export interface FoundCheckpoint {
  readonly path: string;
  readonly manifest: Manifest;
  /** The model's configuration; undefined where the manifest does not list it. */
  readonly config: JsonObject | undefined;
  /** Newer ones that are not complete, each with its problem. */
  readonly skipped: readonly string[];
}

/**
 * Reads a checkpoint that may be complete. Collective; gives its problem, the same on every rank, or an empty text. What it
 * throws is not the checkpoint's fault.
 */
export type ReadCheckpoint = (path: string, manifest: Manifest) => Promise<string>;

/**
 * Finds a checkpoint and reads it. Every rank must call it.
 *
 * @param wanted `auto`: the newest complete checkpoint; else the path of one
 * @returns `undefined` if `auto` is wanted and there is none at all
 * @throws {CheckpointError} if the named checkpoint is not complete (naming the problem and the last complete checkpoint), or if
 *   there are checkpoints, none of them complete
 */
export async function findCheckpoint(
  directory: string,
  wanted: string,
  ranks: Ranks,
  read: ReadCheckpoint,
): Promise<FoundCheckpoint | undefined> {
  if (wanted === "auto") {
    await ranks.together("tidy checkpoints", async () => {
      // A folder that looks left over may be in use: another training writes it.
      if (ranks.rank !== 0 || !needsTidying(directory)) return;
      using lock = await lockFolderIfFree(directory);
      if (lock !== undefined) tidyCheckpoints(directory);
    });
    const skipped: string[] = [];
    const found = await newestComplete(directory, undefined, ranks, skipped, read);
    if (found !== undefined || skipped.length === 0) return found;
    const [only = ""] = skipped;
    const list = skipped.length === 1 && only.includes(NOT_OURS) ? ` ${only}` : `\n  ${skipped.join("\n  ")}`;
    throw new CheckpointError(directory, `Expected a whole checkpoint, got none:${list}`);
  }
  // Nothing else there is tidied: it may be the directory of a training that is saving.
  await ranks.together("restore checkpoint", async () => {
    if (ranks.rank !== 0 || !needsRestoring(wanted)) return;
    using lock = await lockFolderIfFree(parentOf(wanted));
    if (lock !== undefined) restoreCheckpoint(wanted);
  });
  const verdict = await judge(wanted, ranks, read);
  if (typeof verdict !== "string") return { path: wanted, ...verdict, skipped: [] };
  for (const place of new Set([parentOf(wanted), directory])) {
    const found = await newestComplete(
      place,
      wanted,
      ranks,
      [],
      (path, manifest) => verifyFiles(path, manifest, ranks),
    );
    if (found === undefined) continue;
    throw new CheckpointError(wanted, `${verdict}; the last whole checkpoint is '${found.path}': resume from that`);
  }
  if (verdict.startsWith(NOT_OURS)) throw new CheckpointError(wanted, verdict);
  throw new CheckpointError(wanted, `${verdict}; there is no other whole checkpoint in '${directory}'`);
}

/** The directory that a checkpoint lies in. */
function parentOf(checkpoint: string): string {
  return checkpoint.replace(/\/+$/, "").replace(/[^/]*$/, "").replace(/(.)\/$/, "$1") || ".";
}

/**
 * Performs an action that needs a complete checkpoint.
 *
 * @returns its problem, the same on every rank; empty if there is none
 * @throws what has other causes; a {@link CollectiveError} on the ranks on which it went well
 */
export async function verdictOf(path: string, ranks: Ranks, action: () => Promise<void>): Promise<string> {
  const label = "check checkpoint";
  const problem = await ranks.together(label, async () => {
    try {
      await action();
      return "";
    } catch (error) {
      if (!(error instanceof CheckpointError) && !(error instanceof FileError)) throw error;
      // The path is said once, where the verdict is reported.
      const { message } = error;
      return [`${path}: `, `${path}/`].reduce(
        (text, start) => text.startsWith(start) ? text.slice(start.length) : text,
        message,
      );
    }
  });
  return [...new Set(ranks.exchangeText(problem, label).filter((text) => text !== ""))].join("; ");
}

/** The newest complete checkpoint; `skipped` gets newer checkpoints with their problems. */
async function newestComplete(
  directory: string,
  except: string | undefined,
  ranks: Ranks,
  skipped: string[],
  read: ReadCheckpoint,
): Promise<FoundCheckpoint | undefined> {
  // Rank 0's list, lest ranks see different ones.
  const own = await ranks.together("list checkpoints", () => {
    return ranks.rank === 0 ? listCheckpoints(directory).map(({ path }) => path) : [];
  });
  const paths: readonly string[] = JSON.parse(ranks.exchangeText(JSON.stringify(own), "list checkpoints")[0] ?? "[]");
  for (const path of paths) {
    if (path === except) continue;
    const verdict = await judge(path, ranks, read);
    if (typeof verdict !== "string") return { path, ...verdict, skipped };
    skipped.push(`${path}: ${verdict}`);
  }
  return undefined;
}

/** A checkpoint's manifest and configuration if it is complete and was read, else its problem, the same on every rank. */
async function judge(
  path: string,
  ranks: Ranks,
  read: ReadCheckpoint,
): Promise<Pick<FoundCheckpoint, "manifest" | "config"> | string> {
  let own: readonly [manifest: string, config: JsonObject | null] = ["", null];
  let parsed: Manifest | undefined;
  const problem = await verdictOf(path, ranks, async () => {
    if (ranks.rank !== 0) return;
    const { bytes, manifest } = await readManifest(path);
    parsed = manifest;
    own = [new TextDecoder().decode(bytes), readConfig(path, manifest.files.get(CONFIG_FILE)) ?? null];
  });
  if (problem !== "") return problem;
  const [text, config]: typeof own = JSON.parse(
    at(ranks.exchangeText(JSON.stringify(own), "read manifest"), 0, "manifest of rank"),
  );
  const manifest = parsed ?? parseManifest(new TextEncoder().encode(text), `${path}/${MANIFEST_FILE}`);
  const damage = await read(path, manifest);
  return damage === "" ? { manifest, config: config ?? undefined } : damage;
}

/** The configuration, if the manifest lists it. */
function readConfig(path: string, written: WrittenFile | undefined): JsonObject | undefined {
  if (written === undefined) return undefined;
  using file = openVerified(`${path}/${CONFIG_FILE}`, written);
  const bytes = new Uint8Array(file.byteLength);
  file.read(0, bytes);
  return parseJsonObject(bytes, { file: file.path, what: "configuration", maxDepth: MANIFEST_DEPTH });
}

/**
 * A manifest that makes sense, all of whose files are there, and its bytes.
 *
 * @throws {CheckpointError} {@link FileError} if there is none
 */
export async function readManifest(
  path: string,
): Promise<{ readonly bytes: Uint8Array; readonly manifest: Manifest }> {
  const kind = pathKind(path);
  const file = `${path}/${MANIFEST_FILE}`;
  if (kind !== "none" && pathKind(file) === "none") {
    const other = otherCheckpoint(path);
    if (other !== undefined) {
      throw new CheckpointError(path, `${NOT_OURS}${other.what}: ${resumeRemedy(path, other)}`);
    }
    const newest = listCheckpoints(path)[0];
    if (newest !== undefined) {
      throw new CheckpointError(path, `${NOT_OURS}a folder of them: name one, such as '${newest.path}'`);
    }
  }
  if (kind !== "directory") {
    const got = kind === "none" ? "nothing there" : "a file";
    throw new CheckpointError(path, `Expected a checkpoint directory, got ${got}`);
  }
  if (pathKind(file) !== "file") {
    throw new CheckpointError(path, `${MANIFEST_FILE} is missing: the checkpoint was not written to its end`);
  }
  const bytes = await readBytes(file);
  const manifest = parseManifest(bytes, file);
  const problems: string[] = [];
  for (const [name, { byteLength }] of manifest.files) {
    const found = pathKind(`${path}/${name}`) === "file" ? fileByteLength(`${path}/${name}`) : undefined;
    if (found === undefined) problems.push(`${name} is missing`);
    else if (found !== byteLength) {
      problems.push(`${name} should have ${byteLength} bytes, got ${found}: it is cut off or changed`);
    }
  }
  if (problems.length > 0) throw new CheckpointError(path, problems.join("; "));
  return { bytes, manifest };
}

/** Reads all files and loads none; ranks share the work. Gives the problem, or an empty text. */
export function verifyFiles(path: string, { files }: Manifest, ranks: Ranks): Promise<string> {
  return verdictOf(path, ranks, async () => {
    const piece = new Uint8Array(PIECE_BYTES);
    for (const [index, [name, written]] of [...files].entries()) {
      if (index % ranks.size !== ranks.rank) continue;
      using file = openVerified(`${path}/${name}`, written);
      for (let at = 0; at < file.byteLength; at += PIECE_BYTES) {
        file.read(at, piece.subarray(0, Math.min(PIECE_BYTES, file.byteLength - at)));
      }
    }
  });
}
