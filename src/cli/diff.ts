/**
 * `fullyshard diff`: what differs between two checkpoints or Hugging Face folders. Ends with 1 if anything does, as `diff` does.
 *
 * @module
 */
import process from "node:process";
import * as z from "zod";
import { differencesOf, type TensorDifference } from "../checkpoint/offline/diff.ts";
import { openStored } from "../checkpoint/offline/stored.ts";
import { type Flag, helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { section } from "../config/section.ts";
import { countOf, shown } from "../words.ts";
import { noteUnused } from "./inspect.ts";
import { placesKey, requirePlaces } from "./places.ts";

const SECTIONS = [section(
  "diff",
  z.strictObject({
    places: placesKey.describe("Two checkpoints or folders, as arguments or by --places"),
    json: z.boolean().default(false).describe("Print one JSON object"),
  }),
)] as const;

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(SECTIONS);

/**
 * Compares weights, and states of optimizers where both have them, by their bits.
 *
 * @param argv the arguments after `diff`
 * @returns 0 if nothing differs, else 1
 * @throws {CheckpointError} {@link FileError} if one is not complete
 * @throws {ConfigError} for arguments that are wrong
 */
export async function diff(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    process.stdout.write(`${await configHelp(SECTIONS, "fullyshard diff <checkpoint> <checkpoint> [flags]")}\n`);
    return 0;
  }
  const { places, json } = await resolveConfig(SECTIONS, { argv, positional: "places" });
  requirePlaces(places, ["checkpoint", "checkpoint"]);
  const [left, right] = places;
  using first = await openStored(left);
  using second = await openStored(right);
  const differences = [...differencesOf(first, second)];
  const steps = [first, second].map(({ manifest }) => manifest?.step ?? null);
  const compared = first.model.size + (second.optimizer.size > 0 ? first.optimizer.size : 0);
  const lines = [
    ...differences.map(lineOf),
    differences.length === 0
      ? `No difference in ${countOf(compared, "tensor")}`
      : `${countOf(differences.length, "difference")} in ${countOf(compared, "tensor")}`,
  ];
  process.stdout.write(`${shown(json ? JSON.stringify({ compared, steps, differences }) : lines.join("\n"))}\n`);
  for (const stored of [first, second]) noteUnused(stored);
  return differences.length === 0 ? 0 : 1;
}

function lineOf({ name, kind, shapes, values }: TensorDifference): string {
  if (shapes !== undefined) return `${name}: ${shapes.map((shape) => `[${shape.join(", ")}]`).join(" and ")}`;
  if (values === undefined) return `${name}: ${kind}`;
  const { elements, of, largest } = values;
  return `${name}: ${elements} of ${countOf(of, "element")} differ, by at most ${largest}`;
}
