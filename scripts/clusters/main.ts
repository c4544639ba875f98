/**
 * `npm run clusters -- [--json] [--only text] [--kind name] [--where text] [--fault text] [--times n]`: ranks over each MPI that this
 * machine has (in PATH, or named by MPI_LAUNCHERS), under Bun, Deno and both at once, on one host and on two that are network
 * namespaces, with equal and unequal numbers of ranks. The last line is one object: `passed`, `failed`, `skipped`, `items`; what cannot
 * be run here is skipped by name.
 *
 * @module
 */
import process from "node:process";
import { describeFlags, type Flag, readFlags } from "../../src/config/flags.ts";
import { type MpiLauncher, mpiLaunchers, NO_MPI, withoutLaunchers } from "../../tests/support/mpi_world.ts";
import { CUT, cutItem, faultItems } from "./faults.ts";
import { hostFaultItems } from "./host_faults.ts";
import { type Hosts, hostsObstacle, makeHosts } from "./hosts.ts";
import {
  type ClusterItem,
  type Layout,
  oneHost,
  planeItems,
  type RuntimeName,
  severalHosts,
  trainingItems,
  type WorldRuntimes,
} from "./items.ts";
import { linkItems } from "./link_bytes.ts";
import { variableItems } from "./variables.ts";

/** Kinds of items, and the libraries that are looked for. */
const KINDS = ["planes", "bits", "faults", "hosts", "launch", "bytes"] as const;
const LIBRARIES = ["Open MPI", "MPICH", "Intel MPI"] as const;
/** Kinds that show a library, also without its launcher; the others show a launcher. */
const OF_LIBRARIES: readonly (typeof KINDS[number])[] = ["planes", "bits"];
const RUNTIMES: readonly RuntimeName[] = ["bun", "deno"];

const flags: readonly Flag[] = [
  { name: "json", takes: "switch", description: "Print nothing but one JSON object" },
  { name: "only", takes: "one", placeholder: "<text>", description: "Only launchers whose names hold this text" },
  { name: "where", takes: "one", placeholder: "<text>", description: "Only placements whose names hold this text" },
  { name: "kind", takes: "many", placeholder: "<kind>", description: `Only items of a kind: ${KINDS.join(", ")}` },
  {
    name: "fault",
    takes: "many",
    placeholder: "<text>",
    description: "Only faults whose names hold one of these texts",
  },
  { name: "times", takes: "one", placeholder: "<n>", description: "Do each fault that many times" },
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
  const timesText = uses.get("times")?.texts.at(-1) ?? "1";
  const times = Number(timesText);
  if (!/^[1-9]\d{0,3}$/.test(timesText)) {
    print(`--times: expected a whole number from 1 to 9999, got '${timesText}'`);
    return 2;
  }
  const texts = uses.get("fault")?.texts ?? [""];
  const isWantedFault = (fault: string): boolean => texts.some((text) => fault.includes(text));
  const isJson = uses.has("json");
  const items: ClusterItem[] = [];
  const add = (...more: readonly ClusterItem[]): void => {
    items.push(...more);
    for (const { name, status, reason } of isJson ? [] : more) {
      print(`${status} ${name}${reason === undefined ? "" : `: ${reason}`}`);
    }
  };
  const only = uses.get("only")?.texts.at(-1) ?? "";
  const where = uses.get("where")?.texts.at(-1) ?? "";
  const isWanted = ({ name }: Layout): boolean => name.includes(where);
  const found = mpiLaunchers();
  const launchers = [...found, ...withoutLaunchers(found)].filter(({ name }) => name.includes(only));
  for (const library of LIBRARIES) {
    if (launchers.some(({ kind }) => kind === library) || !library.includes(only)) continue;
    add({ name: `${library}: all of it`, status: "skip", reason: NO_MPI });
  }
  const wantsOf = ({ isAbsent = false }: MpiLauncher) => (kind: typeof KINDS[number]): boolean =>
    kinds.includes(kind) && (!isAbsent || OF_LIBRARIES.includes(kind));
  for (const launcher of launchers) {
    const wants = wantsOf(launcher);
    for (const runtime of RUNTIMES) {
      const here = (kind: typeof KINDS[number], ...sizes: readonly number[]): readonly Layout[] =>
        wants(kind) ? sizes.map(oneHost).filter(isWanted) : [];
      for (const _ of here("launch", 2)) add(...await variableItems(launcher, runtime));
      for (const layout of here("planes", 2, 4)) add(...await planeItems(launcher, runtime, layout));
      for (const layout of here("bits", 2, 3, 4)) add(...await trainingItems(launcher, runtime, layout));
      for (const layout of here("faults", 3)) {
        for (let time = 0; time < times; time++) add(...await faultItems(launcher, runtime, layout, isWantedFault));
      }
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
    using four = makeHosts(4);
    const hosts: Hosts = { ...four, addresses: four.addresses.slice(0, 2) };
    for (const launcher of launchers) {
      const wants = wantsOf(launcher);
      for (const { layout, runtimes, kinds: ofLayout } of placements(hosts, four)) {
        const here = (kind: typeof KINDS[number]): boolean =>
          ofLayout.includes(kind) && wants(kind) && isWanted(layout);
        for (const runtime of runtimes) {
          if (here("planes")) add(...await planeItems(launcher, runtime, layout));
          if (here("bits")) add(...await trainingItems(launcher, runtime, layout));
          if (runtime === "both") continue;
          if (here("bytes")) add(...await linkItems(launcher, runtime, layout));
          for (let time = 0; time < times; time++) {
            if (here("faults")) {
              add(...await faultItems(launcher, runtime, layout, isWantedFault));
              if (isWantedFault(CUT)) add(await cutItem(launcher, runtime, layout, hosts));
            }
            if (!here("hosts")) continue;
            for await (const item of hostFaultItems(launcher, runtime, layout, hosts, isWantedFault)) add(item);
          }
        }
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

/** What is shown of ranks on two hosts. */
interface Placement {
  readonly layout: Layout;
  readonly runtimes: readonly WorldRuntimes[];
  readonly kinds: readonly (typeof KINDS[number])[];
}

function placements(hosts: Hosts, four: Hosts): readonly Placement[] {
  return [
    {
      layout: severalHosts(hosts, [2, 2]),
      runtimes: [...RUNTIMES, "both"],
      kinds: ["planes", "bits", "faults", "hosts"],
    },
    { layout: severalHosts(hosts, [1, 3]), runtimes: RUNTIMES, kinds: ["planes", "bits"] },
    { layout: severalHosts(hosts, [2, 2], true), runtimes: ["bun"], kinds: ["planes", "bits"] },
    { layout: severalHosts(four, [1, 1, 1, 1]), runtimes: ["bun"], kinds: ["planes", "bits"] },
    { layout: severalHosts(hosts, [3, 5]), runtimes: ["bun"], kinds: ["bits"] },
    { layout: severalHosts(hosts, [4, 4]), runtimes: ["bun"], kinds: ["bytes"] },
  ];
}

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

process.exitCode = await main(process.argv.slice(2));
