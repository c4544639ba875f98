/**
 * Judgement of calls' results: the results that are failures, and the failure in words, with the call and its arguments.
 *
 * @module
 */
import { InternalError, NativeError } from "../errors.ts";
import { describe } from "./arguments.ts";
import { errnoName, errnoNumber, errnoText } from "../runtime/errno.ts";
import type { CallSite } from "./marshal.ts";

/** Judgement of a function's raw results. */
export interface Judge {
  /** Clears errno before the call; only of bindings that are judged by it. */
  readonly clear?: () => void;
  /** True if a raw result is a failure. */
  readonly failed: (result: unknown) => boolean;
  /** Takes a failed result: returns the value of a status that the binding accepts, throws the error of any other. */
  readonly acceptOrThrow: (result: unknown, args: readonly unknown[]) => unknown;
}

/** The judge of a binding's results, by its {@link StatusCheck}. */
export function judgeOf(site: CallSite): Judge {
  const { library, name, binding, ffi, provider } = site;
  const { check } = binding;
  const fail = (status: number, words: string, args: readonly unknown[], code?: string): never => {
    const list = args.map((value, index) => describe(value, binding.args[index], provider)).join(", ");
    throw new NativeError(library, name, status, `${words}: ${name}(${list})`, code);
  };
  const failErrno = (errno: number, args: readonly unknown[]): never =>
    fail(errno, errnoText(errno), args, errnoName(errno));
  if (check === "none") return { failed: () => false, acceptOrThrow: (result) => result };
  const isNonZero = (result: unknown): boolean => result !== 0;
  if (check === "errnoResult") {
    return { failed: isNonZero, acceptOrThrow: (result, args) => failErrno(Number(result), args) };
  }
  if (check === "notNull") {
    const isNull = (result: unknown): boolean => ffi.toAddress(result) === ffi.null;
    return { failed: isNull, acceptOrThrow: (_result, args) => fail(0, "NULL returned", args) };
  }
  if (check === "status" || (typeof check === "object" && "status" in check)) {
    const passes = new Set(check === "status" ? [] : check.status.map((known) => statusNumber(site, known)));
    const acceptOrThrow: Judge["acceptOrThrow"] = (result, args) => {
      const status = Number(result);
      if (passes.has(status)) return status;
      const { code, words } = statusWords(site, status);
      return fail(status, words, args, code);
    };
    return { failed: isNonZero, acceptOrThrow };
  }
  const failed = binding.result === "address"
    ? (result: unknown): boolean => ffi.toAddress(result) === ffi.failed
    : (result: unknown): boolean => result === -1 || result === -1n;
  const passes = new Set(
    check === "errno" ? [] : check.errno.map((known) => {
      const number = errnoNumber(known);
      if (number === undefined) throw new InternalError(`binding '${name}' names the unknown error '${known}'`);
      return number;
    }),
  );
  const errno = site.errno();
  const acceptOrThrow: Judge["acceptOrThrow"] = (_result, args) => {
    const number = errno.read(); // before anything else runs after the call: see Note [Reading errno]
    return passes.has(number) ? -number : failErrno(number, args);
  };
  return { clear: errno.clear, failed, acceptOrThrow };
}

function statusNumber({ name, statuses }: CallSite, known: string): number {
  for (const [number, text] of Object.entries(statuses.names)) if (text === known) return Number(number);
  throw new InternalError(`binding '${name}' names the unknown status '${known}'`);
}

/** Most bytes of the text of an error. */
const ERROR_BYTES = 1024;

/** The last error's text, of libraries that write it to a place that they are given. */
function lastErrorInto({ statuses, bound }: CallSite): string | undefined {
  const write = statuses.lastErrorInto === undefined ? undefined : bound.get(statuses.lastErrorInto);
  if (write === undefined) return undefined;
  const text = new Uint8Array(ERROR_BYTES);
  write(text, text.byteLength);
  const words = new TextDecoder().decode(text.subarray(0, text.indexOf(0)));
  return words === "" ? undefined : words;
}

/** A status' text, of libraries that write it to a place that they are given. */
function textInto({ statuses, bound }: CallSite, status: number): string | undefined {
  const write = statuses.textInto === undefined ? undefined : bound.get(statuses.textInto);
  if (write === undefined) return undefined;
  const [text, length] = [new Uint8Array(ERROR_BYTES), new Int32Array(1)];
  write(status, text, length);
  const words = new TextDecoder().decode(text.subarray(0, length[0])).replaceAll("\0", "");
  return words === "" ? undefined : words;
}

/** A status' name, and in words: name, text, and what the library says of its last error. */
function statusWords(site: CallSite, status: number): { code: string | undefined; words: string } {
  const { statuses, bound, provider } = site;
  const ask = (binding: string | undefined, argument: unknown): string | undefined => {
    const answer = binding === undefined ? null : bound.get(binding)?.(argument);
    return typeof answer === "string" && answer !== "" ? answer : undefined;
  };
  const code = statuses.names[status] ?? ask(statuses.nameOf, status);
  const text = ask(statuses.textOf, status) ?? textInto(site, status);
  const last = (ask(statuses.lastError, provider.nullAddress) ?? lastErrorInto(site))?.trim();
  const details = [text === code ? undefined : text, last].filter((detail) => detail !== undefined);
  const [first] = details;
  if (code === undefined && first !== undefined && statuses.textInto !== undefined) return { code, words: first };
  const words = code ?? "unknown status";
  return { code, words: details.length === 0 ? words : `${words} (${details.join("; ")})` };
}
