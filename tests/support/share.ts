/** Matrices of cases that are long: each runtime runs a half, or none unless all are asked for. @module */
import process from "node:process";
import { RUNTIME } from "./rank_process.ts";

/** Every second case, the others being run under the other runtime; all of them in `npm test -- --all`. */
export function shareOf<T>(cases: readonly T[]): readonly T[] {
  if (process.env["FULLYSHARD_TEST_ALL"] !== undefined) return cases;
  return cases.filter((_, i) => i % 2 === (RUNTIME === "bun" ? 0 : 1));
}

/** Cases that only 'npm test -- --all' runs. */
export function onlyInAll<T>(cases: readonly T[]): readonly T[] {
  return process.env["FULLYSHARD_TEST_ALL"] === undefined ? [] : cases;
}
