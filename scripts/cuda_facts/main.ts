/**
 * Regenerates `tests/fixtures/cuda/facts.json` from NVIDIA's wheels on PyPI, and compares our tables with it:
 * `node scripts/runtime.mjs bun scripts/cuda_facts/main.ts [--check] [--only name] [--wheels folder]`.
 * `--check` writes nothing, and fails if the file would change. Needs pip, g++ and nm. Downloads about 6 GB, and keeps one
 * release at a time with the headers that several need, unless `--wheels` names a folder to keep unpacked wheels in.
 *
 * @module
 */
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import type { Flag } from "../../src/config/flags.ts";
import { readScriptFlags } from "../flags.ts";
import { mismatches } from "./compare.ts";
import { type LibraryFacts, mergeObservations, type Observation } from "./facts.ts";
import { probeProgram } from "./probe.ts";
import { AUDITED, type Audited, type Release } from "./tables.ts";

const FACTS = fileURLToPath(new URL("../../tests/fixtures/cuda/facts.json", import.meta.url));

/** Tags of the wheels: pip takes one only if one of the tags that it is given is the wheel's own. */
const PLATFORMS = [
  "manylinux1",
  "manylinux2014",
  "manylinux_2_5",
  "manylinux_2_17",
  "manylinux_2_18",
  "manylinux_2_27",
];

const flags: readonly Flag[] = [
  { name: "check", takes: "switch", description: "Write nothing; fail if the file would change" },
  { name: "only", takes: "one", placeholder: "<name>", description: "Audit one library, and write nothing" },
  { name: "wheels", takes: "one", placeholder: "<folder>", description: "Keep unpacked wheels here, and use those" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

process.exitCode = main(process.argv.slice(2));

function main(argv: readonly string[]): number {
  const uses = readScriptFlags(flags, argv);
  if (typeof uses === "number") return uses;
  const only = uses.get("only")?.texts.at(-1);
  if (only !== undefined && AUDITED[only] === undefined) {
    print(`--only: expected one of ${Object.keys(AUDITED).join(", ")}, got ${only}`);
    return 2;
  }
  const kept = uses.get("wheels")?.texts.at(-1);
  const folder = kept ?? mkdtempSync(join(tmpdir(), "fullyshard-cuda-facts-"));
  try {
    const audited = Object.entries(AUDITED).filter(([key]) => only === undefined || key === only);
    const facts: Record<string, LibraryFacts> = {};
    for (const [key, library] of audited) {
      facts[key] = mergeObservations(library.releases.map((release) => {
        const observation = observe(library, release, folder, kept !== undefined);
        const counts = [...observation].map(([kind, names]) => `${names.size} ${kind}s`).join(", ");
        print(`${library.spec.name} ${release.version}: ${counts}`);
        return [release.version, observation] as const;
      }));
    }
    const wrong = audited.flatMap(([key, library]) => mismatches(library, facts[key] ?? missing(key)));
    for (const line of wrong) print(line);
    if (wrong.length > 0) return 1;
    print("The tables say what the headers say");
    return only === undefined ? report(`${JSON.stringify(facts, null, 1)}\n`, uses.has("check")) : 0;
  } finally {
    if (kept === undefined) rmSync(folder, { recursive: true });
  }
}

function report(text: string, isCheck: boolean): number {
  if (!isCheck) {
    writeFileSync(FACTS, text);
    return 0;
  }
  const isEqual = readFileSync(FACTS, "utf8") === text;
  print(
    isEqual ? `${FACTS} is what the headers give` : `${FACTS} is not what the headers give: run this without --check`,
  );
  return isEqual ? 0 : 1;
}

/** The declarations in one release's headers, and the exports of its library. */
function observe(library: Audited, release: Release, folder: string, keep: boolean): Observation {
  const roots = release.wheels.map((wheel) => unpack(wheel, folder));
  const files = roots.map((root) =>
    readdirSync(root, { recursive: true, encoding: "utf8" }).map((file) => join(root, file))
  );
  const folders = files.flat().filter((file) => /\/nvidia\/\w+\/include(\/cccl)?$/.test(file));
  const includes = folders.flatMap((path) => ["-I", path]);

  const text = run(
    "g++",
    ["-std=c++20", "-w", "-E", "-dD", ...includes, "-x", "c++", "-"],
    probeProgram(library, () => false),
  );
  const words = new Set(text.match(/\w+/g));
  const binary = join(folder, "probe");
  run(
    "g++",
    ["-std=c++20", "-w", ...includes, "-x", "c++", "-o", binary, "-"],
    probeProgram(library, (name) => words.has(name)),
  );
  const { file: name } = library;
  const shared = name === undefined ? undefined : files[0]?.find((file) => file.includes(`/${name}`));
  if (name !== undefined && shared === undefined) throw new Error(`${release.wheels[0]} has no ${name}`);
  const exported = shared === undefined ? undefined : exportsOf(shared);

  const seen = new Map<string, Map<string, string>>();
  for (const line of run(binary, []).trim().split("\n")) {
    const [kind = "", name = "", fact = ""] = line.split("\t");
    const isExported = kind !== "function" || exported === undefined || exported.has(name);
    const facts = seen.get(kind) ?? new Map<string, string>();
    seen.set(kind, facts.set(name, isExported ? fact : `not exported: ${fact}`));
  }
  rmSync(binary);
  const [own] = roots;
  if (!keep && own !== undefined) rmSync(own, { recursive: true });
  return seen;
}

/** Downloads a wheel and unpacks it, unless the folder holds it already. */
function unpack(wheel: string, folder: string): string {
  const root = join(folder, wheel);
  const download = join(folder, "download");
  if (existsSync(root)) return root;
  const tags = PLATFORMS.flatMap((platform) => ["--platform", `${platform}_x86_64`]);
  const options = ["--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:", ...tags, "--dest", download];
  run("python3", ["-m", "pip", "download", "--disable-pip-version-check", ...options, wheel]);
  const [file = ""] = readdirSync(download);
  run("python3", ["-m", "zipfile", "-e", join(download, file), root]);
  rmSync(download, { recursive: true });
  return root;
}

function exportsOf(file: string): ReadonlySet<string> {
  const lines = run("nm", ["-D", "--defined-only", file]).trim().split("\n");
  return new Set(lines.map((line) => (line.split(" ").at(-1) ?? "").replace(/@.*/, "")));
}

function run(program: string, args: readonly string[], input = ""): string {
  const { status, stdout, stderr, error } = spawnSync(program, args, {
    input,
    encoding: "utf8",
    maxBuffer: 2 ** 30,
  });
  if (status === 0) return stdout;
  throw new Error(`${program} failed (${error?.message ?? status}):\n${stderr.slice(0, 4000)}`);
}

function missing(key: string): never {
  throw new Error(`no facts about ${key}`);
}

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}
