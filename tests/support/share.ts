/**
 * What takes long and does the same under both runtimes: each runs a half of it in `npm test`, and all of it with `--all`.
 *
 * @module
 */
import process from "node:process";
import { test, type TestContext } from "node:test";
import { RUNTIME } from "./rank_process.ts";

const isAll = process.env["FULLYSHARD_TEST_ALL"] !== undefined;

/** Whether this runtime runs what is at a place: even ones run under Bun, odd ones under Deno. */
function isMine(place: number): boolean {
  return isAll || place % 2 === (RUNTIME === "bun" ? 0 : 1);
}

/** Every second case, the others being run under the other runtime; all of them with `--all`. */
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

/** What a test of `node:test` is told besides its name. */
interface Options {
  readonly timeout?: number;
  readonly skip?: boolean | string | undefined;
}
type Body = (context: TestContext) => void | Promise<void>;

let place = 0;

/** As `test` and `it` of `node:test`, but of a file's tests every second one; all of them with `--all`. */
export function sharedTest(name: string, ...rest: readonly [Body] | readonly [Options, Body]): void {
  if (!isMine(place++)) return;
  const [options, body] = rest.length === 1 ? [{}, rest[0]] : rest;
  test(name, options, body);
}
