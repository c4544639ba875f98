/**
 * Faults that are done to training runs of real processes, and what is to be said of each. Every fault is done to two ranks
 * that train and save, or to one of four that lie over two axes; a fault of files is done to what such a run has saved, which another run then resumes.
 *
 * @module
 */
import { spawnSync } from "node:child_process";
import * as fs from "node:fs";
import { at } from "../../src/at.ts";
import { ALONE } from "../../src/checkpoint/format/ranks.ts";
import { listCheckpoints } from "../../src/checkpoint/sharded/directory.ts";
import { findCheckpoint, verifyFiles } from "../../src/checkpoint/sharded/find.ts";
import { temporaryDirectory } from "../../tests/support/temporary.ts";
import { essence, flagsIn, metricLines, type Running, startAlone, startRun } from "../../tests/train/runs.ts";
import { killAgainAndAgain } from "./kills.ts";
import { type FaultReport, LIMIT_SECONDS, round } from "./report.ts";

/** A fault to do. */
export interface Fault {
  readonly name: string;
  run(): Promise<FaultReport>;
}

/** Flags of a run that saves every other step, and keeps all. */
const SAVING = ["--steps", "100", "--save-every", "2", "--keep-last", "100"];

/** A fault that ranks order themselves. */
export interface OrderedFault {
  readonly name: string;
  /** @default 2 */
  readonly ranks?: number;
  /** The orders, as `tests/train/scripts/tiny.ts` takes them. */
  readonly fault: string;
  readonly flags?: readonly string[];
  /** Seconds that pass by design before the run ends. */
  readonly allowed?: number;
  readonly says: RegExp;
}

const ORDERED: readonly OrderedFault[] = [
  {
    name: "rank killed in a gather",
    fault: "1:3:kill-in=gather",
    says: /rank 1 \(pid \d+\) failed first: it was killed by SIGKILL/,
  },
  {
    name: "rank killed in a reduction",
    fault: "1:3:kill-in=reduce-scatter",
    says: /rank 1 \(pid \d+\) failed first: it was killed by SIGKILL/,
  },
  {
    name: "rank killed in the optimizer",
    fault: "0:3:kill-in=write",
    says: /rank 0 \(pid \d+\) failed first: it was killed by SIGKILL/,
  },
  {
    name: "rank killed in a save",
    fault: "1:3:kill-in=save checkpoint",
    says: /rank 1 \(pid \d+\) failed first: it was killed by SIGKILL/,
  },
  {
    name: "rank killed while an asynchronous save goes on",
    fault: "1:4:kill-in=gather", // the next after the save of step 4 has begun
    flags: ["--async-save"],
    says: /rank 1 \(pid \d+\) failed first: it was killed by SIGKILL/,
  },
  {
    name: "divergent collectives",
    fault: "1:3:other",
    says: /ranks make different calls: rank 0 calls .*; rank 1 calls barrier/,
  },
  {
    name: "stalled rank",
    fault: "1:3:hang",
    flags: ["--report-seconds", "1", "--timeout-seconds", "3"],
    allowed: 3,
    says: /Rank 0 in .*: waited 3 s .*rank 1 \(awaited\) was last seen after call/,
  },
  {
    name: "disappearing directory",
    fault: "0:3:vanish-in=save checkpoint",
    says: /FileError: Cannot .*checkpoint-4\.partial.*no such file or directory/,
  },
];

/** Axes with the other rank of rank 3's group, a call that each of them makes, and the call before it. */
const AXES = [
  { axis: "tensor", peer: 2, flags: ["--tp-size", "2"], call: "output of", before: "output of" },
  { axis: "context", peer: 2, flags: ["--cp-size", "2"], call: "keys and values of", before: "keys and values of" },
  { axis: "expert", peer: 2, flags: ["--ep-size", "2", "experts=4"], call: "rows by expert of", before: "rows from" },
  {
    ...{ axis: "expert", peer: 1, flags: ["--ep-size", "2", "--tp-size", "2", "experts=4"] },
    ...{ call: "rows by expert of", before: "rows by expert of" },
  },
] as const;

/** Axes whose ranks pass messages: the rank beside rank 3, and the messages. */
const MESSAGES = [
  {
    name: "pipeline",
    axis: "pipeline",
    beside: 1,
    flags: ["--pp-size", "2", "--micro-batches", "2"],
    call: "activations of stage",
  },
  {
    ...{ name: "context by a ring", axis: "context", beside: 2, call: "keys and values of" },
    flags: ["--cp-size", "2", "--cp-comm-strategy", "ring"],
  },
] as const;

/** What is done to rank 3, and what the rank beside it says of messages that do not come. */
const MESSAGE_FAULTS: readonly OrderedFault[] = MESSAGES.flatMap(({ name, axis, beside, flags, call }) => {
  const where = `in .*'.*(stage \\d|round the ring).*\\(group '${axis}' of ranks ${beside}, 3, .*`;
  const stuck = `CollectiveError: .*: ranks wait for each other, .*rank 3 waits in barrier 'a call of my own' `;
  return ([
    ["killed", "kill-in", `Rank ${beside} waits ${where}: rank 3 died and was last seen`],
    ["diverging", "other-in", `${stuck}\\(group '${axis}' of ranks ${beside}, 3, `],
    ["stalled", "hang-in", `Rank ${beside} has waited 0\\.\\d s ${where}for rank 3 .* is alive`],
  ] as const).map(([fault, what, says]) => ({
    name: `rank of axis ${name} ${fault}`,
    fault: `3:3:${what}=${call}`,
    ranks: 4,
    flags: [...flags, "--report-seconds", "0.5", "--timeout-seconds", "1"],
    ...fault === "stalled" ? { allowed: 4 } : {},
    says: new RegExp(says),
  }));
});

/** What is done to rank 3 of four in a call of an axis, and what the other rank of the axis says within a second of it. */
export const AXIS_FAULTS: readonly OrderedFault[] = [
  ...AXES.flatMap(({ axis, peer, flags, call, before }) => {
    const name = peer === 1 ? `axis ${axis} beside another` : `axis ${axis}`;
    const where = `'${call}[^(]*(\\([^(]*\\) )?\\(group '${axis}' of ranks ${peer}, 3, `;
    return [
      {
        name: `rank of ${name} killed`,
        fault: `3:3:kill-in=${call}`,
        says: new RegExp(`Rank ${peer} waits in .*${where}.*: rank 3 died and was last seen`),
      },
      {
        name: `rank of ${name} diverging`,
        fault: `3:3:other-in=${before}`,
        // Where the next call is a message, the two wait for each other.
        says: new RegExp(
          `CollectiveError: .*\\(group '${axis}' of ranks ${peer}, 3, .*call \\d+\\): ranks ` +
            `(make different calls: rank ${peer} calls \\S+ '${call}.*; rank 3 calls|wait for each other, .*; rank 3 waits in) ` +
            "barrier 'a call of my own'",
        ),
      },
      {
        name: `rank of ${name} stalled`,
        fault: `3:3:hang-in=${call}`,
        allowed: 4, // until the timeout, and until the launcher kills the rank
        says: new RegExp(`Rank ${peer} has waited 0\\.\\d s in .*${where}.*for rank 3 .* is alive`),
      },
    ].map((fault) => ({
      ...fault,
      ranks: 4,
      flags: [...flags, "--report-seconds", "0.5", "--timeout-seconds", "1"],
    }));
  }),
  ...MESSAGE_FAULTS,
];

/** Damage to the second of two checkpoints. */
const DAMAGES: readonly (readonly [name: string, damage: (path: string, shard: string) => void, says: RegExp])[] = [
  [
    "truncated shard",
    (path, shard) => fs.truncateSync(`${path}/${shard}`, 1000),
    /should have \d+ bytes, got 1000: it is cut off/,
  ],
  [
    "bit-flipped shard",
    (path, shard) => flip(`${path}/${shard}`),
    /Bytes \d+ to \d+ should have checksum \w+, got \w+: it is damaged/,
  ],
  ["missing shard", (path, shard) => fs.rmSync(`${path}/${shard}`), /shard-.* is missing/],
];

/** All faults. @param kills how many times a run is killed at a moment of chance */
export function faults(kills: number): readonly Fault[] {
  return [
    ...[...ORDERED, ...AXIS_FAULTS].map((fault) => ({ name: fault.name, run: () => ordered(fault) })),
    { name: "full disk", run: () => fullDisk("full disk", []) },
    {
      name: "full disk in an asynchronous save",
      run: () => fullDisk("full disk in an asynchronous save", ["--async-save"]),
    },
    ...DAMAGES.map(([name, damage, says]) => ({ name, run: () => damaged(name, damage, says) })),
    { name: `${kills} kills at random moments`, run: () => killAgainAndAgain(kills) },
  ];
}

function flip(file: string): void {
  const bytes = fs.readFileSync(file);
  bytes[bytes.length - 9] = at(bytes, bytes.length - 9, "byte") ^ 0x10;
  fs.writeFileSync(file, bytes);
}

/** A fault that ranks do themselves when they are told to. */
export async function ordered(
  { name, ranks = 2, fault, flags = [], allowed = 0, says }: OrderedFault,
): Promise<FaultReport> {
  using folder = temporaryDirectory();
  const args = flagsIn(folder, ...SAVING, ...flags, `fault=${fault}`);
  const running = startRun(args, { ranks, allowAll: true });
  return await endOf(running, { name, says, since: /fault now/, allowed, out: folder.file("out") });
}

/** A file system with room for one checkpoint; where none can be mounted, a limit on the size of files, for a rank alone. */
async function fullDisk(name: string, flags: readonly string[]): Promise<FaultReport> {
  using folder = temporaryDirectory();
  const disk = folder.file("disk");
  fs.mkdirSync(disk);
  const says = /FileError: Cannot write '.*checkpoint-\d\.partial\/.*\.safetensors'/;
  const common = { name, says, allowed: 0, out: `${disk}/out` };
  const args = flagsIn(folder, ...SAVING, "--out", common.out, ...flags);
  if (spawnSync("mount", ["-t", "tmpfs", "-o", "size=3m", "none", disk]).status !== 0) {
    const running = startAlone(args, { shell: "trap '' XFSZ; ulimit -f 300" });
    return await endOf(running, { ...common, since: /step 2\// });
  }
  try {
    return await endOf(startRun(args), { ...common, since: /step 4\// });
  } finally {
    spawnSync("umount", [disk]);
  }
}

/** Waits for a run that is to fail. */
async function endOf(
  running: Running,
  { name, says, since, allowed, out }: Pick<OrderedFault, "name" | "says"> & {
    /** The beginning of the message when the fault is there. */
    readonly since: RegExp;
    readonly allowed: number;
    readonly out: string;
  },
): Promise<FaultReport> {
  await running.until(since);
  const began = performance.now() / 1000;
  const { code, stderr } = await running.ended;
  const seconds = performance.now() / 1000 - began;
  const named = stderr.split("\n").find((line) => says.test(line)) ?? "";
  const lost = await lostOf(out, stderr);
  const wrong = [
    ...code === 0 || code === null ? [`it ended with ${code}`] : [],
    ...named === "" ? [`nothing says ${says}:\n${stderr}`] : [],
    ...seconds > LIMIT_SECONDS + allowed ? [`it took ${round(seconds)} s to end`] : [],
    ...lost.length > 0 ? [`lost ${lost.join(", ")}`] : [],
  ];
  return { name, named, ended_in_seconds: round(seconds), lost, wrong };
}

/** A resume of what is damaged is refused by name, and one by `auto` goes back to the checkpoint before, to the same losses. */
async function damaged(
  name: string,
  damage: (path: string, shard: string) => void,
  says: RegExp,
): Promise<FaultReport> {
  using folder = temporaryDirectory();
  const flags = flagsIn(folder, "--steps", "4", "--save-every", "2");
  const wrong: string[] = [];
  const first = await startRun(flags).ended;
  if (first.code !== 0) wrong.push(`the run that saves ended with ${first.code}:\n${first.stderr}`);
  const whole = metricLines(folder).map(essence);
  const path = folder.file("out/checkpoint-4");
  const shard = fs.readdirSync(path).find((file) => file.startsWith("shard-"));
  if (shard === undefined) throw new Error(`'${path}' has no shard that could be damaged`);
  damage(path, shard);
  const running = startRun([...flags, "--resume", path]);
  const { code, stderr, seconds } = await running.ended;
  const named = stderr.split("\n").find((line) => says.test(line) && line.includes("checkpoint-4")) ?? "";
  if (code === 0 || named === "") wrong.push(`it ended with ${code} and does not say ${says}:\n${stderr}`);
  const again = await startRun([...flags, "--resume", "auto"]).ended;
  const resumed = /Resumed '.*checkpoint-2'/.test(again.stderr);
  if (again.code !== 0 || !resumed) wrong.push(`it is not resumed from checkpoint-2:\n${again.stderr}`);
  const same = metricLines(folder).map(essence).join("\n") === whole.join("\n");
  if (!same) wrong.push("the resumed run is another one");
  return { name, named, ended_in_seconds: round(seconds), lost: resumed && same ? [] : ["checkpoint-2"], wrong };
}

/** Checkpoints that a run says it has saved and that cannot be read. */
async function lostOf(out: string, stderr: string): Promise<string[]> {
  const there = new Set(listCheckpoints(out).map(({ step }) => step));
  const lost: string[] = [];
  for (const [, text = ""] of stderr.matchAll(/Saved '.*checkpoint-(\d+)'/g)) {
    const path = `${out}/checkpoint-${text}`;
    const read = (path: string, manifest: Parameters<typeof verifyFiles>[1]) => verifyFiles(path, manifest, ALONE);
    const isWhole = there.has(Number(text)) &&
      await findCheckpoint(path, path, ALONE, read).then(() => true, () => false);
    if (!isWhole) lost.push(`checkpoint-${text}`);
  }
  return lost;
}
