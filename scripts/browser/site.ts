/**
 * The site in a browser: pages in narrow and wide windows, light and dark; menu, colors, search; and estimates that are the command's.
 *
 * @module
 */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Browser, Page } from "playwright-core";
import type { LoopbackServer } from "../../src/runtime/loopback_server.ts";
import { temporaryDirectory } from "../../tests/support/temporary.ts";
import { buildSite } from "../site/build.ts";
import { serveSite } from "../site/serve.ts";
import { openPage, requireFits, requireKeyboard, type View, violationsOf } from "./page.ts";

const bin = fileURLToPath(new URL("../../bin/fullyshard.mjs", import.meta.url));

/** Pages of each kind: with a picture, with wide tables, with a form, with lists of names, of a name. */
const SAMPLE = ["index.html", "fsdp.html", "settings.html", "api.html", "api/nn/Linear.html"];
const WIDE: View = { width: 1440, colorScheme: "light" };

/** A site that is served. */
export interface ServedSite extends Disposable {
  readonly address: string;
}

/** Builds the site, whose links all lead somewhere. */
export async function buildSiteTo(folder: string): Promise<void> {
  const { pages } = await buildSite(folder);
  assert.ok(pages > 500, `${pages} pages`);
  // The licences of what scripts are made of are beside them.
  assert.match(readFileSync(`${folder}/licences.txt`, "utf8"), /^# minisearch\n\nCopyright/m);
}

/** Serves it. */
export async function openSite(folder: string): Promise<ServedSite> {
  const server: LoopbackServer = await serveSite(folder, 0);
  return { address: `http://127.0.0.1:${server.port}/`, [Symbol.dispose]: () => server.close() };
}

/** Opens pages of each kind in a window. @param screens folder for pictures, if they are to be taken */
export async function testSitePages(
  browser: Browser,
  { address }: ServedSite,
  view: View,
  screens: string | undefined,
): Promise<void> {
  for (const name of SAMPLE) {
    await using opened = await openPage(browser, address + name, view);
    const { page, errors, requests } = opened;
    await requireFits(page);
    assert.deepEqual(await violationsOf(page), [], name);
    if (name === "fsdp.html" && view.width === 360) await testMenu(page);
    if (name === "index.html" && view.width === 1440) await testColors(page);
    if (name === "settings.html" && view.width === 1440) await requireKeyboard(page);
    assert.deepEqual(errors, [], name);
    assert.ok(requests.every((one) => one.startsWith(address) || one.startsWith("data:")), requests.join(" "));
    if (screens === undefined || name !== "fsdp.html") continue;
    await page.evaluate("scrollTo(0, 0)");
    await page.screenshot({ path: `${screens}site-${view.width}.jpg`, type: "jpeg", quality: 60 });
  }
}

async function testMenu(page: Page): Promise<void> {
  const link = page.locator("#subjects").getByRole("link", { name: "Checkpoints" });
  assert.equal(await link.isVisible(), false);
  await page.getByRole("button", { name: "Menu" }).click();
  assert.equal(await link.isVisible(), true);
  await requireFits(page);
  assert.deepEqual(await violationsOf(page), []);
}

/** The choice of colors holds on the next page too, and is read as well by axe. */
async function testColors(page: Page): Promise<void> {
  const back = (): Promise<string> => page.evaluate("getComputedStyle(document.body).backgroundColor");
  const first = await back();
  const button = page.locator("#theme");
  for (let i = 0; i < 2 && await back() === first; i++) await button.click();
  const other = await back();
  assert.notEqual(other, first);
  assert.deepEqual(await violationsOf(page), []);
  await page.reload();
  assert.equal(await back(), other);
}

/** Finds pages by the keyboard alone, without a server's help. */
export async function testSearch(browser: Browser, { address }: ServedSite): Promise<void> {
  await using opened = await openPage(browser, `${address}install.html`, WIDE);
  const { page, errors } = opened;
  await page.keyboard.press("/");
  await page.keyboard.type("reshard after forw");
  const options = page.locator("#found a");
  await options.filter({ hasText: "Order of calls" }).first().waitFor();
  assert.deepEqual(await violationsOf(page), []);
  await page.keyboard.press("Control+A");
  await page.keyboard.type("fullyShard");
  await options.filter({ hasText: /^fullyShard › fullyshard/ }).waitFor();
  await page.keyboard.press("Control+A");
  await page.keyboard.type("zzyzx");
  await page.locator("#found-count").filter({ hasText: "Nothing has “zzyzx”" }).waitFor();
  await page.keyboard.press("Control+A");
  await page.keyboard.type("dry run");
  await options.filter({ hasText: "Glossary › dry run" }).waitFor();
  const place = (await options.allTextContents()).findIndex((text) => text.startsWith("Glossary › dry run"));
  for (let i = 0; i <= place; i++) await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  await page.waitForURL(/glossary\.html#dry-run$/);
  assert.deepEqual(errors, []);
}

/** The page's figures are those of the command that it shows. */
export async function testEstimate(browser: Browser, { address }: ServedSite): Promise<void> {
  using folder = temporaryDirectory();
  await using opened = await openPage(browser, `${address}settings.html`, WIDE);
  const { page, errors } = opened;
  await page.locator("#estimate[data-ready]").waitFor();
  const said = page.locator("#estimate-said");
  await page.locator("summary", { hasText: "config.json" }).click();
  const config = page.locator("#estimate-config");
  await config.fill("{");
  await page.getByRole("button", { name: "Compare settings" }).click();
  await said.filter({ hasText: "The text is no JSON" }).waitFor();
  const sizes = { vocab_size: 640, hidden_size: 64, intermediate_size: 96, num_hidden_layers: 2 };
  const model = { model_type: "llama", ...sizes, num_attention_heads: 4, max_position_embeddings: 256 };
  const text = JSON.stringify(model);
  await config.fill(text);
  for (const [label, value] of [["Ranks", "3"], ["Tokens of a sample", "128"], ["Samples of a rank", "2"]] as const) {
    await page.getByLabel(label, { exact: true }).fill(value);
  }
  await page.getByRole("button", { name: "Compare settings" }).click();
  await said.filter({ hasText: "“Replicate the model (DDP)” is the first that fits 80 GiB" }).waitFor();
  const rows = page.locator("#estimate-rows tr[data-json]");
  assert.equal(await rows.count(), 8);
  await rows.nth(1).getByRole("button").click();
  await page.locator("#estimate-details").getByText("Memory of rank 0 at its peak").waitFor();
  assert.deepEqual(await violationsOf(page), []);
  folder.write("config.json", text);
  for (const place of [2, 7]) {
    const argv: string[] = JSON.parse(await rows.nth(place).getAttribute("data-argv") ?? "[]");
    const args = argv.map((word) => word === "config.json" ? folder.file(word) : word);
    const printed = execFileSync("node", [bin, "estimate", ...args, "--json"], { encoding: "utf8" });
    assert.deepEqual(JSON.parse(await rows.nth(place).getAttribute("data-json") ?? ""), JSON.parse(printed));
  }
  assert.deepEqual(errors, []);
}

/** The demo inside of the page that explains it trains on several ranks. */
export async function testDemoInside(browser: Browser, { address }: ServedSite): Promise<void> {
  await using opened = await openPage(browser, `${address}how-fsdp-works.html`, WIDE);
  const { page, errors } = opened;
  await page.locator("iframe.demo").scrollIntoViewIfNeeded();
  const demo = page.frameLocator("iframe.demo");
  await demo.locator("#ranks").selectOption("2");
  await demo.locator("#steps").fill("2");
  await demo.getByRole("button", { name: "Train" }).click();
  await demo.locator("#rows tr").nth(1).waitFor({ state: "attached" });
  assert.deepEqual(errors, []);
}
