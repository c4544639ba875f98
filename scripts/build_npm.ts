/**
 * Makes `dist/`, what the npm package holds: each source file as JavaScript with its declarations, and the WASM
 * kernels. Deno does not read TypeScript below `node_modules`, so the package cannot be the sources themselves. One
 * file stays one file: stack traces and the addresses of kernels and workers keep their meaning.
 *
 * `dist/deno/`, which is not in that package, is what Deno imports by URL: the sources, with packages named as `npm:` ones.
 *
 * @module
 */

import { transform } from "esbuild";
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";

process.chdir(fileURLToPath(new URL("..", import.meta.url)));

/** Addresses of sibling files, which end in `.js` there: imports, workers and the choice of an FFI provider. */
const sibling = /(["'`])(\.{1,2}\/[^"'`\s]+)\.ts\1/g;

/** A package that a file loads, after what comes before it on the line. */
const bare = /^((?!\s*\*).*(?:\bfrom |\bimport\())"([^."][^":]*)"/gm;

rmSync("dist", { recursive: true, force: true });
const kernels = ["wasm/mod.ts", "wasm/native.ts", "wasm/digests.ts"];
const sources = ["mod.ts", ...kernels, ...filesIn("doors"), ...filesIn("src"), ...filesIn("ffi")];
for (const file of sources) {
  const { code } = await transform(readFileSync(file, "utf8"), { loader: "ts", format: "esm", target: "esnext" });
  write(`dist/${file.replace(/\.ts$/, ".js")}`, code.replace(sibling, "$1$2.js$1"));
}
const deno: { imports: Record<string, string> } = JSON.parse(readFileSync("deno.json", "utf8"));
for (const file of sources) {
  const text = readFileSync(file, "utf8");
  write(`dist/deno/${file}`, text.replace(bare, (_, before, name) => `${before}"${packageAddress(name)}"`));
}
const compiler = fileURLToPath(new URL("../node_modules/typescript/bin/tsc", import.meta.url));
execFileSync("node", [compiler, "--project", "scripts/tsconfig.declarations.json"], { stdio: "inherit" });
for (const name of readdirSync("dist", { recursive: true, encoding: "utf8" })) {
  if (!name.endsWith(".d.ts")) continue;
  write(`dist/${name}`, readFileSync(`dist/${name}`, "utf8").replace(sibling, "$1$2.js$1"));
}
for (const folder of ["dist", "dist/deno"]) cpSync("wasm/pkg", `${folder}/wasm/pkg`, { recursive: true });
for (const folder of ["dist", "dist/deno"]) {
  cpSync("src/device/cuda/kernels", `${folder}/src/device/cuda/kernels`, { recursive: true });
}
const { version }: { version: string } = JSON.parse(readFileSync("package.json", "utf8"));
write("dist/package.json", `${JSON.stringify({ version, type: "module" })}\n`);

function packageAddress(name: string): string {
  const address = deno.imports[name];
  if (address === undefined) throw new Error(`deno.json has no import '${name}'`);
  return address;
}

function filesIn(folder: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: "utf8" })
    .map((name) => `${folder}/${name}`)
    .filter((name) => name.endsWith(".ts") && statSync(name).isFile());
}

function write(file: string, text: string): void {
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
}
