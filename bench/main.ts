/**
 * `npm run bench -- <subject> [--peer torch|trl|transformers|mpi|jax-js|ddp|apart|flat|allgather|one-thread] [--threads n] [--runtime bun|deno] [--rounds n] [--json]`: times
 * us and, when asked, the peer, alternately in one run, and prints medians and their ratio (above 1: we are faster). PyTorch, TRL,
 * transformers and MPI are run by the Python that PEER_PYTHON names; jax-js lies in the folder that PEER_JAX_JS names, or is fetched for the time of
 * the run; `one-thread` is our side with one. A peer that is not there is told in each line.
 *
 * @module
 */
import process from "node:process";
import { describeFlags, type Flag, readFlags } from "../src/config/flags.ts";
import { exitCodeOf, watchStopSignals } from "../src/runtime/signals.ts";
import { ADAPT } from "./adapt.ts";
import { ATTENTION } from "./attention.ts";
import { CHECKPOINT } from "./checkpoint.ts";
import { COLLECTIVES } from "./collectives.ts";
import { CONTEXT } from "./context.ts";
import { DATALOADER } from "./dataloader.ts";
import { DEMO } from "./demo.ts";
import { DISPATCH } from "./dispatch.ts";
import { GEMM } from "./gemm.ts";
import { HOSTS } from "./hosts.ts";
import { KERNELS } from "./kernels.ts";
import { LARGE } from "./large.ts";
import { LAUNCHES } from "./launches.ts";
import { MEMORY } from "./memory.ts";
import { openJaxJs } from "./jax_js.ts";
import { endPrograms } from "./process.ts";
import { jsonOf, lineOf, measure, type Peer } from "./runner.ts";
import { ROUTING } from "./routing.ts";
import { type BenchSetting, casesOf, PEERS, type Subject } from "./subject.ts";
import { STARTUP } from "./startup.ts";
import { STEP } from "./step.ts";
import { TENSOR } from "./tensor.ts";
import { WATCHING } from "./watching.ts";

const SUBJECTS: readonly Subject[] = [
  ADAPT,
  ATTENTION,
  CHECKPOINT,
  COLLECTIVES,
  CONTEXT,
  DATALOADER,
  DEMO,
  DISPATCH,
  GEMM,
  HOSTS,
  KERNELS,
  LARGE,
  LAUNCHES,
  MEMORY,
  ROUTING,
  STARTUP,
  STEP,
  TENSOR,
  WATCHING,
];

/** What a Python has, by the peer that it runs. */
const PYTHON_PACKAGES = {
  torch: "torch",
  transformers: "torch and transformers",
  mpi: "mpi4py",
  trl: "torch, transformers, peft and trl",
} as const;

/** Those whose ranks compute with threads. */
const THREADED: string = SUBJECTS.filter(({ takesThreads }) => takesThreads).map(({ name }) => name).join(", ");

const flags: readonly Flag[] = [
  {
    name: "peer",
    takes: "one",
    placeholder: "<torch|trl|transformers|mpi|jax-js|ddp|apart|flat|allgather|one-thread>",
    description:
      "Run alternately PyTorch, TRL, transformers or MPI, by the Python in PEER_PYTHON, jax-js, in PEER_JAX_JS if named, or ours: DDP, ranks that share nothing, hosts whose ranks share no memory, gathered keys and values, or with one thread",
  },
  {
    name: "threads",
    takes: "one",
    placeholder: "<n>",
    description:
      `Threads of a rank, of either side, for ${THREADED}; a step is then one rank's (default: 1, of adapt 2)`,
  },
  {
    name: "case",
    takes: "one",
    placeholder: "<name>",
    description: "The case of this name, or where none has it those whose names contain it",
  },
  { name: "runtime", takes: "one", placeholder: "<bun|deno>", description: "What runs our side (default: bun)" },
  { name: "rounds", takes: "one", placeholder: "<n>", description: "Timed rounds of each side (default: 5)" },
  { name: "json", takes: "switch", description: "One JSON object a line" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

async function main(argv: readonly string[]): Promise<number> {
  const named = argv.length > 0 && !argv[0]?.startsWith("-");
  const { uses, problems } = readFlags(flags, named ? argv.slice(1) : argv);
  const text = (name: string): string | undefined => uses.get(name)?.texts.at(-1);
  const [runtime, rounds, peer] = [text("runtime") ?? "bun", Number(text("rounds") ?? 5), text("peer")];
  const names = SUBJECTS.map(({ name }) => name).join(", ");
  const python = process.env["PEER_PYTHON"];
  const subject = SUBJECTS.find(({ name }) => named && name === argv[0]);
  const threads = Number(text("threads") ?? subject?.usualThreads ?? 1);
  const threaded = subject?.takesThreads ?? false;
  const peers = [
    ...PEERS.filter((name) => subject?.peers?.[name] !== undefined),
    ...threaded ? ["one-thread"] : [],
  ];
  const wanted = text("case") ?? "";
  const all = subject === undefined ? [] : casesOf(subject, PEERS.find((one) => one === peer));
  const exact = all.filter((one) => one.name === wanted);
  const cases = exact.length > 0 ? exact : all.filter((one) => one.name.includes(wanted));
  const isPython = peer === "torch" || peer === "mpi" || peer === "trl" || peer === "transformers";
  const wrong = [
    ...problems.map(({ path, expected, got }) => `${path}: expected ${expected}, got ${got}`),
    ...subject === undefined
      ? [`subject: expected ${names}, got ${argv[0] ?? "nothing"}`]
      : !threaded && peer === "one-thread"
      ? [`--peer one-thread: expected one of ${THREADED}, which take threads, got ${subject.name}`]
      : peer !== undefined && !peers.includes(peer)
      ? [`--peer: expected ${peers.join(" or ") || "none"} for ${subject.name}, got ${peer}`]
      : cases.length === 0
      ? [`--case: expected a part of ${all.map((one) => one.name).join(", ")}, got ${wanted}`]
      : [],
    ...runtime !== "bun" && runtime !== "deno" ? [`--runtime: expected bun or deno, got ${runtime}`] : [],
    ...!isPositive(rounds) ? [`--rounds: expected a positive integer, got ${text("rounds")}`] : [],
    ...subject !== undefined && !threaded && uses.has("threads")
      ? [`--threads: expected one of ${THREADED}, which take threads, got ${subject.name}`]
      : [],
    ...!isPositive(threads) ? [`--threads: expected a positive integer, got ${text("threads")}`] : [],
    ...isPython && python === undefined
      ? [`PEER_PYTHON: expected a Python that has ${PYTHON_PACKAGES[peer]}, got nothing`]
      : [],
  ];
  const usage = `Usage: npm run bench -- <subject> [flags]\n\nSubjects: ${names}\n\n${describeFlags(flags)}\n`;
  if (uses.has("help")) {
    process.stdout.write(usage);
    return 0;
  }
  if (subject === undefined || wrong.length > 0 || (runtime !== "bun" && runtime !== "deno")) {
    process.stderr.write(`${wrong.map((line) => `${line}\n`).join("")}${usage}`);
    return 2;
  }
  const against = peerOf(subject, peer);
  using ending = watchStopSignals(endPrograms);
  const ranks = uses.has("threads") ? { ranks: 1 } : {};
  await using fetched = peer === "jax-js" ? await openJaxJs(process.env["PEER_JAX_JS"]) : undefined;
  const jaxJs = fetched === undefined ? {} : { jaxJs: fetched.jaxJs };
  const setting: BenchSetting = { runtime, python: python ?? "python3", threads, ...ranks, ...jaxJs };
  await measure(subject, cases, against, rounds, setting, (row) => {
    process.stdout.write(`${uses.has("json") ? jsonOf(row) : lineOf(row)}\n`);
  }, () => ending.signal !== undefined);
  return ending.signal === undefined ? 0 : exitCodeOf(ending.signal);
}

function isPositive(count: number): boolean {
  return Number.isSafeInteger(count) && count >= 1;
}

/** The side that is named. */
function peerOf(subject: Subject, named: string | undefined): Peer | undefined {
  if (named === "one-thread") {
    return { name: named, side: (setting, names) => subject.ours({ ...setting, threads: 1 }, names) };
  }
  const name = PEERS.find((one) => one === named);
  const side = name === undefined ? undefined : subject.peers?.[name];
  return name === undefined || side === undefined ? undefined : { name, side };
}

process.exitCode = await main(process.argv.slice(2));
