/**
 * Checks of a kernel's arguments by its entry. Layers above check shapes and lifetimes; these checks cover the limits of kernels:
 * their dtypes, and the sizes for which they have working space.
 *
 * @module
 */
import { COMPUTE_DTYPES, type DType, DTYPES, float32, int32 } from "../../dtype.ts";
import { DTypeError, InternalError } from "../../errors.ts";
import { requireHeld } from "../../held.ts";
import { type Arguments, type KernelEntry, MAX_DIMS, type ValueKind } from "./signature.ts";

type Check = (args: Arguments) => void;

export function dtypeArgument(args: Arguments, name: string): DType {
  const value = args[name];
  if (typeof value === "object" && "code" in value) return value;
  throw new InternalError(`kernel argument '${name}' must be an element type, got ${value}`);
}

/** An argument that is a number; it must be given. */
export function numberArgument(args: Arguments, name: string): number {
  const value = args[name];
  if (typeof value === "number") return value;
  throw new InternalError(`kernel argument '${name}' must be a number, got ${value}`);
}

/** An argument that is a list: a shape, strides or addresses; it must be given. */
export function listArgument(args: Arguments, name: string): readonly number[] {
  const value = args[name];
  if (typeof value === "object" && !("code" in value)) return value;
  throw new InternalError(`kernel argument '${name}' must be a list, got ${value}`);
}

export function checksOf(kernel: string, { values, arrays }: KernelEntry): readonly Check[] {
  const shape = Object.keys(values).find((name) => values[name] === "shape");
  const checks = Object.entries(values).map(([name, kind]) => checkOf(kernel, name, kind, shape));
  const lists = Object.keys(arrays).filter((name) => arrays[name]?.list);
  return [...checks.filter((check) => check !== undefined), ...lists.map((name) => someOf(kernel, name))];
}

function checkOf(kernel: string, name: string, kind: ValueKind, shape: string | undefined): Check | undefined {
  if (kind === "float") return among(kernel, name, COMPUTE_DTYPES);
  if (kind === "shape") {
    return (args) => {
      const { length } = listArgument(args, name);
      if (length > MAX_DIMS) throw new InternalError(`'${kernel}' takes at most ${MAX_DIMS} dims, got ${length}`);
    };
  }
  if (kind === "strides" && shape !== undefined) {
    return (args) => {
      const [own, dims] = [listArgument(args, name).length, listArgument(args, shape).length];
      if (own !== dims) throw new InternalError(`'${kernel}' takes a stride for each of ${dims} dims, got ${own}`);
    };
  }
  if (kind === "i32") return (args) => requireHeld(int32, args[name], `run '${kernel}'`);
  if (typeof kind === "string") return undefined;
  if ("dtypes" in kind) return among(kernel, name, DTYPES.filter((dtype) => kind.dtypes.includes(dtype.name)));
  if ("widens" in kind) {
    return (args) => {
      if (args[name] === args[kind.widens]) return;
      const [own, source] = [dtypeArgument(args, name), dtypeArgument(args, kind.widens)];
      if (own === float32 && source.kind === "float") return;
      throw new DTypeError(kernel, `'${name}' must be that of '${kind.widens}', or wider`, own.name, source.name);
    };
  }
  if ("atMost" in kind) {
    return (args) => {
      const value = numberArgument(args, name);
      if (value > kind.atMost) {
        throw new InternalError(`'${kernel}' takes a ${name} up to ${kind.atMost}, got ${value}`);
      }
    };
  }
  return (args) => {
    const [own, multiple] = [numberArgument(args, name), numberArgument(args, kind.divides)];
    if (multiple % own === 0) return;
    throw new InternalError(`'${kernel}' takes ${kind.divides} that ${name} divides, got ${multiple} and ${own}`);
  };
}

function someOf(kernel: string, name: string): Check {
  return (args) => {
    if (listArgument(args, name).length === 0) throw new InternalError(`'${kernel}' takes some ${name}, got none`);
  };
}

function among(kernel: string, name: string, dtypes: readonly DType[]): Check {
  return (args) => {
    const value = args[name];
    for (const dtype of dtypes) if (value === dtype) return;
    const names = dtypes.map((dtype) => dtype.name).join(" or ");
    throw new DTypeError(kernel, `'${name}' must be ${names}`, dtypeArgument(args, name).name);
  };
}
