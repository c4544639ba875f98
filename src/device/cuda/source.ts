/**
 * The text of a kernel for the compiler: the part that all kernels share, the arguments of its file's kernels as structs that
 * follow from their entries, the file, and one entry point for each combination of dtypes. So a kernel's `.cu` text holds the
 * calculation alone, and its arguments are declared once, in the kernel table.
 *
 * @module
 */
import { COMPUTE_DTYPES, type DType, DTYPES } from "../../dtype.ts";
import { InternalError } from "../../errors.ts";
import { dtypeArgument } from "../kernels/arguments.ts";
import {
  type Arguments,
  type ArrayKind,
  CONSTANTS,
  type KernelEntry,
  OPS,
  type ValueKind,
} from "../kernels/signature.ts";

/** Alignment of an argument in a struct, in bytes. */
export const SLOT_BYTES = 8;
/** Slots of a shape: the number of dims and the sizes; strides lack the number. */
export const SHAPE_SLOTS = 9;
/** Largest number of addresses of a list. */
export const MAX_LIST = 64;

/**
 * The value that holds the number of a batch's first sample, relative to a number on the card that a graph reads at each launch.
 */
export const SAMPLE = "sample";

/** The parameters of a kernel that are dtypes, in order. */
export function dtypeParameters({ values }: KernelEntry): readonly string[] {
  return Object.keys(values).filter((name) => typesOf(values, name) !== undefined);
}

export function entryPoint(kernel: string, parameters: readonly string[], args: Arguments): string {
  let name = `run_${kernel}`;
  for (const parameter of parameters) name += `_${dtypeArgument(args, parameter).name}`;
  return name;
}

/** Declarations of the table's functions and constants, the same for all kernels. */
export function tableDeclarations(): string {
  const enums = Object.entries(OPS).map(([name, names]) =>
    `enum class ${enumName(name)} : i64 { ${names.join(", ")} };`
  );
  const constants = Object.entries(CONSTANTS).map(([name, value]) => `constexpr int ${name} = ${value};`);
  return [...enums, ...constants, ""].join("\n");
}

/** The struct of a kernel's arguments: `<kernel>Args`, a template over its dtypes. */
export function argumentStruct(kernel: string, entry: KernelEntry): string {
  const parameters = dtypeParameters(entry);
  const members: string[] = [];
  for (const [name, kind] of Object.entries(entry.values)) {
    if (name === SAMPLE) members.push(`Sample ${name};`);
    else if (!parameters.includes(name)) members.push(`${valueType(kind)} ${name};`);
  }
  for (const [name, kind] of Object.entries(entry.arrays)) members.push(`${arrayType(kind)} ${name};`);
  if (entry.faults) members.push("Status* status;");
  return `${templateOf(parameters)}struct ${kernel}Args { ${members.join(" ")} };\n`;
}

/** The entry points of a function with a kernel's arguments. */
export interface EntryPoints {
  readonly kernel: string;
  readonly entry: KernelEntry;
  /** Threads of a block. */
  readonly threads: number;
  /** Prefix of the names of entry points, before the dtypes. */
  readonly name: string;
  /** The function; its template takes `template` after the dtypes. */
  readonly calls: string;
  readonly template?: readonly (number | boolean)[];
  /** Dtypes that it takes; default all that the kernel takes. */
  readonly takes?: (dtype: DType) => boolean;
}

/** The text of entry points, one for each combination of dtypes. */
export function entryPoints(points: EntryPoints): string {
  const { kernel, entry, threads, name, calls, template, takes = () => true } = points;
  const parameters = dtypeParameters(entry);
  const point = (dtypes: readonly DType[]): string => {
    const names = dtypes.map(({ name }) => name);
    const struct = names.length === 0 ? `${kernel}Args` : `${kernel}Args<${names.join(", ")}>`;
    const called = template === undefined ? calls : `${calls}<${[...names, ...template].join(", ")}>`;
    return `ENTRY(${threads}) ${["run", name, ...names].join("_")}(const ${struct} args) { ${called}(args); }\n`;
  };
  return combinations(entry.values, parameters).filter((dtypes) => dtypes.every(takes)).map(point).join("");
}

/** All combinations of dtypes that pass a kernel's checks. */
function combinations(values: KernelEntry["values"], parameters: readonly string[]): DType[][] {
  let all: DType[][] = [[]];
  for (const parameter of parameters) {
    const kind = values[parameter];
    all = all.flatMap((given) => {
      if (typeof kind === "object" && "widens" in kind) {
        const source = given[parameters.indexOf(kind.widens)];
        if (source === undefined) throw new InternalError(`'${parameter}' comes before '${kind.widens}'`);
        const wider = DTYPES.filter(({ name }) => name === "float32" && source.kind === "float");
        return [...new Set([source, ...wider])].map((dtype) => [...given, dtype]);
      }
      const types = typesOf(values, parameter);
      if (types === undefined) throw new InternalError(`'${parameter}' is no element type`);
      return types.map((dtype) => [...given, dtype]);
    });
  }
  return all;
}

/** The dtypes that a parameter may be; undefined if it is not a dtype. */
function typesOf(values: KernelEntry["values"], name: string): readonly DType[] | undefined {
  const kind = values[name];
  if (kind === "dtype") return DTYPES;
  if (kind === "float") return COMPUTE_DTYPES;
  if (typeof kind !== "object") return undefined;
  if ("dtypes" in kind) return DTYPES.filter((dtype) => kind.dtypes.includes(dtype.name));
  return "widens" in kind ? DTYPES : undefined;
}

function templateOf(parameters: readonly string[]): string {
  return parameters.length === 0 ? "" : `template <${parameters.map((name) => `class ${name}`).join(", ")}> `;
}

function valueType(kind: ValueKind): string {
  if (kind === "f32") return `alignas(${SLOT_BYTES}) float`;
  if (kind === "f64") return "double";
  if (kind === "shape") return "Shape";
  if (kind === "strides") return "Strides";
  return typeof kind === "string" && kind in OPS ? enumName(kind) : "i64";
}

/** The C++ type of a kind of functions: the kind capitalized, so that no member has its name. */
function enumName(kind: string): string {
  return kind.charAt(0).toUpperCase() + kind.slice(1);
}

function arrayType(kind: ArrayKind): string {
  const element = "reads" in kind ? `const ${kind.reads}` : "updates" in kind ? kind.updates : kind.writes;
  return kind.list ? `List<${element}>` : `${element}*`;
}
