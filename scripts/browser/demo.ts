/**
 * The demo's page in a browser: ranks train as Workers, are held, stepped and killed, and give the losses of the command line.
 *
 * @module
 */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import type { Browser, Page } from "playwright-core";
import { DEMO_FILES, serveDemo } from "../../src/demo/serve.ts";
import { temporaryDirectory } from "../../tests/support/temporary.ts";
import { buildDemo } from "../demo/build.ts";
import { openPage, requireFits, requireKeyboard, type View, violationsOf } from "./page.ts";

/** Most bytes of the page and all that it loads, compressed. */
const MOST_BYTES = 1_500_000;

const WIDE: View = { width: 1440, colorScheme: "light" };
const bin = fileURLToPath(new URL("../../bin/fullyshard.mjs", import.meta.url));

/** Builds the page; fails if it is too large. */
export async function buildTo(folder: string): Promise<void> {
  await buildDemo(folder);
  const bytes = Object.keys(DEMO_FILES).map((name) => gzipSync(readFileSync(`${folder}/${name}`)).length);
  const total = bytes.reduce((sum, length) => sum + length, 0);
  assert.ok(total < MOST_BYTES, `${total} bytes, ${bytes.join(", ")}`);
}

/** Opens the page, trains, and tries every control. @param screens folder for pictures, if they are to be taken */
export async function testDemoPage(
  browser: Browser,
  folder: string,
  view: View,
  screens: string | undefined,
): Promise<void> {
  const server = await serveDemo(folder, 0);
  try {
    const address = `http://127.0.0.1:${server.port}/`;
    await using opened = await openPage(browser, address, view);
    const { page, errors, requests } = opened;
    assert.deepEqual(await violationsOf(page), []);
    await requireFits(page);
    if (view.colorScheme === "light") await requireKeyboard(page);
    await page.locator("#ranks").selectOption("3");
    await page.locator("#speed").selectOption("2000");
    await page.getByRole("button", { name: "Train" }).click();
    await testMoments(page);
    await page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true");
    assert.deepEqual(await violationsOf(page), []);
    await requireFits(page);
    if (screens !== undefined) await takeScreen(page, `${screens}demo-${view.width}.jpg`);
    await testKill(page);
    assert.deepEqual(await violationsOf(page), []);
    assert.deepEqual(errors, []);
    const foreign = requests.filter((one) => !one.startsWith(address) && !/^(?:data|blob):/.test(one));
    assert.deepEqual(foreign, []);
  } finally {
    server.close();
  }
}

/** Holds the ranks at moments, and lets them finish steps. */
async function testMoments(page: Page): Promise<void> {
  const now = page.locator("#now");
  await now.filter({ hasText: /^All-gather of embedding/ }).waitFor();
  await page.getByRole("button", { name: "Pause" }).click();
  const next = page.getByRole("button", { name: "Next moment" });
  const unit = page.locator(".rank-card").first().locator(".unit").nth(1);
  const held = unit.locator(".parts").first();
  assert.equal(await held.getAttribute("data-held"), "own");
  await pressUntil(page, next, /^All-gather of block 0/);
  assert.equal(await unit.getAttribute("data-activity"), "gather");
  assert.equal(await held.getAttribute("data-held"), "all");
  await pressUntil(page, next, /^Forward of block 0/);
  assert.equal(await held.getAttribute("data-held"), "all");
  assert.equal(await page.locator("#story > li[aria-current]").getAttribute("data-about"), "forward");
  await pressUntil(page, next, /^Free of block 0/);
  assert.equal(await held.getAttribute("data-held"), "own");
  await pressUntil(page, next, /^All-gather of block 1/);
  assert.equal(await held.getAttribute("data-held"), "own");
  await page.getByRole("button", { name: "One step" }).focus();
  await page.keyboard.press("Enter");
  await now.filter({ hasText: "Step 1 is done." }).waitFor();
  await page.keyboard.press("Enter");
  await now.filter({ hasText: "Step 2 is done." }).waitFor();
  const [first, second] = await lossesIn(page, 2);
  assert.ok(first !== undefined && second !== undefined && second < first, `${first} ${second}`);
  await next.click(); // between steps, no rank waits at a moment
  await pressUntil(page, next, /^Reduce-scatter of block 3/);
  const texts = await page.locator(".memory-card").first().locator(".memory-text").allTextContents();
  const [, sharded = NaN, replicated = NaN] = texts.map((text) => Number(/^([\d.]+) MiB$/.exec(text)?.[1]));
  assert.ok(sharded < 0.7 * replicated, texts.join(" "));
}

/** Presses a button until the page says that a moment has come. */
async function pressUntil(page: Page, button: ReturnType<Page["getByRole"]>, pattern: RegExp): Promise<void> {
  const now = page.locator("#now");
  for (let i = 0; i < 80; i++) {
    await page.locator("#stage[data-waits=true]").waitFor();
    if (pattern.test(await now.textContent() ?? "")) return;
    await button.click();
  }
  assert.fail(`the page never said ${pattern}`);
}

async function testKill(page: Page): Promise<void> {
  await page.locator("#victim").selectOption("1");
  await page.getByRole("button", { name: "Kill it" }).click();
  const failure = page.locator("#failure");
  // The ranks tell in any order.
  for (const rank of [0, 2]) await failure.filter({ hasText: new RegExp(`Rank ${rank}: CollectiveError`) }).waitFor();
  const text = await failure.textContent() ?? "";
  for (const rank of [0, 2]) assert.match(text, new RegExp(`^Rank ${rank}: CollectiveError: .*rank 1 died`, "m"));
  assert.match(await page.locator(".rank-card").nth(1).textContent() ?? "", /was killed/);
}

async function takeScreen(page: Page, path: string): Promise<void> {
  await page.evaluate("for (const one of document.querySelectorAll('details')) one.open = false");
  await page.evaluate("scrollTo(0, 0)");
  await page.screenshot({ path, type: "jpeg", quality: 70 });
}

/** The losses of the page's table, once it has as many. */
async function lossesIn(page: Page, count: number): Promise<readonly number[]> {
  await page.locator("#rows tr").nth(count - 1).waitFor({ state: "attached" });
  const texts = await page.locator("#rows tr td:nth-child(2)").allTextContents();
  return texts.map(Number);
}

/** Trains in the page and by the command that it shows, from the files that it offers. */
export async function testDemoLosses(browser: Browser, folder: string): Promise<void> {
  const server = await serveDemo(folder, 0);
  try {
    using temporary = temporaryDirectory();
    await using opened = await openPage(browser, `http://127.0.0.1:${server.port}/`, WIDE);
    const { page, errors } = opened;
    await page.locator("#steps").fill("8");
    await page.locator("#seed").fill("3");
    await page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true");
    await page.locator("#text").fill("Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. ".repeat(20));
    await page.locator("#seed").blur();
    const texts: Record<string, string> = {};
    for (const id of ["text-file", "model-file"]) {
      const [download] = await Promise.all([page.waitForEvent("download"), page.locator(`#${id}`).click()]);
      texts[download.suggestedFilename()] = readFileSync(await download.path(), "utf8");
    }
    await page.getByRole("button", { name: "Train" }).click();
    const losses = await lossesIn(page, 8);
    await page.locator("#sample").filter({ hasText: "The model writes, one letter after the other: Zwölf" }).waitFor();
    const command = await page.locator("#command").textContent() ?? "";
    const [, ...args] = command.split(" ").map((word) => Object.hasOwn(texts, word) ? temporary.file(word) : word);
    for (const [name, text] of Object.entries(texts)) temporary.write(name, text);
    const own = ["--out", temporary.file("run"), "--cache", temporary.file("cache"), "--sample-tokens", "0"];
    execFileSync("node", [bin, ...args, ...own], { stdio: "pipe" });
    const lines = readFileSync(temporary.file("run/metrics.jsonl"), "utf8").trim().split("\n");
    const expected = lines.map((line): number => JSON.parse(line).loss);
    assert.equal(expected.length, 8);
    assert.deepEqual(losses, expected);
    assert.deepEqual(errors, []);
  } finally {
    server.close();
  }
}

/** Opens the page from a server that knows nothing of isolation. */
export async function testDemoAlone(browser: Browser, folder: string): Promise<void> {
  const server = createServer(({ url = "/" }, response) => {
    const name = url === "/" ? "index.html" : url.slice(1);
    const type = Object.hasOwn(DEMO_FILES, name) ? DEMO_FILES[name] : undefined;
    if (type === undefined) response.writeHead(404).end();
    else response.writeHead(200, { "Content-Type": type }).end(readFileSync(`${folder}/${name}`));
  });
  await new Promise<void>((resolve) => void server.listen(0, "127.0.0.1", resolve));
  try {
    const address = server.address();
    assert.ok(typeof address === "object" && address !== null);
    await using opened = await openPage(browser, `http://127.0.0.1:${address.port}/`, WIDE);
    const { page, errors } = opened;
    await page.locator("#note").filter({ hasText: "Cross-Origin-Opener-Policy" }).waitFor();
    assert.deepEqual(await page.locator("#ranks option").allTextContents(), ["1"]);
    await page.locator("#speed").selectOption("2000");
    await page.getByRole("button", { name: "Train" }).click();
    await page.locator("#now").filter({ hasText: /^All-gather of embedding/ }).waitFor();
    await page.getByRole("button", { name: "One step" }).click();
    await page.locator("#now").filter({ hasText: "Step 1 is done." }).waitFor();
    assert.equal((await lossesIn(page, 1)).length, 1);
    await pressUntil(page, page.getByRole("button", { name: "Next moment" }), /^Forward of block 0/);
    assert.deepEqual(await violationsOf(page), []);
    assert.deepEqual(errors, []);
  } finally {
    server.close();
    server.closeAllConnections();
  }
}
