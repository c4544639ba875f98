/**
 * Packs the npm package, lays it out as an installation, and loads it in Bun and in Deno: as it is, and bundled by
 * esbuild. Deno runs without any permission, so that this also shows that importing the library does nothing to the
 * machine. The package's command is run too, and plain Node is refused by every door in one sentence.
 *
 * @module
 */

import { build } from "esbuild";
import { execFileSync, spawnSync } from "node:child_process";
import { cpSync, existsSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { posix } from "node:path";
import process from "node:process";
import { installInto, packInto, ROOT, temporaryFolder } from "./packed.ts";

const runtimes = [
  [process.env["FULLYSHARD_BUN"] ?? "bun", "run"],
  [process.env["FULLYSHARD_DENO"] ?? "deno", "run", "--no-prompt"],
] as const;

/** The path after the package's name. */
const doors = ["", "/nn", "/device", "/comm", "/checkpoint", "/data", "/config", "/errors", "/testing"];

using temporary = temporaryFolder();
const folder = temporary.path;
installInto(folder, packInto(folder));
for (const link of brokenLinks(`${folder}/node_modules/fullyshard/`)) throw new Error(link);
const expected = await namesOfSources();
const names = doors.map((door) => `Object.keys(await import(${JSON.stringify(`fullyshard${door}`)})).sort()`);
const load = `console.log(JSON.stringify([${names}]));\n`;
writeFileSync(`${folder}/package.json`, '{ "type": "module" }\n');
writeFileSync(`${folder}/installed.js`, load);
await build({
  absWorkingDir: folder,
  stdin: { contents: load, resolveDir: folder },
  outfile: `${folder}/bundled.js`,
  bundle: true,
  format: "esm",
  platform: "node",
  target: "esnext",
  external: ["bun:ffi"],
  logLevel: "warning",
});
for (const script of ["installed.js", "bundled.js"]) {
  for (const [program, ...args] of runtimes) {
    const found = execute(program, [...args, script]);
    if (found !== expected) throw new Error(`${script}: expected the names ${expected}, got ${found}`);
  }
}
for (const door of doors) {
  const script = `import * as all from "fullyshard${door}"; console.log(Object.keys(all));`;
  const { status, stdout, stderr } = spawnSync("node", ["--input-type=module", "--eval", script], {
    cwd: folder,
    encoding: "utf8",
  });
  if (status !== 1 || stdout !== "" || !/^fullyshard runs on Bun or Deno, not on Node: [^\n]*\n$/.test(stderr)) {
    throw new Error(
      `expected Node to be refused 'fullyshard${door}' in one sentence, got ${status}: ${stdout}${stderr}`,
    );
  }
}
// A new project trains as it is: its package is found above its folder.
const bin = "node_modules/fullyshard/bin/fullyshard.mjs";
cpSync(`${ROOT}create`, `${folder}/node_modules/create-fullyshard`, { recursive: true });
execute("node", ["node_modules/create-fullyshard/create.mjs", "mine", "--kind", "module", "--defaults"]);
for (const runtime of ["bun", "deno"]) {
  const { status, stdout, stderr } = spawnSync(
    "node",
    [`../${bin}`, "--runtime", runtime, "run", "--nproc-per-node", "2", "train.ts"],
    { cwd: `${folder}/mine`, encoding: "utf8" },
  );
  const loss = Number(/step 300 {2}loss (\S+)/.exec(stdout)?.[1]);
  if (status !== 0 || !(loss < 0.05)) throw new Error(`the new project ended with ${status}: ${stdout}${stderr}`);
}
const version = execute("node", [bin, "--version"]);
const { size } = statSync(`${folder}/bundled.js`);
process.stdout.write(
  `fullyshard ${version}: ${
    JSON.parse(expected).flat().length
  } values of ${doors.length} doors, bundle of ${size} bytes\n`,
);

/** Links of the package's own texts to what it does not hold. */
function brokenLinks(installed: string): string[] {
  const texts = readdirSync(installed, { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(".md"));
  return texts.flatMap((name) =>
    [...readFileSync(`${installed}${name}`, "utf8").matchAll(/\]\(([^)#:]+)\)/g)]
      .map(([, target = ""]) => posix.join(posix.dirname(name), target))
      .filter((target) => !existsSync(`${installed}${target}`))
      .map((target) => `${name} links to ${target}, which is not in the package`)
  );
}

/** The names of the values of each door's source. */
async function namesOfSources(): Promise<string> {
  const { exports }: { exports: Record<string, string> } = JSON.parse(readFileSync(`${ROOT}deno.json`, "utf8"));
  const modules = await Promise.all(doors.map((door) => import(`${ROOT}${exports[`.${door}`]}`)));
  return JSON.stringify(modules.map((module) => Object.keys(module).sort()));
}

function execute(program: string, args: readonly string[]): string {
  return execFileSync(program, args, { cwd: folder, encoding: "utf8" }).trim();
}
