/**
 * `fullyshard pull`: a model of Hugging Face's Hub into its cache, where `--model` and `openModel` find it by name, and
 * `transformers` too; or a data set, which `--data hf://datasets/<owner>/<name>` finds.
 *
 * @module
 */
import process from "node:process";
import * as z from "zod";
import { fromHome, hubCache, hubHome, parseHubName } from "../checkpoint/hugging_face/hub_cache.ts";
import { type Flag, helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { section } from "../config/section.ts";
import { ConfigError, FileError } from "../errors.ts";
import { type Environment, processEnvironment } from "../runtime/env.ts";
import { pathKind, readTextSync } from "../runtime/files.ts";
import { shown } from "../words.ts";
import { HubServer, webAddress } from "./hub.ts";
import { requirePlaces } from "./places.ts";
import { pullModel } from "./pull_files.ts";

/** The Hub. */
const HUB = "https://huggingface.co";
/** Seconds without a byte after which a request fails. */
const STALL_SECONDS = 60;

const SECTIONS = [section(
  "pull",
  z.strictObject({
    places: z.array(z.string()).default([]).describe(
      "The model or data set, as owner/name or owner/name@revision, as an argument or by --places",
    ),
    repoType: z.enum(["model", "dataset"]).default("model").describe("Kind of repository"),
    endpoint: z.string().optional().describe(`The server (default: HF_ENDPOINT, else ${HUB})`),
    fileHost: z.array(z.string()).default([]).describe(
      "A host that the server sends files from, beside its own: under Deno no other one is asked",
    ),
  }),
)] as const;

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(SECTIONS);

/**
 * Downloads a model or a data set, or what is missing of it.
 *
 * @param argv the arguments after `pull`
 * @returns the exit code
 * @throws {ConfigError} for arguments and variables that are wrong
 * @throws {FileError} if it cannot be had, or the cache not be written
 * @throws {CheckpointError} if what came is not what the server said it is
 */
export async function pull(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    process.stdout.write(`${await configHelp(SECTIONS, "fullyshard pull <owner>/<name>[@<revision>] [flags]")}\n`);
    return 0;
  }
  const { places, repoType, endpoint: given } = await resolveConfig(SECTIONS, { argv, positional: "places" });
  requirePlaces(places, ["name"]);
  const [text] = places;
  const model = parseHubName(text, repoType);
  if (model === undefined) {
    const expected = `a ${repoType} of the Hub, such as Qwen/Qwen3-0.6B or Qwen/Qwen3-0.6B@main`;
    throw new ConfigError([{ path: "name", expected, got: `'${text}'` }]);
  }
  const env = processEnvironment();
  if (/^(1|on|yes|true)$/i.test(env.text("HF_HUB_OFFLINE") ?? "")) {
    throw new FileError(text, "pull", "HF_HUB_OFFLINE is set, so that nothing may be asked of a server; unset it");
  }
  const endpoint = requireAddress(given, env);
  const note = (line: string): void => void process.stderr.write(`${shown(line)}\n`);
  const snapshot = await pullModel(model, {
    server: new HubServer(endpoint, tokenOf(env), env.seconds("HF_HUB_DOWNLOAD_TIMEOUT") ?? STALL_SECONDS),
    cache: hubCache(env),
    note,
  });
  process.stdout.write(`${snapshot}\n`);
  return 0;
}

function requireAddress(given: string | undefined, env: Environment): string {
  const address = given ?? env.text("HF_ENDPOINT") ?? HUB;
  if (webAddress(address) !== undefined) return address;
  const path = given === undefined ? "HF_ENDPOINT" : "--endpoint";
  throw new ConfigError([{ path, expected: "an address that begins with https:// or http://", got: `'${address}'` }]);
}

/** The user's token: the variable's, else the token of Hugging Face's file. */
function tokenOf(env: Environment): string | undefined {
  const named = env.text("HF_TOKEN")?.trim();
  if (named !== undefined && named !== "") return named;
  const path = env.text("HF_TOKEN_PATH");
  const file = path === undefined ? `${hubHome(env)}/token` : fromHome(path, env);
  const token = pathKind(file) === "file" ? readTextSync(file).trim() : "";
  return token === "" ? undefined : token;
}
