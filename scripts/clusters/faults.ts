/**
 * Ranks that end, throw, are killed or are cut off while others wait for them: each of the others must say who, in which call, and the
 * launcher must end.
 *
 * @module
 */
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";
import { type MpiLauncher, runCommand, scriptCommandOf } from "../../tests/support/mpi_world.ts";
import type { Hosts } from "./hosts.ts";
import type { ClusterItem, Layout, RuntimeName } from "./items.ts";

/** A fault, and what must come of it. */
interface Fault {
  readonly name: string;
  /** Argument of `fault_rank.ts`. */
  readonly how: string;
  /** What each rank but 1 says; undefined if it has no time to say anything. */
  readonly said: RegExp | undefined;
  /** The launcher's exit code. */
  readonly isFine: (code: number | null) => boolean;
  /** Further flags of the launcher. */
  readonly flags?: readonly string[];
}

const DIED = /in all-reduce 'layers\.3' .*rank 1 died \(its process or Worker is gone\) while this rank waited for/;
const failed = (code: number | null): boolean => code !== 0 && code !== null;

function faultsOf({ name, kind }: MpiLauncher): readonly Fault[] {
  const ft = kind === "Open MPI" && !name.startsWith("Open MPI 4") ? ["--with-ft", "ulfm"] : undefined;
  return [
    { name: "all ranks end in order", how: "end", said: /^ended in order$/m, isFine: (code) => code === 0 },
    {
      name: "a rank throws",
      how: "throw",
      said: /in all-reduce 'layers\.3' \(backward.*rank 1 stopped all ranks: RangeError: out of coffee/,
      isFine: failed,
    },
    ft === undefined
      ? { name: "a rank is killed, and the launcher ends the others", how: "kill", said: undefined, isFine: failed }
      : { name: "a rank is killed, under --with-ft ulfm", how: "kill", said: DIED, isFine: failed, flags: ft },
  ];
}

/** Seconds in which ranks name a rank of a host that was cut off, and in which the launcher ends then. */
const [NAMED_SECONDS, ENDED_SECONDS] = [5, 10] as const;

/** Seconds in which a run of 40 short steps must have ended, with the start of its ranks. */
const LIMIT_SECONDS = 60;

/** The name of the fault of {@link cutItem}. */
export const CUT = "a host is cut off";

/** Does faults to a run. @param isWanted by the fault's name */
export async function faultItems(
  launcher: MpiLauncher,
  runtime: RuntimeName,
  { name: where, size, command }: Layout,
  isWanted: (fault: string) => boolean,
): Promise<readonly ClusterItem[]> {
  const items: ClusterItem[] = [];
  for (const { name, how, said, isFine, flags = [] } of faultsOf(launcher).filter(({ name }) => isWanted(name))) {
    const folder = mkdtempSync(`${tmpdir()}/fullyshard-fault-`);
    const rank = scriptCommandOf(runtime, new URL("./fault_rank.ts", import.meta.url), [how, folder]);
    const line = command({ ...launcher, flags: [...launcher.flags, ...flags] }, size, rank);
    const { code, output } = await runCommand(line, { timeoutMs: LIMIT_SECONDS * 1000 });
    const words = saidBy(folder, size);
    // A launcher may end before the ranks do; the processes of other hosts have numbers of their own.
    const isOver = !where.endsWith("1 host") || await until(() => !words.some(isAlive), 10);
    const wrong = [
      ...isFine(code) ? [] : [`the launcher ended with ${code}: ${output.slice(-300)}`],
      ...words.flatMap((text, number) =>
        said === undefined || (number === 1 && how !== "end") || said.test(text) ? [] : [`rank ${number} said: ${text}`]
      ),
      ...isOver ? [] : ["ranks live on"],
    ];
    rmSync(folder, { recursive: true, force: true });
    items.push(itemOf(`${launcher.name}, ${runtime}, ${where}: ${name}`, wrong));
  }
  return items;
}

/** Cuts host 2 off while ranks sum: the launcher must end, and those of host 1 must soon name a rank that they no longer reach. */
export async function cutItem(
  launcher: MpiLauncher,
  runtime: RuntimeName,
  { name: where, size, command }: Layout,
  hosts: Hosts,
): Promise<ClusterItem> {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-fault-`);
  const name = `${launcher.name}, ${runtime}, ${where}: ${CUT}`;
  const over = new AbortController();
  try {
    const rank = scriptCommandOf(runtime, new URL("./fault_rank.ts", import.meta.url), ["go", folder]);
    let isOver = false;
    const running = runCommand(command(launcher, size, rank), { timeoutMs: 120_000, over: over.signal });
    const ended = running.finally(() => isOver = true);
    const local = size / hosts.addresses.length;
    const all = (pattern: RegExp, count: number): boolean =>
      saidBy(folder, size).slice(0, count).every((text) => pattern.test(text));
    if (!await until(() => all(/^steps$/m, size), 60)) return itemOf(name, ["the ranks did not begin"]);
    hosts.cut(2, true);
    const begun = performance.now();
    const isNamed = await until(() => all(/Error/, local), 40);
    const seconds = (performance.now() - begun) / 1000;
    const isEnded = await until(() => isOver, ENDED_SECONDS - seconds);
    hosts.cut(2, false);
    over.abort();
    await ended;
    const words = saidBy(folder, local);
    const named = /rank \d+ died|cannot be reached|rank \d+ stopped all ranks|MPI failed/;
    return itemOf(name, [
      ...isNamed && words.every((text) => named.test(text)) ? [] : [`host 1 said: ${words.join(" | ")}`],
      ...seconds < NAMED_SECONDS ? [] : [`after ${seconds.toFixed(1)} s`],
      ...isEnded ? [] : [`the launcher lived on for ${ENDED_SECONDS} s`],
    ]);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function until(holds: () => boolean, seconds: number): Promise<boolean> {
  const end = performance.now() + seconds * 1000;
  while (!holds()) {
    if (performance.now() > end) return false;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  return true;
}

/** The lines of each rank. */
function saidBy(folder: string, size: number): readonly string[] {
  return Array.from({ length: size }, (_, rank) => {
    const file = `${folder}/${rank}.txt`;
    return existsSync(file) ? readFileSync(file, "utf8") : "";
  });
}

/** True if the process of a rank still exists. */
function isAlive(text: string): boolean {
  const pid = Number(/^joined (\d+)$/m.exec(text)?.[1]);
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

function itemOf(name: string, wrong: readonly string[]): ClusterItem {
  return wrong.length === 0
    ? { name, status: "pass" }
    : { name, status: "fail", reason: wrong.join("; ").slice(0, 900) };
}
