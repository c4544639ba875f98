/**
 * `fullyshard inspect`: what a checkpoint or a Hugging Face folder holds, from its headers and manifest; with `--verify`,
 * whether every byte is as it was written.
 *
 * @module
 */
import process from "node:process";
import * as z from "zod";
import { companionsOf, describeLeftOut } from "../checkpoint/format/companions.ts";
import type { StoredTensor } from "../checkpoint/format/dcp_shards.ts";
import { ALONE } from "../checkpoint/format/ranks.ts";
import { openStored, type StoredCheckpoint } from "../checkpoint/offline/stored.ts";
import { verifyFiles } from "../checkpoint/sharded/find.ts";
import { type Flag, helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { section } from "../config/section.ts";
import { CheckpointError } from "../errors.ts";
import { fileByteLength } from "../runtime/files.ts";
import { numelOf } from "../shape.ts";
import { countOf, formatBytes, shown } from "../words.ts";
import { placesKey, requirePlaces } from "./places.ts";

const SECTIONS = [section(
  "inspect",
  z.strictObject({
    places: placesKey.describe("The checkpoint or folder, as an argument or by --places"),
    tensors: z.boolean().default(false).describe("List every tensor"),
    verify: z.boolean().default(false).describe("Read all files and compare checksums"),
    json: z.boolean().default(false).describe("Print one JSON object"),
  }),
)] as const;

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(SECTIONS);

/**
 * Prints what a checkpoint holds.
 *
 * @param argv the arguments after `inspect`
 * @returns the exit code
 * @throws {CheckpointError} {@link FileError} if it is not complete
 * @throws {ConfigError} for arguments that are wrong
 */
export async function inspect(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    process.stdout.write(`${await configHelp(SECTIONS, "fullyshard inspect <checkpoint> [flags]")}\n`);
    return 0;
  }
  const { places, tensors, verify, json } = await resolveConfig(SECTIONS, { argv, positional: "places" });
  requirePlaces(places, ["checkpoint"]);
  const [path] = places;
  using stored = await openStored(path);
  if (verify) await requireSound(stored);
  const facts = factsOf(stored, { tensors, verified: verify });
  process.stdout.write(`${shown(json ? jsonOf(facts) : textOf(facts).join("\n"))}\n`);
  noteUnused(stored);
  return 0;
}

/** Names the files of a Hugging Face folder that were not read: weights of another kind, an adapter. */
export function noteUnused({ path, manifest, fileNames }: StoredCheckpoint): void {
  const line = manifest === undefined ? describeLeftOut(path, companionsOf(path), fileNames) : undefined;
  if (line !== undefined) process.stderr.write(`${shown(line)}\n`);
}

async function requireSound({ path, manifest }: StoredCheckpoint): Promise<void> {
  if (manifest === undefined) {
    throw new CheckpointError(path, "Cannot verify it: only sharded checkpoints have checksums");
  }
  const damage = await verifyFiles(path, manifest, ALONE);
  if (damage !== "") throw new CheckpointError(path, damage);
}

/** The facts that are shown of a checkpoint. */
interface Facts {
  readonly path: string;
  readonly kind: "sharded checkpoint" | "weights";
  /** The step, the number of ranks and the environment of the save, which only sharded checkpoints tell. */
  readonly saved?: {
    readonly step: number;
    readonly world_size: number;
    readonly environment: Readonly<Record<string, string>>;
  };
  readonly verified: boolean;
  readonly files: readonly { readonly name: string; readonly bytes: number }[];
  readonly parameters: number;
  readonly model_tensors: number;
  readonly optimizer_tensors: number;
  readonly tensors?: readonly {
    readonly name: string;
    readonly dtype: string;
    readonly shape: readonly number[];
    readonly parts: number;
  }[];
}

function factsOf(
  { path, manifest, files, model, optimizer }: StoredCheckpoint,
  { tensors, verified }: { readonly tensors: boolean; readonly verified: boolean },
): Facts {
  const listed = ({ name, code, shape, parts }: StoredTensor) => ({ name, dtype: code, shape, parts: parts.length });
  return {
    path,
    kind: manifest === undefined ? "weights" : "sharded checkpoint",
    ...manifest === undefined
      ? {}
      : { saved: { step: manifest.step, world_size: manifest.worldSize, environment: manifest.environment } },
    verified,
    files: files.map((file) => ({ name: file.path.slice(path.length + 1), bytes: fileByteLength(file.path) })),
    parameters: [...model.values()].reduce((sum, { shape }) => sum + numelOf(shape), 0),
    model_tensors: model.size,
    optimizer_tensors: optimizer.size,
    ...tensors ? { tensors: [...model.values(), ...optimizer.values()].map(listed) } : {},
  };
}

/** One object with all facts, those about the save included. */
function jsonOf({ saved, ...facts }: Facts): string {
  return JSON.stringify({ ...facts, ...saved });
}

/** Lines for people. */
function textOf(
  { path, kind, saved, verified, files, tensors, ...counts }: Facts,
): string[] {
  const bytes = formatBytes(files.reduce((sum, file) => sum + file.bytes, 0));
  return [
    `${path}: ${kind}, ${countOf(files.length, "file")}, ${bytes}${verified ? ", all checksums right" : ""}`,
    ...saved === undefined ? [] : [savedText(saved)],
    `${countOf(counts.model_tensors, "tensor")} of ${countOf(counts.parameters, "element")}; ${
      counts.optimizer_tensors === 0 ? "no optimizer" : `${countOf(counts.optimizer_tensors, "state")} of the optimizer`
    }`,
    ...tensors === undefined ? [] : tensors.map(({ name, dtype, shape, parts }) => {
      return `  ${name} ${dtype} [${shape.join(", ")}]${parts > 1 ? `, ${parts} parts` : ""}`;
    }),
  ];
}

function savedText({ step, world_size: ranks, environment }: NonNullable<Facts["saved"]>): string {
  const by = Object.entries(environment).map(([name, value]) => `${name} ${value}`).join(", ");
  return `Step ${step}, saved by ${countOf(ranks, "rank")}${by === "" ? "" : ` (${by})`}`;
}
