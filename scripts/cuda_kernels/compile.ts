/**
 * The compilation of the CUDA kernels by NVIDIA's compiler: registers, spills and shared memory of each entry point. No GPU is needed.
 *
 * @module
 */
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { compileKernel, kernelDigest, nvrtcVersion } from "../../src/device/cuda/compiler.ts";
import { LAUNCHES } from "../../src/device/cuda/launches.ts";
import type { Nvrtc } from "../../src/device/cuda/libraries.ts";
import { formName, passName, type TensorForm, tensorFormsOf } from "../../src/device/cuda/tensor_cores.ts";
import { formText, kernelText, type KernelTexts } from "../../src/device/cuda/texts.ts";
import { InternalError, LibraryNotFoundError } from "../../src/errors.ts";
import { NVRTC } from "../../src/ffi/bindings/nvrtc.ts";
import { isAbsence } from "../../src/ffi/library.ts";
import { openLibrary } from "../../src/ffi/mod.ts";
import { environmentFrom, processEnvironment } from "../../src/runtime/env.ts";

/** The kinds of cards that kernels are compiled for. */
export const ARCHITECTURES = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120"] as const;
/** Those that kernels are compiled for unless all are asked for: the oldest, whose instructions all others have. */
const FEW: readonly string[] = ["sm_80"];

/** The folder into which `scripts/cuda_libraries.sh` puts the libraries. */
export const FETCHED: string = fileURLToPath(new URL("../../.cuda", import.meta.url));
/** Texts that were compiled for the oldest kind of card without a fault: a line of name and digest each. */
export const COMPILED: string = fileURLToPath(new URL("compiled.txt", import.meta.url));
/** The folder of results, which are kept by the compiled text and the options. */
const KEPT = fileURLToPath(new URL("../../.cache/cuda_kernels", import.meta.url));

/** One kernel for one kind of card. */
export interface Job {
  readonly kernel: string;
  /** The file that it is written in. */
  readonly file: string;
  readonly architecture: string;
  /** The form of the kernel, of those for tensor cores. */
  readonly form?: TensorForm;
}

/** The name of a job: its kernel, or the form of it. */
export function jobName({ kernel, form }: Job): string {
  return form === undefined ? kernel : formName(kernel, form);
}

/** All kernels, and all forms of them, for all kinds of cards. */
export const JOBS: readonly Job[] = Object.entries(LAUNCHES).flatMap(([file, kernels]) =>
  Object.keys(kernels).flatMap((kernel) => {
    const forms = tensorFormsOf(kernel).map((form): Omit<Job, "architecture"> => ({ kernel, file, form }));
    return [{ kernel, file }, ...forms].flatMap((one) =>
      ARCHITECTURES.map((architecture): Job => ({ ...one, architecture }))
    );
  })
);

/** The jobs that are done. */
export interface Selection {
  /** For every kind of card, not for the oldest alone. */
  readonly all: boolean;
  /** Of one kernel alone. @default of all */
  readonly only: string | undefined;
  /** Also what {@link COMPILED} names. */
  readonly recompiles: boolean;
}

/** The jobs of a selection. */
export function jobsOf({ all, only }: Omit<Selection, "recompiles">): readonly Job[] {
  return JOBS.filter(({ kernel, architecture }) =>
    (all || FEW.includes(architecture)) && (only === undefined || kernel === only)
  );
}

/** The resources of one entry point. */
export interface Use {
  readonly point: string;
  readonly registers: number;
  /** Bytes that registers did not hold, which are stored to memory. */
  readonly spills: number;
  /** Bytes of a block's shared memory: what it declares, and what its launch asks for. */
  readonly shared: number;
}

/** The outcome of a job: the resources of its entry points, or the compiler's words. */
export type Outcome = Job & ({ readonly uses: readonly Use[] } | { readonly refusal: string });

/** Opens NVRTC: the fetched one, or else the user's; undefined where there is none. */
export async function findCompiler(): Promise<Nvrtc | undefined> {
  const environment = existsSync(FETCHED)
    ? environmentFrom((name) => name === "VIRTUAL_ENV" ? FETCHED : undefined)
    : processEnvironment();
  try {
    return await openLibrary(NVRTC, { environment });
  } catch (error) {
    const isAbsent = error instanceof LibraryNotFoundError && error.tried.every(({ reason }) => isAbsence(reason));
    if (isAbsent) return undefined;
    throw error;
  }
}

/** The line of a job in {@link COMPILED}. */
export function lineOf(nvrtc: Nvrtc, texts: KernelTexts, job: Job): string {
  return `${jobName(job)} ${kernelDigest(job.architecture, nvrtcVersion(nvrtc), textOf(texts, job))}`;
}

/** The jobs of a selection without those that {@link COMPILED} names, unless it is of every kind of card or of one kernel. */
export function jobsToDo(nvrtc: Nvrtc, texts: KernelTexts, selection: Selection): readonly Job[] {
  const jobs = jobsOf(selection);
  if (selection.all || selection.recompiles || selection.only !== undefined) return jobs;
  const compiled = new Set(readFileSync(COMPILED, "utf8").split("\n"));
  return jobs.filter((job) => !compiled.has(lineOf(nvrtc, texts, job)));
}

function textOf(texts: KernelTexts, { kernel, file, form }: Job): string {
  return form === undefined ? kernelText(texts, kernel, file) : formText(texts, kernel, form);
}

/** Does a job, or takes what came of the same one before. */
export function outcomeOf(nvrtc: Nvrtc, texts: KernelTexts, job: Job): Outcome {
  const text = textOf(texts, job);
  const kept = `${KEPT}/${jobName(job)}-${kernelDigest(job.architecture, nvrtcVersion(nvrtc), text)}.json`;
  const launched = (uses: readonly Use[]): Outcome => ({ ...job, uses: uses.map((use) => withLaunched(use, job)) });
  if (existsSync(kept)) return launched(JSON.parse(readFileSync(kept, "utf8")));
  try {
    const uses = usesIn(compileKernel(nvrtc, jobName(job), text, job.architecture).log);
    mkdirSync(KEPT, { recursive: true });
    writeFileSync(`${kept}.${process.pid}`, JSON.stringify(uses));
    renameSync(`${kept}.${process.pid}`, kept);
    return launched(uses);
  } catch (error) {
    if (error instanceof InternalError) return { ...job, refusal: error.message };
    throw error;
  }
}

/** The resources of an entry point, with the shared memory that its launch asks for. */
function withLaunched(use: Use, { kernel, form }: Job): Use {
  const pass = form?.passes.find((one) => use.point.startsWith(`run_${passName(kernel, form, one)}_`));
  return pass === undefined ? use : { ...use, shared: use.shared + pass.sharedBytes };
}

/** Reads what each entry point takes from the compiler's log. */
export function usesIn(log: string): Use[] {
  return log.split("Compiling entry function ").slice(1).map((part) => {
    const point = /^'(\w+)'/.exec(part)?.[1];
    const number = (pattern: RegExp): number => {
      const found = pattern.exec(part)?.[1];
      if (found === undefined) throw new Error(`the compiler's log lacks ${pattern} of '${point}':\n${part}`);
      return Number(found);
    };
    if (point === undefined) throw new Error(`the compiler's log names no entry point:\n${part}`);
    const spills = [...part.matchAll(/(\d+) bytes spill stores/g)].map(([, bytes]) => Number(bytes));
    return {
      point,
      registers: number(/Used (\d+) registers/),
      spills: spills.reduce((sum, bytes) => sum + bytes, 0),
      shared: part.includes(" bytes smem") ? number(/(\d+) bytes smem/) : 0,
    };
  });
}
