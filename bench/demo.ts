/**
 * The demo's page in Chromium: seconds until it has loaded from a server of this machine, and seconds of 100 steps on two ranks.
 *
 * @module
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { chromium } from "playwright-core";
import { findChromium } from "../scripts/browser/chromium.ts";
import { buildDemo } from "../scripts/demo/build.ts";
import { serveDemo } from "../src/demo/serve.ts";
import type { Subject } from "./subject.ts";

const LOAD = "load";
const STEPS = "100-steps-w2";

/** The page's figures. */
export const DEMO: Subject = {
  name: "demo",
  unit: "s",
  higherIsBetter: false,
  isApart: false,
  cases: [{ name: LOAD }, { name: STEPS }],
  ours: async (_, names) => {
    const executablePath = findChromium();
    if (executablePath === undefined) {
      return new Map(names.map((name) => [name, "there is no Chromium on PATH, nor in FULLYSHARD_CHROMIUM"]));
    }
    const folder = mkdtempSync(`${tmpdir()}/fullyshard-demo-`);
    const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
    try {
      await buildDemo(folder);
      const server = await serveDemo(folder, 0);
      try {
        const page = await browser.newPage();
        await page.goto(`http://127.0.0.1:${server.port}/`);
        const loaded: number = await page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd");
        await page.locator("#start").click();
        const now = page.locator("#now").filter({ hasText: /step \d+\.$/ });
        await now.waitFor();
        const [first, begun] = [Number(/step (\d+)\.$/.exec(await now.textContent() ?? "")?.[1]), performance.now()];
        await page.locator("#loss-text").filter({ hasText: "Step 100 of 100" }).waitFor({ timeout: 120_000 });
        const seconds = (performance.now() - begun) / 1000;
        const figures = new Map([[LOAD, loaded / 1000], [STEPS, seconds / (101 - first) * 100]]);
        return new Map(names.map((name) => [name, figures.get(name) ?? `no case '${name}'`]));
      } finally {
        server.close();
      }
    } finally {
      await browser.close();
      rmSync(folder, { recursive: true });
    }
  },
};
