/**
 * Tests that take long and whose subject is the same under both runtimes. Where `npm test` runs their file under both, each runtime
 * runs about a half of them and skips the others. They all run with `--all`, with `--runtime`, and in a file that runs by itself.
 *
 * @module
 */
import process from "node:process";
import { test, type TestContext } from "node:test";
import { numberOf } from "./name_number.ts";
import { RUNTIME } from "./rank_process.ts";

const isAll = process.env["FULLYSHARD_TEST_ALL"] !== undefined;
const isShared = process.env["FULLYSHARD_TEST_SHARED"] !== undefined && !isAll;

/** Even numbers run under Bun, odd ones under Deno. */
function isMine(number: number): boolean {
  return !isShared || number % 2 === (RUNTIME === "bun" ? 0 : 1);
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

/** `test` of `node:test`, which only `npm test -- --all` runs. */
export function longTest(name: string, ...rest: readonly [Body] | readonly [Options, Body]): void {
  if (!isAll) return;
  const [options, body] = rest.length === 1 ? [{}, rest[0]] : rest;
  test(name, options, body);
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
