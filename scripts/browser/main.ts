/**
 * The pages in a browser: reports of one run and of several, live pages, the demo and the site, opened in Chromium in narrow and wide
 * windows, light and dark. The last line is `N passed, N failed`.
 *
 * Usage: npm run test:browser -- [--screens] [--only reports|live|demo|site]; with --screens the pictures of docs/screens are taken
 * anew.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import process from "node:process";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { type Browser, chromium } from "playwright-core";
import { writeReport } from "../../src/report/write_report.ts";
import { recordLike, writeStoredRun } from "../../tests/support/stored_run.ts";
import { temporaryDirectory } from "../../tests/support/temporary.ts";
import { testFailedRun, testLivePage } from "./live.ts";
import { buildTo, testDemoAlone, testDemoLosses, testDemoPage } from "./demo.ts";
import { buildSiteTo, openSite, testDemoInside, testEstimate, testSearch, testSitePages } from "./site.ts";
import { findChromium } from "./chromium.ts";
import { openPage, requireFits, requireKeyboard, VIEWS, violationsOf } from "./page.ts";

const SCREENS = fileURLToPath(new URL("../../docs/screens/", import.meta.url));
/** Each width and each color scheme once. */
const NARROW_AND_WIDE = VIEWS.filter(({ width, colorScheme }) => (width === 360) === (colorScheme === "dark"));
/** Folder of the site; undefined until it is built. */
let site: string | undefined;
const counts = { passed: 0, failed: 0 };

/** A name that would run a script, end an element or leave an attribute if it was put in as it is. */
const HOSTILE = `</script><script>globalThis.hacked=1</script><img src=x onerror="globalThis.hacked=1">"'\u0060\${1}`;

/** Tests by the names that `--only` takes. */
const TESTS = { reports: testReports, live: testLive, demo: testDemo, site: testSite } as const;

async function main(args: readonly string[]): Promise<number> {
  const options = { screens: { type: "boolean", default: false }, only: { type: "string" } } as const;
  const { values: { screens, only } } = parseArgs({ args: [...args], options });
  if (only !== undefined && !Object.hasOwn(TESTS, only)) {
    throw new Error(`--only: expected one of ${Object.keys(TESTS).join(", ")}, got '${only}'`);
  }
  await checkFile();
  using folder = temporaryDirectory();
  if (only === undefined || only === "site") {
    await check("the site is built, and its links lead somewhere", async () => {
      await buildSiteTo(folder.file("site"));
      site = folder.file("site");
    });
  }
  const executablePath = findChromium();
  if (executablePath === undefined) {
    process.stdout.write("skipped: pages in Chromium, which neither FULLYSHARD_CHROMIUM nor PATH has\n1 skipped\n");
  } else {
    const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
    try {
      for (const [name, test] of Object.entries(TESTS)) {
        if (only === undefined || only === name) await test(browser, screens);
      }
    } finally {
      await browser.close();
    }
  }
  process.stdout.write(`${counts.passed} passed, ${counts.failed} failed\n`);
  return counts.failed === 0 ? 0 : 1;
}

/** Needs no browser. */
async function checkFile(): Promise<void> {
  await check("a report names no other file and no address", async () => {
    using folder = temporaryDirectory();
    const file = folder.file("report.html");
    await writeReport([writeStoredRun(folder, "tiny")], file);
    assert.doesNotMatch(readFileSync(file, "utf8"), /\b(?:src|href)="(?!#)/);
  });
}

async function check(name: string, body: () => Promise<void>): Promise<void> {
  try {
    await body();
    counts.passed++;
  } catch (error) {
    counts.failed++;
    process.stdout.write(`FAILED ${name}\n${error instanceof Error ? error.stack : String(error)}\n`);
  }
}

async function testReports(browser: Browser, takesScreens: boolean): Promise<void> {
  using folder = temporaryDirectory();
  const plain = writeStoredRun(folder, "tiny");
  const other = writeStoredRun(folder, "other", {
    factor: 0.7,
    record: { config: { ...recordLike().config, learningRate: 0.02 } },
  });
  const hostile = writeStoredRun(folder, "hostile", {
    record: { name: HOSTILE, config: { [HOSTILE]: HOSTILE }, set: { [HOSTILE]: HOSTILE } },
    ...{ warning: HOSTILE, sample: HOSTILE, unit: HOSTILE },
  });
  const pages = { one: [plain], several: [plain, other], hostile: [hostile, plain] };
  for (const [name, runs] of Object.entries(pages)) {
    const file = folder.file(`${name}.html`);
    await writeReport(runs, file);
    for (
      const view of VIEWS.filter(({ width, colorScheme }) =>
        name === "one" || (width === 360) === (colorScheme === "dark")
      )
    ) {
      await check(`${name}, ${view.width} px, ${view.colorScheme}`, async () => {
        await using opened = await openPage(browser, pathToFileURL(file).href, view);
        const { page, errors, requests } = opened;
        await requireFits(page);
        assert.equal(await page.locator(".chart canvas").count(), 5);
        await page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true");
        assert.deepEqual(await violationsOf(page), []);
        await requireFits(page);
        await page.evaluate("for (const one of document.querySelectorAll('details')) one.open = false");
        if (name === "one" && view.colorScheme === "light") await requireKeyboard(page);
        assert.equal(await page.evaluate("globalThis.hacked"), undefined);
        assert.deepEqual([errors, requests], [[], []]);
        if (takesScreens && name !== "hostile" && view.colorScheme === (view.width === 360 ? "dark" : "light")) {
          await page.evaluate("scrollTo(0, 0)");
          await page.screenshot({ path: `${SCREENS}report-${name}-${view.width}.jpg`, type: "jpeg", quality: 60 });
        }
      });
    }
  }
  await check("the slider reads the numbers of a step", async () => {
    await using opened = await openPage(browser, pathToFileURL(folder.file("one.html")).href, {
      width: 1440,
      colorScheme: "light",
    });
    const { page, errors } = opened;
    const output = page.locator("#values");
    assert.match(await output.textContent() ?? "", /^Step 40 .* eval_loss /);
    await page.locator("#step").focus();
    await page.keyboard.press("ArrowLeft");
    assert.match(await output.textContent() ?? "", /^Step 39 {2}· {2}loss /);
    await page.keyboard.press("Home");
    assert.match(await output.textContent() ?? "", /^Step 1 {2}· {2}loss 7\.333 .*grad_norm 1\.210/);
    await page.locator(".plot").first().hover();
    assert.match(await output.textContent() ?? "", /^Step (1\d|2\d) /);
    await page.emulateMedia({ colorScheme: "dark" });
    assert.equal(await page.locator(".chart canvas").count(), 5, "drawn anew in the other colors");
    assert.deepEqual(errors, []);
  });
}

async function testLive(browser: Browser): Promise<void> {
  for (const view of NARROW_AND_WIDE) {
    await check(`live page, ${view.width} px, ${view.colorScheme}`, () => testLivePage(browser, view));
    await check(`page of a failed run, ${view.width} px`, () => testFailedRun(browser, view));
  }
}

async function testDemo(browser: Browser, takesScreens: boolean): Promise<void> {
  using folder = temporaryDirectory();
  await check("the demo's page is built, and small", () => buildTo(folder.path));
  for (const view of NARROW_AND_WIDE) {
    const screens = takesScreens ? SCREENS : undefined;
    await check(`demo, ${view.width} px, ${view.colorScheme}`, () => testDemoPage(browser, folder.path, view, screens));
  }
  await check("the demo's losses are the command line's to the bit", () => testDemoLosses(browser, folder.path));
  await check("the demo without isolation headers trains one rank", () => testDemoAlone(browser, folder.path));
}

async function testSite(browser: Browser, takesScreens: boolean): Promise<void> {
  if (site === undefined) return; // which was told above
  using served = await openSite(site);
  for (const view of NARROW_AND_WIDE) {
    const screens = takesScreens ? SCREENS : undefined;
    await check(`site, ${view.width} px, ${view.colorScheme}`, () => testSitePages(browser, served, view, screens));
  }
  await check("the site's search, by the keyboard", () => testSearch(browser, served));
  await check("the site's estimates are those of the command", () => testEstimate(browser, served));
  await check("the demo inside of a page of the site", () => testDemoInside(browser, served));
}

process.exitCode = await main(process.argv.slice(2));
