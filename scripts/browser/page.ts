/**
 * Checks that any page must pass: no console error, no request that leaves it, no violation that axe finds, no scrolling sideways,
 * and every control reached by the keyboard alone.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Browser, Page } from "playwright-core";

/** A window in which a page is opened. */
export interface View {
  readonly width: number;
  readonly colorScheme: "light" | "dark";
}

/** The windows in which every page is opened. */
export const VIEWS: readonly View[] = [360, 1440].flatMap((width) =>
  (["light", "dark"] as const).map((colorScheme) => ({ width, colorScheme }))
);

/** A page with the things that it must not have. */
export interface WatchedPage extends AsyncDisposable {
  readonly page: Page;
  /** Errors of the console and of scripts. */
  readonly errors: readonly string[];
  /** Addresses that were asked for, besides the page's own. */
  readonly requests: readonly string[];
}

/** Opens an address. */
export async function openPage(browser: Browser, address: string, { width, colorScheme }: View): Promise<WatchedPage> {
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme });
  const page = await context.newPage();
  const [errors, requests]: [string[], string[]] = [[], []];
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") errors.push(message.text());
  });
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("request", (request) => {
    if (request.url() !== address) requests.push(request.url());
  });
  await page.goto(address);
  return { page, errors, requests, [Symbol.asyncDispose]: () => context.close() };
}

const axe = fileURLToPath(import.meta.resolve("axe-core/axe.min.js"));

/** Violations that axe finds, a line each. */
export async function violationsOf(page: Page): Promise<readonly string[]> {
  // The page's policy lets no script in, so it is evaluated by the debugger.
  await page.evaluate(readFileSync(axe, "utf8"));
  const text: string = await page.evaluate(
    "axe.run().then(({ violations }) => JSON.stringify(violations.map(({ id, nodes }) => `${id}: ${nodes[0].html}`)))",
  );
  return JSON.parse(text);
}

/** Fails if the page is wider than its window. */
export async function requireFits(page: Page): Promise<void> {
  const [content, window]: [number, number] = await page.evaluate(
    "[document.documentElement.scrollWidth, document.documentElement.clientWidth]",
  );
  assert.ok(content <= window, `the page is ${content} pixels wide in a window of ${window}`);
}

/** Fails unless the Tab key comes to all controls in their order, each with an outline. */
export async function requireKeyboard(page: Page): Promise<void> {
  const selector = "a[href], button:not(:disabled), input, select, textarea, summary, [tabindex='0']";
  const expected: number = await page.evaluate(
    `[...document.querySelectorAll(${JSON.stringify(selector)})].filter((one) => one.checkVisibility()).length`,
  );
  const seen = new Set<string>();
  for (let i = 0; i < expected; i++) {
    await page.keyboard.press("Tab");
    const [place, outline]: [string, string] = await page.evaluate(`(() => {
      const one = document.activeElement;
      return [String([...document.querySelectorAll(${
      JSON.stringify(selector)
    })].indexOf(one)), getComputedStyle(one).outlineStyle];
    })()`);
    assert.notEqual(place, "-1", "the focus left the page before its last control");
    assert.equal(outline, "solid", `control ${place} shows no focus`);
    seen.add(place);
  }
  assert.equal(seen.size, expected);
}
