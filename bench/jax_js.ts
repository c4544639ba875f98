/**
 * jax-js, which is compared with and never a dependency: the folder that PEER_JAX_JS names, or the version below, fetched by npm into a
 * folder that is removed again.
 *
 * @module
 */
import { readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { rank, runProgram } from "./process.ts";
import { program, type Side } from "./subject.ts";

/** The version that is fetched. */
const VERSION = "0.1.25";

/** jax-js on this machine, or why it is not. */
export type JaxJs = { readonly folder: string; readonly version: string } | { readonly missing: string };

/** Finds jax-js, or fetches it. @returns it, and what removes what was fetched */
export async function openJaxJs(named: string | undefined): Promise<AsyncDisposable & { readonly jaxJs: JaxJs }> {
  if (named !== undefined) return { jaxJs: jaxJsIn(named), [Symbol.asyncDispose]: () => Promise.resolve() };
  const folder = await mkdtemp(join(tmpdir(), "fullyshard-jax-js-"));
  return {
    jaxJs: await fetchInto(folder),
    [Symbol.asyncDispose]: () => rm(folder, { recursive: true }),
  };
}

async function fetchInto(folder: string): Promise<JaxJs> {
  const flags = ["--prefix", folder, "--no-save", "--ignore-scripts", "--no-audit", "--no-fund"];
  try {
    await runProgram("npm", ["install", ...flags, `@jax-js/jax@${VERSION}`]);
  } catch (error) {
    const [why] = /^npm error .*|ENOENT.*/m.exec(error instanceof Error ? error.message : "") ?? ["npm failed"];
    return { missing: `jax-js ${VERSION} could not be fetched (${why}): name its folder in PEER_JAX_JS` };
  }
  return jaxJsIn(`${folder}/node_modules/@jax-js/jax`);
}

/** jax-js in the folder of its package. */
export function jaxJsIn(folder: string): JaxJs {
  const missing = `there is no @jax-js/jax in '${folder}': expected the folder that has its package.json`;
  try {
    const { name, version } = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
    return name === "@jax-js/jax" ? { folder, version } : { missing };
  } catch {
    return { missing };
  }
}

/** jax-js's side: a script of `bench/peers`, run by the same runtime as ours. */
export function jaxJsSide(script: string): Side {
  return program(({ runtime, jaxJs }, names) => {
    if (jaxJs === undefined || "missing" in jaxJs) throw new Error(jaxJs?.missing ?? "jax-js was not looked for");
    return rank(runtime, `bench/peers/${script}`, jaxJs.folder, ...names);
  });
}
