/**
 * Packs the npm package, lays it out as an installation, and loads it in Bun and in Deno: as it is, and bundled by
 * esbuild. Deno runs without any permission, so that this also shows that importing the library does nothing to the
 * machine. The package's command is run too.
 *
 * @module
 */

import { build } from "esbuild";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const runtimes = [
  [process.env["FULLYSHARD_BUN"] ?? "bun", "run"],
  [process.env["FULLYSHARD_DENO"] ?? "deno", "run", "--no-prompt"],
] as const;

const folder = mkdtempSync(`${tmpdir()}/fullyshard-package-`);
try {
  install();
  const expected = JSON.stringify(Object.keys(await import("../mod.ts")).sort());
  const load = (name: string): string =>
    `import * as library from ${JSON.stringify(name)};\nconsole.log(JSON.stringify(Object.keys(library).sort()));\n`;
  writeFileSync(`${folder}/package.json`, '{ "type": "module" }\n');
  writeFileSync(`${folder}/installed.js`, load("fullyshard"));
  writeFileSync(`${folder}/bundled.js`, load("./bundle.js"));
  await build({
    absWorkingDir: folder,
    stdin: { contents: 'export * from "fullyshard";\n', resolveDir: folder },
    outfile: `${folder}/bundle.js`,
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
  const version = execute("node", ["node_modules/fullyshard/bin/fullyshard.mjs", "--version"]);
  const { size } = statSync(`${folder}/bundle.js`);
  process.stdout.write(`fullyshard ${version}: ${JSON.parse(expected).length} names, bundle of ${size} bytes\n`);
} finally {
  rmSync(folder, { recursive: true });
}

/** What `npm install` would do, with the dependencies that are here already. */
function install(): void {
  execFileSync("npm", ["pack", "--silent", "--pack-destination", folder], {
    cwd: root,
    stdio: ["ignore", "pipe", "inherit"],
  });
  mkdirSync(`${folder}/node_modules/fullyshard`, { recursive: true });
  execute("sh", ["-c", "tar -xzf fullyshard-*.tgz --strip-components=1 -C node_modules/fullyshard"]);
  for (const name of ["zod", "yaml", "@huggingface"]) {
    symlinkSync(`${root}node_modules/${name}`, `${folder}/node_modules/${name}`);
  }
}

function execute(program: string, args: readonly string[]): string {
  return execFileSync(program, args, { cwd: folder, encoding: "utf8" }).trim();
}
