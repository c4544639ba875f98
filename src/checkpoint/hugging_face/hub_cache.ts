/**
 * Hugging Face's cache: its place, and the snapshots of models and data sets in it. Nothing is written here; `fullyshard pull` does that, and
 * so does `huggingface_hub`, in the same layout:
 *
 *     models--Qwen--Qwen3-0.6B/blobs/<etag>              what files hold
 *     models--Qwen--Qwen3-0.6B/snapshots/<commit>/<file> links to blobs
 *     models--Qwen--Qwen3-0.6B/refs/<branch or tag>      the commit that it is
 *
 * Permissions on Deno: `--allow-read` of the cache, `--allow-env` of the variables that name its place.
 *
 * @module
 */
import { ConfigError } from "../../errors.ts";
import { type Environment, processEnvironment } from "../../runtime/env.ts";
import { pathKind, readTextSync } from "../../runtime/files.ts";

/** Kinds of repositories on the Hub. */
export type RepoType = "model" | "dataset";

/** A model or a data set of the Hub. */
export interface HubName {
  readonly repoType: RepoType;
  /** E.g. `Qwen/Qwen3-0.6B`. */
  readonly name: string;
  /** A branch, a tag or a commit. */
  readonly revision: string;
}

/** An owner, where there is one, and a name, of letters, digits and `-_.`, then optionally a revision. */
const NAME = /^(?<name>(?:[\w.-]+\/)?[\w.-]+)(?:@(?<revision>[\w.-]+(?:\/[\w.-]+)*))?$/;
/** The Hub has no such names, and a path has. */
const NO_NAME = /(?:^|\/)[.-]|[.-](?:\/|$)|--|\.\./;
/** A commit. */
const COMMIT = /^[0-9a-f]{40}$/;

/** Reads `owner/name@revision`; undefined for what the Hub can have nothing of. */
export function parseHubName(text: string, repoType: RepoType = "model"): HubName | undefined {
  const { name, revision = "main" } = NAME.exec(text)?.groups ?? {};
  if (name === undefined || name.length > 96 || NO_NAME.test(name) || NO_NAME.test(revision)) return undefined;
  return { repoType, name, revision };
}

/** The name as the user wrote it. */
export function formatHubName({ name, revision }: HubName): string {
  return revision === "main" ? name : `${name}@${revision}`;
}

/** True if a revision is a commit, which never moves. */
export function isCommit(revision: string): boolean {
  return COMMIT.test(revision);
}

/** Hugging Face's folder of a user, as huggingface_hub finds it. */
export function hubHome(env: Environment = processEnvironment()): string {
  const caches = env.text("XDG_CACHE_HOME") ?? "~/.cache";
  return fromHome(env.text("HF_HOME") ?? `${caches}/huggingface`, env);
}

/**
 * The folder of the cache.
 *
 * @throws {ConfigError} if no variable says where it is
 */
export function hubCache(env: Environment = processEnvironment()): string {
  const named = env.text("HF_HUB_CACHE") ?? env.text("HUGGINGFACE_HUB_CACHE");
  return named === undefined ? `${hubHome(env)}/hub` : fromHome(named, env);
}

/** A path whose `~` is the user's folder. */
export function fromHome(path: string, env: Environment): string {
  if (path !== "~" && !path.startsWith("~/")) return path;
  const home = env.text("HOME");
  if (home !== undefined) return home + path.slice(1);
  const expected = "the user's folder, or HF_HUB_CACHE to say where Hugging Face's cache is";
  throw new ConfigError([{ path: "HOME", expected, got: "nothing" }]);
}

/** The folder of a model or a data set in a cache. */
export function hubFolder(cache: string, { name, repoType }: HubName): string {
  return `${cache}/${repoType}s--${name.replaceAll("/", "--")}`;
}

/** A place in a data set of the Hub, by the address that `datasets` and `huggingface_hub` give it. */
const DATASET_PLACE = /^hf:\/\/datasets\/(?<name>[^/@]+\/[^/@]+(?:@[^/]+)?)(?:\/(?<path>.*))?$/;

/**
 * The path of `hf://datasets/<owner>/<name>[@<revision>][/<path or pattern>]` in the cache; any other text as it is.
 *
 * @throws {ConfigError} if the data set is not in the cache. @param name what errors call the text
 */
export function datasetPath(text: string, name: string): string {
  if (!text.startsWith("hf://")) return text;
  const { name: named = "", path = "" } = DATASET_PLACE.exec(text)?.groups ?? {};
  const dataset = parseHubName(named, "dataset");
  if (dataset === undefined) {
    const expected = "a data set of the Hub, such as hf://datasets/trl-lib/Capybara/data/train-*.parquet";
    throw new ConfigError([{ path: name, expected, got: `'${text}'` }]);
  }
  const cache = hubCache();
  const snapshot = findSnapshot(dataset, cache);
  if (snapshot !== undefined) return path === "" ? snapshot : `${snapshot}/${path}`;
  const got = `no revision '${dataset.revision}' of '${dataset.name}' in the cache '${cache}'`;
  const remedy = `get it by: fullyshard pull ${formatHubName(dataset)} --repo-type dataset`;
  throw new ConfigError([{ path: name, where: text, expected: "a data set in the cache", got: `${got}; ${remedy}` }]);
}

/** The snapshot of a model or a data set in the cache; undefined if it is not there. */
export function findSnapshot(model: HubName, cache: string): string | undefined {
  const folder = hubFolder(cache, model);
  const ref = `${folder}/refs/${model.revision}`;
  const commit = pathKind(ref) === "file" ? readTextSync(ref).trim() : model.revision;
  if (!isCommit(commit)) return undefined;
  const snapshot = `${folder}/snapshots/${commit}`;
  // A model is there with its config; of a data set, nobody knows which files it must have.
  const isThere = model.repoType === "dataset"
    ? pathKind(snapshot) === "directory"
    : pathKind(`${snapshot}/config.json`) === "file";
  return isThere ? snapshot : undefined;
}
