#!/usr/bin/env node
/**
 * The command `fullyshard`, for whichever runtime starts it. Bun and Deno run the command line in this process; Node looks for one of them:
 * the one named by `--runtime` (as the first argument) or FULLYSHARD_RUNTIME, else Bun, else Deno.
 *
 * @module
 */

import { existsSync, realpathSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { findRuntime, variablesWithRuntimes } from "./runtimes.mjs";
import { runProgram } from "./run_program.mjs";

// The npm package holds the sources as JavaScript, the repository as they are.
const built = new URL("../dist/src/cli/main.js", import.meta.url);
const source = new URL("../src/cli/main.ts", import.meta.url);
const cli = existsSync(source) ? source : built;

let args = process.argv.slice(2);
let wanted = process.env.FULLYSHARD_RUNTIME;
if (args[0] === "--runtime") [, wanted, ...args] = args;
else if (args[0]?.startsWith("--runtime=")) [wanted, ...args] = [args[0].slice("--runtime=".length), ...args.slice(1)];

const own = process.versions.bun !== undefined ? "bun" : process.versions.deno !== undefined ? "deno" : "node";
if (wanted !== undefined && wanted !== "" && wanted !== "auto" && wanted !== "bun" && wanted !== "deno") {
  process.stderr.write(`fullyshard: expected the runtime bun, deno or auto, got '${wanted}'\n`);
  process.exitCode = 2;
} else if (own !== "node" && (!wanted || wanted === "auto" || wanted === own)) {
  const { main } = await import(cli.href);
  process.exitCode = await main(args);
} else {
  start(!wanted || wanted === "auto" ? ["bun", "deno"] : [wanted]);
}

/** Runs the command line in the first of these runtimes that there is. */
function start(names) {
  for (const name of names) {
    const program = findRuntime(name);
    if (program === undefined) continue;
    const before = name === "deno" ? ["run", "--no-prompt", ...denoPermissions(program)] : [];
    runProgram(program, [...before, fileURLToPath(cli), ...args], variablesWithRuntimes());
    return;
  }
  process.stderr.write(
    `fullyshard: found neither ${names.join(" nor ")} in node_modules or on PATH. ` +
      `Install one of them: npm install ${names.join(", or npm install ")}\n`,
  );
  process.exitCode = 127;
}

/** The hosts that a model may be pulled from: the server's, and those that are named. Its address is checked by the command. */
function hostPermissions() {
  const valuesOf = (flag) =>
    args.flatMap((text, i) =>
      text === flag ? args.slice(i + 1, i + 2) : text.startsWith(`${flag}=`) ? [text.slice(flag.length + 1)] : []
    );
  const [endpoint = process.env.HF_ENDPOINT || "https://huggingface.co"] = valuesOf("--endpoint").reverse();
  if (!URL.canParse(endpoint)) return [];
  const { host, port, protocol } = new URL(endpoint);
  const server = port === "" ? `${host}:${protocol === "http:" ? 80 : 443}` : host;
  // The Hub sends files from servers of these names, which change.
  const servers = host === "huggingface.co" ? ["*.hf.co", "*.huggingface.co"] : [];
  return host === "" ? [] : [`--allow-net=${[server, ...servers, ...valuesOf("--file-host")].join(",")}`];
}

/** Permissions of the command line itself under Deno; ranks are given their own permissions. */
function denoPermissions(deno) {
  const all = ["--allow-read", "--allow-env"];
  if (["doctor", "estimate", "eval", "chat", "generate"].includes(args[0])) return [...all, "--allow-ffi"];
  if (args[0] === "demo") return [...all, "--allow-net=127.0.0.1", "--allow-write"];
  if (args[0] === "pull") return [...all, "--allow-write", "--allow-sys=statfs", ...hostPermissions()];
  if (["tokenizer", "config", "init", "merge", "export", "reshard", "report", "trace"].includes(args[0])) {
    return [...all, "--allow-write"];
  }
  if (!["run", "train", "launch"].includes(args[0])) return all;
  // The ranks' runtime, and the shell that stops them when this is killed. Deno starts nothing under an LD_ variable
  // unless it may run everything.
  // Deno asks for the file that a link leads to.
  const found = [deno, findRuntime("bun"), "/bin/sh"].filter((program) => program !== undefined && existsSync(program));
  const programs = [...new Set(found.flatMap((program) => [program, realpathSync(program)]))];
  const isLinked = Object.keys(process.env).some((name) => /^(LD|DYLD)_/.test(name));
  const run = isLinked || programs.some((program) => program.includes(","))
    ? "--allow-run"
    : `--allow-run=${programs.join(",")}`;
  const writes = args.some((text) =>
    /^(--log[-_]dir|--redirects|--tee|--trace|--profile|--max[-_]restarts|-r|-t)/.test(text)
  );
  // A profile is told beside what this machine reaches, and cards are counted by CUDA.
  const measures = args.includes("--profile") || args.some((text) => /^(--[\w-]+=)?gpu$/.test(text));
  // Launchers of several hosts meet where ranks may be started again.
  const meets = args.some((text) => /^--max[-_]restarts/.test(text)) && args.some((text) => /^--nnodes/.test(text));
  const net = meets ? ["--allow-net"] : [];
  return [...all, run, ...net, ...writes ? ["--allow-write"] : [], ...measures ? ["--allow-ffi"] : []];
}
