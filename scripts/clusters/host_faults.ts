/**
 * Faults of hosts while ranks of two hosts train: each is told with the time until the launcher ended, what ranks said, and that the
 * run, resumed by as many ranks, has the metrics of one that nothing happened to, to the bit.
 *
 * @module
 */
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { type MpiLauncher, runCommand, scriptCommandOf } from "../../tests/support/mpi_world.ts";
import { type Hosts, processesOn } from "./hosts.ts";
import type { ClusterItem, Layout, RuntimeName } from "./items.ts";

const SCRIPT: URL = new URL("../../tests/train/scripts/tiny.ts", import.meta.url);
const CALLER: URL = new URL("./stranger.ts", import.meta.url);
const CLOCK = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
const STEPS = 60;
/** Steps after which the fault is done. */
const BEGUN = 12;
/** Longest time of a run with a fault that ranks live on with, and of one that ends it. */
const LIMIT_MS = 240_000;
/** Longest time that is waited for the ranks that are left to say something. */
const WORDS_MS = 45_000;

/** A fault of host 2. */
interface HostFault {
  readonly name: string;
  /** Done once steps were taken; undefined for a fault from the start. */
  readonly begin?: (place: FaultPlace) => void | Promise<void>;
  /** Undoes it. */
  readonly end?: (place: FaultPlace) => void;
  /** What ranks of host 1, or of a host that is left, say; undefined if the run goes on to its end. */
  readonly said?: RegExp;
  /** Variables of the launcher. */
  readonly env?: Readonly<Record<string, string>>;
  /** A reason why this machine cannot do it. */
  readonly obstacle?: () => string | undefined;
}

/** Where a fault is done. */
interface FaultPlace {
  readonly hosts: Hosts;
  readonly out: string;
  readonly launcher: MpiLauncher;
}

const UNWRITTEN = /rank [23] failed: .*Cannot write '.*shard-/;
const LEFT = /rank \d+ died|rank \d+ stopped all ranks|MPI failed|cannot be reached/;

/** What MPI says that ends the ranks which are left: MPICH's launcher, then Open MPI's, then the library of a rank. */
const ENDED_BY_MPI: readonly string[] = [
  "BAD TERMINATION",
  "\\[mpiexec@",
  "PRTE has lost communication",
  "A daemon failed to report back[^]*Remote host: +host2",
  "MPI_ERRORS_ARE_FATAL",
  "An error occurred in MPI_Init_thread",
];

const FAULTS: readonly HostFault[] = [
  { name: "nothing happens" },
  {
    name: "a host is paused for 10 s",
    begin: async () => {
      signalHost("SIGSTOP");
      await pause(10_000);
      signalHost("SIGCONT");
    },
  },
  {
    name: "a host is paused for good, with 20 s to wait for it",
    env: { FULLYSHARD_TIMEOUT_SECONDS: "20" },
    begin: () => signalHost("SIGSTOP"),
    said: /waited 20 s for .*rank 2 .*was last seen.*rank 3 .*was last seen/,
  },
  { name: "strangers call, and one with a wrong token", begin: strangers },
  {
    name: "the clock of a host is an hour ahead",
    env: { FULLYSHARD_CLOCK_OF_HOST2: CLOCK },
    obstacle: () => existsSync(CLOCK) ? undefined : "needs libfaketime",
  },
  {
    name: "the link is cut",
    begin: ({ hosts }) => hosts.cut(2, true),
    end: ({ hosts }) => hosts.cut(2, false),
    said: LEFT,
  },
  // Launchers and libraries end the ranks that are left, often before these can say anything. What is said then is theirs.
  {
    name: "a host is killed",
    begin: () => signalHost("SIGKILL"),
    said: RegExp([LEFT.source, ...ENDED_BY_MPI].join("|")),
  },
  {
    name: "files of a host may not grow, as on a full disk",
    begin: () => {
      for (const pid of ranksOfHost()) must(`prlimit --pid ${pid} --fsize=4096`);
    },
    said: UNWRITTEN,
  },
  {
    name: "a host does not see the run's folder any more",
    begin: ({ out }) => must(`nsenter -t ${ranksOfHost()[0]} -m mount -t tmpfs tmpfs ${out}`),
    said: UNWRITTEN,
  },
  {
    name: "a host has no room in /dev/shm",
    env: { FULLYSHARD_ROOM_OF_HOST2: "64k" },
    said: RegExp(["Cannot share memory in '/dev/shm': [^]*are free", ...ENDED_BY_MPI].join("|")),
  },
  {
    name: "the link carries 1 Mb/s for 20 s",
    begin: async () => {
      must(`ip netns exec fullyshard2 tc qdisc replace dev e0 root tbf rate 1mbit burst 32kb latency 400ms`);
      await pause(20_000);
      must("ip netns exec fullyshard2 tc qdisc del dev e0 root");
    },
  },
  {
    name: "30 % of packets are lost for 40 s",
    begin: async () => {
      lossIn("fullyshard2", 30);
      await pause(40_000);
      lossIn("fullyshard2", 0);
    },
    obstacle: () => onPath("nft") ? undefined : "needs nft",
  },
];

/** Does faults of hosts to a training. @param isWanted by the fault's name */
export async function* hostFaultItems(
  launcher: MpiLauncher,
  runtime: RuntimeName,
  layout: Layout,
  hosts: Hosts,
  isWanted: (fault: string) => boolean,
): AsyncGenerator<ClusterItem> {
  const faults = FAULTS.filter(({ name }) => isWanted(name));
  if (faults.length === 0) return;
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-hosts-`);
  try {
    const data = `${folder}/text.txt`;
    const lines = Array.from({ length: 400 }, (_, line) => `the shard of rank ${line * 7919 % 1009} is line ${line}`);
    writeFileSync(data, lines.join("\n"));
    const reference = await trainHere(runtime, layout.size, flagsIn(`${folder}/reference`, data));
    for (const [index, fault] of faults.entries()) {
      const name = `${launcher.name}, ${runtime}, ${layout.name}: ${fault.name}`;
      const obstacle = fault.obstacle?.();
      if (obstacle !== undefined) yield { name, status: "skip", reason: obstacle };
      else {
        const out = `${folder}/${index}`;
        yield { name, ...await tryFault(fault, { hosts, out, launcher }, runtime, layout, data, reference) };
      }
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function tryFault(
  fault: HostFault,
  place: FaultPlace,
  runtime: RuntimeName,
  { size, command }: Layout,
  data: string,
  reference: readonly string[],
): Promise<Pick<ClusterItem, "status" | "reason">> {
  const { out, launcher } = place;
  mkdirSync(out);
  const over = new AbortController();
  const rank = scriptCommandOf(runtime, SCRIPT, flagsIn(out, data));
  const line = command(launcher, size, ["sh", "-c", AS_RANK, out, ...rank]);
  const running = runCommand(line, { timeoutMs: LIMIT_MS, over: over.signal, ...fault.env && { env: fault.env } });
  let isOver = false;
  const ended = running.finally(() => isOver = true);
  const took: string[] = [];
  if (fault.begin !== undefined) {
    if (!await until(() => isOver || linesOf(out).length >= BEGUN, 60_000) || isOver) {
      over.abort();
      return { status: "fail", reason: `it did not begin: ${(await ended).output.slice(-600)}` };
    }
  }
  const faulted = performance.now();
  await fault.begin?.(place);
  if (fault.said !== undefined) {
    const said = fault.said;
    const isSaid = await until(() => isOver || saidBy(out, size).some((text) => said.test(text)), WORDS_MS);
    took.push(`${isSaid ? "said" : "nothing said"} after ${secondsSince(faulted)} s`);
    await until(() => isOver, 10_000);
    took.push(isOver ? `launcher ended after ${secondsSince(faulted)} s` : "launcher waits on, and was ended");
  }
  fault.end?.(place);
  if (fault.said !== undefined) over.abort();
  const begun = performance.now();
  const { code, output } = await ended;
  const words = saidBy(out, size);
  lossIn("fullyshard2", 0);
  if (fault.said === undefined) {
    took.push(`ended with ${code} after ${secondsSince(begun)} s`);
    if (code !== 0) {
      return { status: "fail", reason: `${took.join(", ")}: ${words.join(" | ")} ${output}`.slice(0, 1200) };
    }
  } else {
    for (const pid of processesOn(2)) signal(pid, "SIGKILL");
    const taken = linesOf(out).length;
    took.push(`${taken} steps taken`);
    await trainHere(runtime, size, flagsIn(out, data));
  }
  const lines = linesOf(out);
  const differs = reference.findIndex((text, index) => text !== lines[index]);
  const first = words.flatMap((text) => fault.said?.exec(text) === null ? [] : sentenceOf(text)).at(0) ?? "";
  const told = `${took.join(", ")}${first === "" ? "" : `; ${first}`}`;
  if (differs >= 0 || lines.length !== reference.length) {
    return { status: "fail", reason: `${told}; differs from step ${differs + 1} on, of ${lines.length}` };
  }
  const isTold = fault.said === undefined || words.some((text) => fault.said?.test(text)) || fault.said.test(output);
  if (isTold) return { status: "pass", reason: `${told}; nothing lost` };
  return {
    status: "fail",
    reason: `${told}; not told: ${[...words, output].map((text) => text.slice(-600)).join(" | ")}`,
  };
}

/**
 * What a rank runs: its errors go to a file, as launchers lose lines of ranks that they kill. Host 2 may have another clock, or less
 * room for shared memory. Times of files stay as they are: libfaketime crashed where a thread asked for one while the process ended.
 */
const AS_RANK = 'rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; if [ "$(hostname)" = host2 ] && ' +
  '[ -n "$FULLYSHARD_CLOCK_OF_HOST2" ]; then export LD_PRELOAD=$FULLYSHARD_CLOCK_OF_HOST2 FAKETIME=+3600 ' +
  'FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1; fi; if [ "$(hostname)" = host2 ] && [ -n "$FULLYSHARD_ROOM_OF_HOST2" ]; then ' +
  'mount -o "remount,size=$FULLYSHARD_ROOM_OF_HOST2" /dev/shm; fi; exec "$@" 2>"$0/rank-$rank.err"';

function flagsIn(out: string, data: string): readonly string[] {
  const places = ["--data", data, "--cache", `${out}-cache`, "--out", `${out}/run`, "--steps", String(STEPS)];
  const sizes = ["--sequence-length", "16", "--global-batch", "12", "--log-every", "1", "--sample-tokens", "4"];
  const saves = ["--save-every", "5", "--resume", "auto", "--no-report", "--learning-rate", "0.01"];
  return [...places, ...sizes, ...saves];
}

/** Trains to the end on this host, by shared memory; returns its metrics. */
async function trainHere(runtime: RuntimeName, size: number, flags: readonly string[]): Promise<readonly string[]> {
  const bin = fileURLToPath(new URL("../../bin/fullyshard.mjs", import.meta.url));
  const start = ["node", bin, "--runtime", runtime, "run", "--nproc-per-node", String(size), "--deno-args=-A"];
  const { code, output } = await runCommand([...start, fileURLToPath(SCRIPT), ...flags], { timeoutMs: LIMIT_MS });
  if (code !== 0) throw new Error(`the run on one host ended with ${code}: ${output.slice(-900)}`);
  return linesOf(flags[flags.indexOf("--out") + 1]?.replace(/\/run$/, "") ?? "");
}

/** Lines of a run's metrics, without what depends on the machine. */
function linesOf(out: string): readonly string[] {
  const file = `${out}/run/metrics.jsonl`;
  const text = existsSync(file) ? readFileSync(file, "utf8") : "";
  return text.split("\n").filter((line) => line !== "").map((line) => line.replace(/,"tokens_per_second".*/, ""));
}

function saidBy(out: string, size: number): readonly string[] {
  return Array.from({ length: size }, (_, rank) => {
    const file = `${out}/rank-${rank}.err`;
    return existsSync(file) ? readFileSync(file, "utf8") : "";
  });
}

/** The first line of an error. */
function sentenceOf(text: string): readonly string[] {
  const line = text.split("\n").find((one) => /Error: /.test(one));
  return line === undefined ? [] : [line.trim().slice(0, 420)];
}

/** Ranks of host 2. */
function ranksOfHost(): readonly number[] {
  const ranks = processesOn(2).filter(isRank);
  if (ranks.length === 0) throw new Error("no rank on host 2");
  return ranks;
}

function isRank(pid: number): boolean {
  const file = `/proc/${pid}/cmdline`;
  return existsSync(file) && /^[^\0]*(bun|deno)[^\0]*\0run\0/.test(readFileSync(file, "utf8"));
}

/** Signals all processes of host 2, the last ones first. */
function signalHost(name: "SIGSTOP" | "SIGCONT" | "SIGKILL"): void {
  for (const pid of processesOn(2).toReversed()) signal(pid, name);
}

function signal(pid: number, name: "SIGSTOP" | "SIGCONT" | "SIGKILL"): void {
  try {
    process.kill(pid, name);
  } catch {
    // It has ended with the ones before it.
  }
}

/** Loses that part of the packets that come to a host; 0 for none. */
function lossIn(namespace: string, percent: number): void {
  spawnSync("ip", ["netns", "exec", namespace, "nft", "delete", "table", "inet", "loss"]);
  if (percent === 0) return;
  const rules = "add table inet loss; add chain inet loss in { type filter hook input priority 0; }; " +
    `add rule inet loss in iifname e0 numgen random mod 100 < ${percent} drop`;
  must(`ip netns exec ${namespace} nft '${rules}'`);
}

/** Programs of host 2 that do not know the token call at the ports of rank 0, more than the store lets wait. */
async function strangers({ launcher, hosts }: FaultPlace): Promise<void> {
  const [address = ""] = hosts.addresses;
  const { stdout } = spawnSync("ip", ["netns", "exec", "fullyshard1", "ss", "-ltnH"], { encoding: "utf8" });
  const ports = [...stdout.matchAll(/(?:0\.0\.0\.0|\*|\[::\]):(\d+)/g)].flatMap(([, port]) => port ?? []);
  if (ports.length === 0) throw new Error(`no port is listened at on host 1 (${launcher.name}): ${stdout}`);
  const [program = "", ...args] = scriptCommandOf("bun", CALLER, [address, ...ports]);
  const caller = spawn("ip", ["netns", "exec", "fullyshard2", program, ...args], { stdio: "inherit" });
  const code = await new Promise((resolve) => caller.once("close", resolve));
  if (code !== 0) throw new Error(`the strangers ended with ${code}`);
}

function must(command: string): void {
  const { status, stderr } = spawnSync("sh", ["-c", command], { encoding: "utf8" });
  if (status !== 0) throw new Error(`${command}: ${stderr.trim()}`);
}

function onPath(program: string): boolean {
  return spawnSync("sh", ["-c", `command -v ${program}`]).status === 0;
}

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
const secondsSince = (begun: number): string => ((performance.now() - begun) / 1000).toFixed(1);

async function until(holds: () => boolean, longestMs: number): Promise<boolean> {
  for (const end = performance.now() + longestMs; !holds();) {
    if (performance.now() > end) return false;
    await pause(50);
  }
  return true;
}
