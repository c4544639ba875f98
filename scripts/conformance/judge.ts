/**
 * The verdict on an item, from the outcomes of the tests that show it.
 *
 * @module
 */
import type { JobResult } from "../run_tests.ts";
import type { ConformanceItem } from "./items.ts";

/** The verdict on an item. */
export interface Verdict {
  readonly name: string;
  readonly status: "pass" | "fail" | "not applicable";
  readonly reason: string;
}

/** Judges an item by the outcomes of its tests under each runtime. */
export function judge(item: ConformanceItem, runtimes: readonly string[], results: readonly JobResult[]): Verdict {
  const { name } = item;
  if ("notApplicable" in item) return { name, status: "not applicable", reason: item.notApplicable };
  const wrong: string[] = [];
  let passed = 0;
  for (const runtime of runtimes) {
    for (const [file, text] of item.shownBy) {
      const outcomes = results.filter((result) => result.runtime === runtime && result.file === file)
        .flatMap((result) => result.outcomes.filter((outcome) => outcome.name.includes(text)));
      if (outcomes.length === 0) wrong.push(`${runtime} ${file} has no test '${text}'`);
      for (const outcome of outcomes) {
        if (outcome.state === "passed") passed++;
        else wrong.push(`${runtime} ${file}: '${outcome.name}' ${outcome.state}`);
      }
    }
  }
  const files = [...new Set(item.shownBy.map(([file]) => file))].join(", ");
  return wrong.length > 0
    ? { name, status: "fail", reason: wrong.join("; ") }
    : { name, status: "pass", reason: `${passed} passed in ${files}` };
}
