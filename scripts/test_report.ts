/**
 * Reads what a test runner itself reported, in JUnit's form, into one outcome for each test. Bun and Deno differ in what they
 * call a test: a group of tests is none of its own here.
 *
 * @module
 */

/** The outcome of one test. */
export interface TestOutcome {
  /** Name, after those of its groups. */
  readonly name: string;
  /** The outcome. */
  readonly state: "passed" | "failed" | "skipped";
  /** Seconds that it took, by the runner's clock. */
  readonly seconds: number;
}

/**
 * Reads a report.
 *
 * @param xml the text of the report
 * @returns the tests, in order
 */
export function readReport(xml: string): readonly TestOutcome[] {
  const cases = [...xml.matchAll(/<testcase\b([^>]*?)(?:\/>|>([^]*?)<\/testcase>)/g)].map(([, attributes, body]) => ({
    name: unescape(/\bname="([^"]*)"/.exec(attributes ?? "")?.[1] ?? ""),
    seconds: Number(/\btime="([^"]*)"/.exec(attributes ?? "")?.[1] ?? NaN),
    group: unescape(/\bclassname="([^"]*)"/.exec(attributes ?? "")?.[1] ?? ""),
    body: body ?? "",
  }));
  const parents = new Set(cases.flatMap(({ name }) => {
    const parts = name.split(" > ");
    return parts.slice(1).map((_, index) => parts.slice(0, index + 1).join(" > "));
  }));
  return cases.flatMap(({ name, group, seconds, body }) => {
    const failed = /<(failure|error)\b/.test(body);
    const onlyInside = failed && /<failure message="\d+ test steps? failed/.test(body);
    // Deno reports a group as a test beside those in it; it counts only if it failed of itself.
    if (parents.has(name) && (!failed || onlyInside)) return [];
    const state = failed ? "failed" as const : /<skipped\b/.test(body) ? "skipped" as const : "passed" as const;
    const isFile = group === "" || /[./]/.test(group);
    return [{ name: isFile ? name : `${group} > ${name}`, state, seconds }];
  });
}

function unescape(text: string): string {
  const letters: Readonly<Record<string, string>> = { lt: "<", gt: ">", quot: '"', apos: "'", amp: "&" };
  return text.replace(/&(?:#(\d+)|#x([0-9a-f]+)|(\w+));/gi, (whole, decimal, hex, name) => {
    if (decimal !== undefined) return String.fromCodePoint(Number(decimal));
    if (hex !== undefined) return String.fromCodePoint(parseInt(hex, 16));
    return letters[name] ?? whole;
  });
}
