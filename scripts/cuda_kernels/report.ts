/**
 * Limits on the resources of kernels, and their table.
 *
 * @module
 */
import { ARCHITECTURES, jobName, JOBS, type Outcome, type Use } from "./compile.ts";

/** Registers of a thread with which two blocks of 256 still go side by side. */
const MOST_REGISTERS = 128;
/** Bytes that the compiler spills to spare a thread 8 registers: for one element type or card, say, and not for others. */
const TRADED_SPILLS = 64;
/** Kernels that may take more, with the reason. */
export const EXPLAINED: Readonly<Record<string, { registers: number; spills: number; reason: string }>> = {
  attentionBackward: {
    registers: 168,
    spills: TRADED_SPILLS,
    reason: "for sm_100 and 120 the compiler takes more registers than for older cards, of the same text; whether a " +
      "limit would be faster, a card has to tell",
  },
  gatedDeltaBackward: {
    registers: 240,
    spills: TRADED_SPILLS,
    reason: "it has a block for each key head of a sequence, which are fewer than a card's multiprocessors, so that " +
      "none needs room beside it",
  },
};
/** Bytes of shared memory that a block has without asking. */
const MOST_SHARED = 48 * 1024;
/** Of a form for tensor cores: registers of a thread, of 128 in a block, of which two go side by side; bytes that every card has. */
const TENSOR_MOST = { registers: 255, spills: TRADED_SPILLS, shared: 99 * 1024 };

/** The most of each that entry points take. */
export function worstOf(uses: readonly Use[]): Omit<Use, "point"> {
  const most = (of: (use: Use) => number): number => Math.max(...uses.map(of));
  return {
    registers: most((use) => use.registers),
    spills: most((use) => use.spills),
    shared: most((use) => use.shared),
  };
}

/** The faults of an outcome. */
export function faultsOf(outcome: Outcome): string[] {
  if ("refusal" in outcome) return [outcome.refusal];
  const { kernel, architecture, form, uses } = outcome;
  if (uses.length === 0) return [`${jobName(outcome)} for ${architecture}: no entry point`];
  const plain = { registers: MOST_REGISTERS, spills: TRADED_SPILLS, ...EXPLAINED[kernel], shared: MOST_SHARED };
  const most = form === undefined ? plain : TENSOR_MOST;
  return uses.flatMap(({ point, registers, spills, shared }) =>
    [
      ...registers > most.registers ? [`takes ${registers} registers, more than ${most.registers}`] : [],
      ...spills > most.spills ? [`spills ${spills} bytes, more than ${most.spills}`] : [],
      ...shared > most.shared ? [`takes ${shared} bytes of shared memory, more than ${most.shared}`] : [],
    ].map((what) => `${point} for ${architecture} ${what}`)
  );
}

/** The kernels of some outcomes and their forms, in the order of their files. */
function kernelsOf(outcomes: readonly Outcome[]): string[] {
  const all = new Set(JOBS.map(jobName));
  return [...all].filter((name) => outcomes.some((one) => jobName(one) === name));
}

/** A line a kernel, a column a kind of card that outcomes are of. */
export function tableOf(outcomes: readonly Outcome[]): string[] {
  const kernels = kernelsOf(outcomes);
  const architectures = ARCHITECTURES.filter((name) => outcomes.some(({ architecture }) => architecture === name));
  return [
    "registers/bytes spilled/bytes of shared memory, the most of a kernel's entry points",
    `${"".padEnd(26)}${architectures.map((name) => name.padEnd(14)).join("")}`.trimEnd(),
    ...kernels.map((kernel) => {
      const cells = architectures.map((architecture) => {
        const found = outcomes.find((one) => jobName(one) === kernel && one.architecture === architecture);
        if (found === undefined || "refusal" in found) return "refused";
        const { registers, spills, shared } = worstOf(found.uses);
        return `${registers}/${spills}/${shared}`;
      });
      return `${kernel.padEnd(26)}${cells.map((cell) => cell.padEnd(14)).join("")}`.trimEnd();
    }),
  ];
}

/** The page of `docs/`: for each kernel the most that it takes on any card. */
export function documentOf(outcomes: readonly Outcome[], compiler: string, date: string): string {
  const kernels = kernelsOf(outcomes);
  const rows = kernels.map((kernel) => {
    const uses = outcomes.flatMap((one) => jobName(one) === kernel && "uses" in one ? one.uses : []);
    const { registers, spills, shared } = worstOf(uses);
    return `| ${kernel} | ${uses.length} | ${registers} | ${spills} | ${shared} |`;
  });
  return [
    "# What CUDA kernels take",
    "",
    `Compiled by ${compiler} on ${date}, by \`npm run test:cuda -- --document\`, for ${ARCHITECTURES.join(", ")}.`,
    "No card has run them: see [cuda.md](cuda.md). Each number is the most of any entry point on any of these cards; a block has",
    `256 threads. Up to ${TRADED_SPILLS} bytes the compiler spills by itself to spare a thread 8 registers, so that more threads run side by`,
    "side: the same kernel for another element type or card takes them and spills nothing. More than that is a failure, as are",
    `more than ${MOST_REGISTERS} registers, with which two blocks go side by side, but for these:`,
    "",
    ...Object.entries(EXPLAINED).map(([kernel, { reason }]) => `- \`${kernel}\`: ${reason}.`),
    "",
    "A name that ends in a number is a form of the kernel for 2-byte floats on tensor cores, for heads of up to so many dims",
    "(keys × values where they differ). Its blocks have 128 threads, so that registers let two go side by side whatever a thread",
    `takes, and up to ${TENSOR_MOST.shared} bytes of shared memory, as much as a block has on any of these cards; how many go side by`,
    "side with that on which card, `src/device/cuda/tensor_cores.ts` says. Where sums take all 255 registers, a few bytes of the rest",
    "are spilled.",
    "",
    "| kernel | entry points | registers of a thread | bytes spilled | bytes of shared memory of a block |",
    "| --- | --- | --- | --- | --- |",
    ...rows,
    "",
  ].join("\n");
}
