/**
 * Counting tests from the runners' reports: a wrong count would hide failures.
 *
 * @module
 */

import assert from "node:assert/strict";
import { test } from "node:test";
import { readReport } from "../../scripts/test_report.ts";

const bunReport = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="bun test" tests="5" failures="1" skipped="1">
  <testsuite name="tests/a_test.ts" file="tests/a_test.ts">
    <testcase name="a() does &lt;x&gt; &amp; y" classname="" time="0.1" file="tests/a_test.ts" />
    <testcase name="b()" classname="" time="0.1"><skipped /></testcase>
    <testsuite name="group"><testcase name="x" classname="group" time="0" />
      <testcase name="y" classname="group" time="0">
        <failure type="Error" message="boom &lt;skipped /&gt;">Error: boom</failure>
      </testcase></testsuite>
    <testcase name="later" classname=""><skipped message="TODO" /></testcase>
  </testsuite>
</testsuites>`;

const denoReport = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="deno test" tests="8" failures="3">
  <testsuite name="./tests/a_test.ts">
    <testcase name="a() does &lt;x&gt; &amp; y" classname="./tests/a_test.ts" time="0.1">
    </testcase>
    <testcase name="group" classname="./tests/a_test.ts"><failure message="1 test step failed">1 test step failed.</failure>
    </testcase>
    <testcase name="sub" classname="./tests/a_test.ts"></testcase>
    <testcase name="own" classname="./tests/a_test.ts"><failure message="Uncaught Error: own">Error</failure></testcase>
    <testcase name="sub &gt; inner" classname="./tests/a_test.ts"></testcase>
    <testcase name="own &gt; inner" classname="./tests/a_test.ts"></testcase>
  </testsuite>
  <testsuite name="ext:deno_node/testing.ts">
    <testcase name="group &gt; y" classname="ext:deno_node/testing.ts"><failure message="Error">boom</failure></testcase>
    <testcase name="group &gt; z" classname="ext:deno_node/testing.ts"><skipped/></testcase>
  </testsuite>
</testsuites>`;

const shown = (xml: string): string[] => readReport(xml).map(({ name, state }) => `${state} ${name}`);

test("readReport() reads Bun's report", () => {
  assert.deepEqual(shown(bunReport), [
    "passed a() does <x> & y",
    "skipped b()",
    "passed group > x",
    "failed group > y",
    "skipped later",
  ]);
});

test("readReport() counts in Deno's report a group only where it failed of itself", () => {
  assert.deepEqual(shown(denoReport), [
    "passed a() does <x> & y",
    "failed own",
    "passed sub > inner",
    "passed own > inner",
    "failed group > y",
    "skipped group > z",
  ]);
});

test("readReport() finds no test in a report that is empty or cut off", () => {
  assert.deepEqual(readReport(""), []);
  assert.deepEqual(shown(bunReport.slice(0, 200)), []);
});
