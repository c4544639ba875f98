/**
 * The texts of kernels: the files, and the text that the compiler gets for one kernel.
 *
 * @module
 */
import { FileError, InternalError } from "../../errors.ts";
import { permissionRemedy } from "../../runtime/permissions.ts";
import type { KernelEntry, KernelTable } from "../kernels/signature.ts";
import { KERNELS } from "../kernels/table.ts";
import { BEFORE, LAUNCHES, launchOf, THREADS } from "./launches.ts";
import { argumentStruct, type EntryPoints, entryPoints, tableDeclarations } from "./source.ts";
import {
  passName,
  runsOnTensorCores,
  TENSOR_FORMS,
  TENSOR_THREADS,
  type TensorForm,
  tensorFormsOf,
} from "./tensor_cores.ts";

/** Texts of kernels by file; `dev` is shared by all. */
export type KernelTexts = ReadonlyMap<string, string>;

export async function readKernelTexts(): Promise<KernelTexts> {
  const ofForms = Object.values(TENSOR_FORMS).flatMap((forms) => forms.map(({ file }) => file));
  const names = new Set([...Object.keys(LAUNCHES), ...ofForms, ...Object.values(BEFORE).flat()]);
  const files = [["dev", "dev.cuh"], ...[...names].map((file) => [file, `${file}.cu`] as const)] as const;
  const texts = files.map(async ([key, name]) => {
    const url = new URL(`./kernels/${name}`, import.meta.url);
    try {
      const response = await fetch(url);
      if (!response.ok) throw new Error(`HTTP status ${response.status}`);
      return [key, await response.text()] as const;
    } catch (cause) {
      const detail = permissionRemedy(cause) ?? "the package is incomplete; install it again";
      throw new FileError(url.href, "read", detail, undefined, { cause });
    }
  });
  return new Map(await Promise.all(texts));
}

/** The functions of a kernel's call, in order. */
export function functionsOf(kernel: string): readonly string[] {
  const launch = launchOf(kernel, LAUNCHES)?.launch;
  return launch !== undefined && "after" in launch ? [kernel, `${kernel}After`] : [kernel];
}

/** A kernel's entry as a card gets it: with the scratch, and its size (`room`), if calls have scratch. */
export function cardEntry(entry: KernelEntry, hasScratch: boolean): KernelEntry {
  if (!hasScratch) return entry;
  return {
    ...entry,
    values: { ...entry.values, room: "size" },
    arrays: { ...entry.arrays, scratch: { writes: "float32", shape: ["room"] } },
  };
}

/** The table's entry of a kernel, as a card gets it. */
function entryOf(kernel: string, hasScratch: boolean): KernelEntry {
  const table: KernelTable = KERNELS;
  const found = table[kernel];
  if (found === undefined) throw new InternalError(`no kernel '${kernel}'`);
  return cardEntry(found, hasScratch);
}

/** The text of a file, after the files that it needs, the table's declarations and structs of arguments. */
function textOf(
  texts: KernelTexts,
  file: string,
  structs: readonly string[],
  points: readonly EntryPoints[],
): string {
  const text = (name: string): string => {
    const found = texts.get(name);
    if (found === undefined) throw new InternalError(`no text of '${name}'`);
    return found;
  };
  const parts = [...BEFORE[file] ?? [], file].flatMap((name) => [`#line 1 "${name}.cu"\n`, text(name)]);
  return [text("dev"), tableDeclarations(), ...structs, ...parts, ...points.map(entryPoints)].join("");
}

/** The full text of a kernel for the compiler. */
export function kernelText(texts: KernelTexts, kernel: string, file: string): string {
  const entry = (name: string): KernelEntry => {
    const launch = launchOf(name, LAUNCHES)?.launch;
    if (launch === undefined) throw new InternalError(`no kernel '${name}'`);
    return entryOf(name, launch.scratch !== undefined);
  };
  const structs = Object.keys(LAUNCHES[file] ?? {}).map((name) => argumentStruct(name, entry(name)));
  const isAll = tensorFormsOf(kernel).length === 0;
  const points = functionsOf(kernel).map((name): EntryPoints => {
    const call = { kernel, entry: entry(kernel), threads: THREADS, name, calls: name };
    return isAll ? call : { ...call, takes: (dtype) => !runsOnTensorCores(dtype) };
  });
  return textOf(texts, file, structs, points);
}

export function formText(texts: KernelTexts, kernel: string, form: TensorForm): string {
  const entry = entryOf(kernel, form.scratch !== undefined);
  const points = form.passes.map((pass): EntryPoints => {
    const { name: calls, template } = pass;
    const name = passName(kernel, form, pass);
    return { kernel, entry, threads: TENSOR_THREADS, name, calls, template, takes: runsOnTensorCores };
  });
  return textOf(texts, form.file, [argumentStruct(kernel, entry)], points);
}
