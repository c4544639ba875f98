/**
 * `npm run clusters -- [--json] [--only text] [--kind name]`: ranks over each MPI that this machine has (in PATH, or named by
 * MPI_LAUNCHERS), under Bun and Deno, on one host and on two that are network namespaces. The last line is one object: `passed`,
 * `failed`, `skipped`, `items`; what cannot be run here is skipped by name.
 *
 * @module
 */
import process from "node:process";
import { describeFlags, type Flag, readFlags } from "../../src/config/flags.ts";
import { mpiLaunchers, NO_MPI } from "../../tests/support/mpi_world.ts";
import { cutItem, faultItems } from "./faults.ts";
import { hostsObstacle, makeHosts } from "./hosts.ts";
import { type ClusterItem, oneHost, planeItems, type RuntimeName, severalHosts, trainingItems } from "./items.ts";
import { variableItems } from "./variables.ts";

/** Kinds of items, and the libraries that are looked for. */
const KINDS = ["planes", "bits", "faults", "launch"] as const;
const LIBRARIES = ["Open MPI", "MPICH", "Intel MPI"] as const;
const RUNTIMES: readonly RuntimeName[] = ["bun", "deno"];

const flags: readonly Flag[] = [
  { name: "json", takes: "switch", description: "Print nothing but one JSON object" },
  { name: "only", takes: "one", placeholder: "<text>", description: "Only launchers whose names hold this text" },
  { name: "kind", takes: "many", placeholder: "<kind>", description: `Only items of a kind: ${KINDS.join(", ")}` },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

async function main(argv: readonly string[]): Promise<number> {
  const { uses, problems } = readFlags(flags, argv);
  const kinds = uses.get("kind")?.texts ?? KINDS;
  const unknown = kinds.filter((kind) => !KINDS.some((known) => known === kind));
  if (problems.length > 0 || unknown.length > 0 || uses.has("help")) {
    for (const { path, expected, got } of problems) print(`${path}: expected ${expected}, got ${got}`);
    for (const kind of unknown) print(`--kind: expected one of ${KINDS.join(", ")}, got '${kind}'`);
    print(`Usage: npm run clusters -- [flags]\n\n${describeFlags(flags)}`);
    return uses.has("help") ? 0 : 2;
  }
  const isJson = uses.has("json");
  const items: ClusterItem[] = [];
  const add = (...more: readonly ClusterItem[]): void => {
    items.push(...more);
    for (const { name, status, reason } of isJson ? [] : more) {
      print(`${status} ${name}${reason === undefined ? "" : `: ${reason}`}`);
    }
  };
  const only = uses.get("only")?.texts.at(-1) ?? "";
  const launchers = mpiLaunchers().filter(({ name }) => name.includes(only));
  for (const library of LIBRARIES) {
    if (launchers.some(({ kind }) => kind === library) || !library.includes(only)) continue;
    add({ name: `${library}: all of it`, status: "skip", reason: NO_MPI });
  }
  const wants = (kind: typeof KINDS[number]): boolean => kinds.includes(kind);
  for (const launcher of launchers) {
    for (const runtime of RUNTIMES) {
      if (wants("launch")) add(...await variableItems(launcher, runtime));
      for (const size of wants("planes") ? [2, 4] : []) add(...await planeItems(launcher, runtime, oneHost(size)));
      for (const size of wants("bits") ? [2, 3, 4] : []) add(...await trainingItems(launcher, runtime, oneHost(size)));
      if (wants("faults")) add(...await faultItems(launcher, runtime, oneHost(3)));
    }
  }
  const obstacle = hostsObstacle();
  if (obstacle !== undefined) {
    add(
      ...launchers.map(({ name }): ClusterItem => ({
        name: `${name}: several hosts`,
        status: "skip",
        reason: obstacle,
      })),
    );
  } else if (launchers.length > 0) {
    using hosts = makeHosts(2);
    const layout = severalHosts(hosts, [2, 2]);
    for (const launcher of launchers) {
      for (const runtime of RUNTIMES) {
        if (wants("planes")) add(...await planeItems(launcher, runtime, layout));
        if (wants("bits")) add(...await trainingItems(launcher, runtime, layout));
        if (!wants("faults")) continue;
        add(...await faultItems(launcher, runtime, layout), await cutItem(launcher, runtime, layout, hosts));
      }
    }
  }
  const count = (status: ClusterItem["status"]): number => items.filter((item) => item.status === status).length;
  const [passed, failed, skipped] = [count("pass"), count("fail"), count("skip")];
  print(
    isJson
      ? JSON.stringify({ passed, failed, skipped, items })
      : `${passed} passed, ${failed} failed, ${skipped} skipped`,
  );
  return failed === 0 ? 0 : 1;
}

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

process.exitCode = await main(process.argv.slice(2));
