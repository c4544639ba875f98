/**
 * A live page in a browser: it follows a run's folder, survives a reload, and its buttons reach the run. Another site reaches nothing.
 *
 * @module
 */
import assert from "node:assert/strict";
import { appendFileSync } from "node:fs";
import type { Browser } from "playwright-core";
import { Logger } from "../../src/runtime/log.ts";
import { serveLoopback } from "../../src/runtime/loopback_server.ts";
import { openLivePage } from "../../src/train/live.ts";
import { metricsLine, writeStoredRun } from "../../tests/support/stored_run.ts";
import { temporaryDirectory } from "../../tests/support/temporary.ts";
import { openPage, requireFits, type View, violationsOf } from "./page.ts";

/** Opens a live page, and fails unless it does all that it should. */
export async function testLivePage(browser: Browser, view: View): Promise<void> {
  using folder = temporaryDirectory();
  let line = "";
  const log = new Logger({ sink: ({ message }) => void (line = message) });
  using live = await openLivePage({ out: folder.file("run"), livePort: 0 }, log);
  const [address = ""] = /http:\S+/.exec(line) ?? [];
  await using opened = await openPage(browser, address, view);
  const { page, errors, requests } = opened;
  const values = page.locator("#values");
  const state = page.locator("#live-state");
  await state.filter({ hasText: "this page follows it" }).waitFor();
  await page.getByText("The run has not finished its first step yet.").waitFor();

  const run = writeStoredRun(folder, "run", {
    record: { started: Date.now() + 1000 },
    steps: 3,
    sample: "<img src=x>",
  });
  await values.filter({ hasText: /^Step 3 / }).waitFor();
  await page.locator("#samples").getByText("<img src=x>").waitFor();
  appendFileSync(`${run}/metrics.jsonl`, `${metricsLine(4)}\n`);
  await values.filter({ hasText: /^Step 4 / }).waitFor();
  assert.deepEqual(await violationsOf(page), []);
  await requireFits(page);

  // A reader who looks at an earlier step stays there.
  await page.locator("#step").focus();
  await page.keyboard.press("Home");
  appendFileSync(`${run}/metrics.jsonl`, `${metricsLine(5)}\n`);
  await page.locator("#facts").getByText("5 of 40").waitFor();
  assert.match(await values.textContent() ?? "", /^Step 1 /);

  await page.reload();
  await values.filter({ hasText: /^Step 5 / }).waitFor();
  await page.getByRole("button", { name: "Save now" }).click();
  await state.filter({ hasText: "saves a checkpoint after the present step." }).waitFor();
  await page.getByRole("button", { name: "Stop after this step" }).focus();
  await page.keyboard.press("Enter");
  await state.filter({ hasText: "and stops." }).waitFor();
  assert.deepEqual(live.take(), { saves: true, stops: true });

  await requireOthersRefused(browser, address, view);
  assert.deepEqual(live.take(), { saves: false, stops: false });

  appendFileSync(`${run}/metrics.jsonl`, `${metricsLine(6)}\n`);
  await values.filter({ hasText: /^Step 6 / }).waitFor();
  await live.finish();
  await state.filter({ hasText: "The run has ended" }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Save now" }).isDisabled(), true);
  assert.deepEqual(errors, []);
  assert.ok(requests.every((one) => one.startsWith(address)), requests.join(" "));
}

/** A page whose run fails before its first step tells the error, as text. */
export async function testFailedRun(browser: Browser, view: View): Promise<void> {
  using folder = temporaryDirectory();
  let line = "";
  const log = new Logger({ sink: ({ message }) => void (line = message) });
  using live = await openLivePage({ out: folder.file("run"), livePort: 0 }, log);
  const [address = ""] = /http:\S+/.exec(line) ?? [];
  await using opened = await openPage(browser, address, view);
  const { page, errors } = opened;
  const state = page.locator("#live-state");
  await state.filter({ hasText: "this page follows it" }).waitFor();
  await live.finish("OutOfMemoryError: <img src=x> 'cpu:0' has no room for 3 GiB");
  await state.filter({ hasText: "The run has failed. OutOfMemoryError: <img src=x> 'cpu:0' has no room" }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Save now" }).isDisabled(), true);
  assert.deepEqual(await violationsOf(page), []);
  await requireFits(page);
  assert.deepEqual(errors, []);
}

/** Another site in the same browser, which even knows the secret, can neither press the buttons nor read the run. */
async function requireOthersRefused(browser: Browser, address: string, view: View): Promise<void> {
  const site = await serveLoopback(0, (_, response) => void response.end("<!doctype html><title>another site</title>"));
  try {
    await using other = await openPage(browser, `http://localhost:${site.port}/`, view);
    const read = await other.page.evaluate(`(async () => {
      const tried = [];
      for (const [path, options] of [["stop", { method: "POST", mode: "no-cors" }], ["", {}], ["events", {}]]) {
        tried.push(await fetch(${
      JSON.stringify(address)
    } + path, options).then((r) => r.type + r.status, () => "refused"));
      }
      return tried.join();
    })()`);
    assert.equal(read, "refused,refused,refused");
  } finally {
    site.close();
  }
}
