/**
 * Tests that take long and whose subject is the same under both runtimes. When `npm test` runs both, each runtime runs about
 * a half of them and skips the others. Everything else runs all of them: `--all`, `--runtime`, and a file that is run by itself.
 *
 * @module
 */
import process from "node:process";
import { test, type TestContext } from "node:test";
import { RUNTIME } from "./rank_process.ts";

const isAll = process.env["FULLYSHARD_TEST_ALL"] !== undefined;
const isShared = process.env["FULLYSHARD_TEST_SHARED"] !== undefined && !isAll;

/** Even numbers run under Bun, odd ones under Deno. */
function isMine(number: number): boolean {
  return !isShared || number % 2 === (RUNTIME === "bun" ? 0 : 1);
}

/** A number that follows from a name alone (FNV-1a), so that adding a test moves no other one to the other runtime. */
function numberOf(name: string): number {
  let hash = 0x811c9dc5;
  for (const unit of new TextEncoder().encode(name)) hash = Math.imul(hash ^ unit, 0x01000193) >>> 0;
  // The lowest bit of FNV-1a is only a parity of the bytes' lowest bits.
  return hash >>> 16;
}

/** The cases of a matrix that this runtime runs: each second one where both runtimes run the suite. */
export function shareOf<T>(cases: readonly T[]): readonly T[] {
  return cases.filter((_, place) => isMine(place));
}

/** Cases that only `npm test -- --all` runs. */
export function onlyInAll<T>(cases: readonly T[]): readonly T[] {
  return isAll ? cases : [];
}

/** The cases at places that are usual, and behind them, with `--all`, the others. */
export function usualFirst<T>(cases: readonly T[], isUsual: (place: number) => boolean): readonly T[] {
  return [
    ...cases.filter((_, place) => isUsual(place)),
    ...onlyInAll(cases.filter((_, place) => !isUsual(place))),
  ];
}

/** Options of `test` of `node:test`. */
interface Options {
  readonly timeout?: number;
  readonly skip?: boolean | string | undefined;
}
type Body = (context: TestContext) => void | Promise<void>;

/** `test` of `node:test`, which one of the two runtimes skips where both run the suite: its name decides which. */
export function sharedTest(name: string, ...rest: readonly [Body] | readonly [Options, Body]): void {
  const [options, body] = rest.length === 1 ? [{}, rest[0]] : rest;
  test(name, isMine(numberOf(name)) ? options : { ...options, skip: "the other runtime runs it" }, body);
}
