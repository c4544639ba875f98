/**
 * Makes `fullyshard` as a single executable in `dist/binary/`, for Linux on x64 and arm64, and tries the one that this machine runs.
 *
 * Usage: npm run binary -- [--target x64|arm64] [--no-try]
 *
 * @module
 */
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { describeFlags, type Flag, readFlags } from "../../src/config/flags.ts";
import { formatBytes } from "../../src/words.ts";
import { installInto, packInto, ROOT, temporaryFolder } from "../packed.ts";
import { type ArchivedFile, pack } from "./archive.ts";
import { tryBinary } from "./try.ts";

const flags: readonly Flag[] = [
  { name: "target", takes: "many", placeholder: "<x64|arm64>", description: "Processor; default: both" },
  { name: "try", takes: "switch", description: "Run what this machine can run", default: "true" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

/** Bun's packages by processor, each with its executable. */
const TARGETS: Readonly<Record<string, string>> = { x64: "@oven/bun-linux-x64", arm64: "@oven/bun-linux-aarch64" };

const { uses, problems } = readFlags(flags, process.argv.slice(2));
const wanted = uses.get("target")?.texts ?? Object.keys(TARGETS);
const unknown = wanted.filter((target) => TARGETS[target] === undefined);
if (problems.length > 0 || unknown.length > 0 || uses.has("help")) {
  for (const { path, expected, got } of problems) print(`${path}: expected ${expected}, got ${got}`);
  if (unknown.length > 0) print(`--target: expected x64 or arm64, got ${unknown.join(" ")}`);
  print(`Usage: npm run binary -- [flags]\n\n${describeFlags(flags)}`);
  process.exit(uses.has("help") ? 0 : 2);
}

const own = process.arch === "arm64" ? "arm64" : "x64";
using temporary = temporaryFolder();
const work = temporary.path;
const { version }: { version: string } = JSON.parse(readFileSync(`${ROOT}package.json`, "utf8"));
const archive = archiveOf(work);
const out = `${ROOT}dist/binary`;
mkdirSync(out, { recursive: true });
for (const target of wanted) build(target);
const isTried = uses.get("try")?.texts.at(-1) !== "false" && wanted.includes(own);
const outcome = isTried ? tryBinary(`${out}/fullyshard-linux-${own}`) : { passed: 0, failed: 0 };
for (const target of wanted) if (!isTried || target !== own) print(`fullyshard-linux-${target} was not run`);
print(`${outcome.passed} passed, ${outcome.failed} failed`);
if (outcome.failed > 0) process.exitCode = 1;

/** Packs the npm package with its dependencies, as an installation has them. */
function archiveOf(folder: string): Uint8Array {
  const tarball = packInto(folder);
  installInto(`${folder}/installed`, tarball);
  const root = `${folder}/installed/`;
  const names = filesBelow(root, "node_modules");
  const files = names.filter(isRun).map((path): ArchivedFile => ({ path, content: readFileSync(root + path) }));
  return gzipSync(pack([...files, ...plainDoors()]), { level: 9 });
}

/**
 * A file for each door of the package. Ranks find the package by NODE_PATH, where Bun looks for files and reads no `exports`.
 */
function plainDoors(): readonly ArchivedFile[] {
  const { exports }: { exports: Record<string, string | { readonly bun: string }> } = JSON.parse(
    readFileSync(`${ROOT}package.json`, "utf8"),
  );
  return Object.entries(exports).flatMap(([door, target]) => {
    if (typeof target === "string") return [];
    const text = `export * from ${JSON.stringify(target.bun)};\n`;
    const path = `node_modules/fullyshard/${door === "." ? "index" : door.slice(2)}.js`;
    return [{ path, content: new TextEncoder().encode(text) }];
  });
}

/** Paths of all files of a folder, also behind links. */
function filesBelow(root: string, folder: string): readonly string[] {
  return readdirSync(root + folder).sort().flatMap((name) => {
    const path = `${folder}/${name}`;
    if (name === ".bin") return [];
    return statSync(root + path).isDirectory() ? filesBelow(root, path) : [path];
  });
}

/** True for a file that is needed at run time: no declarations, no maps, no sources of dependencies. */
function isRun(path: string): boolean {
  if (/\.(?:d\.[cm]?ts|map)$/.test(path)) return false;
  return path.startsWith("node_modules/fullyshard/") || !/\.(?:[cm]?tsx?|md)$/.test(path);
}

function build(target: string): void {
  const digest = createHash("sha256").update(archive).digest("hex");
  const entry = `${work}/entry.js`;
  const startUrl = fileURLToPath(new URL("start.ts", import.meta.url));
  writeFileSync(`${work}/archive.bin`, archive);
  writeFileSync(
    entry,
    `import archive from "./archive.bin" with { type: "file" };\n` +
      `import { start } from ${JSON.stringify(startUrl)};\n` +
      `start(archive, ${JSON.stringify(digest)}, ${JSON.stringify(version)});\n`,
  );
  const bun = bunOf(target);
  const outfile = `${out}/fullyshard-linux-${target}`;
  rmSync(outfile, { force: true });
  const args = ["build", "--compile", `--target=bun-linux-${target}`, `--compile-executable-path=${bun}`];
  execFileSync(process.execPath, [...args, entry, `--outfile=${outfile}`], {
    cwd: work,
    stdio: ["ignore", "ignore", "inherit"],
  });
  print(
    `${outfile.slice(ROOT.length)}: ${formatBytes(statSync(outfile).size)}, the package in it ${
      formatBytes(archive.length)
    }`,
  );
}

/** The executable of Bun for a processor: the one that runs this script, or the same version from npm. */
function bunOf(target: string): string {
  if (target === own) return process.execPath;
  const folder = `${work}/bun-${target}`;
  mkdirSync(folder);
  const spec = `${TARGETS[target]}@${process.versions.bun}`;
  const packed = execFileSync("npm", ["pack", "--silent", "--pack-destination", folder, spec], { encoding: "utf8" });
  execFileSync("tar", ["-xzf", `${folder}/${packed.trim()}`, "--strip-components=1", "-C", folder]);
  return `${folder}/bin/bun`;
}

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}
