/** The story of a run whose ranks change, as `npm run elastic` reads it. @module */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { test } from "node:test";
import { Story } from "../../scripts/elastic/story.ts";

test("Story reads which ranks took which steps that count, whatever was lost between", async () => {
  const start = (ranks: number, from?: number): string[] => [
    `[rank0] info  FSDP over ${ranks} ranks (shm), 5 parameters`,
    ...from === undefined ? [] : [`[rank0] info  Resumed from memory at step ${from}`],
  ];
  const step = (number: number): string => `[rank0] step ${number}/100  loss 1`;
  const lines = [
    ...[...start(4), step(1), step(2)],
    ...start(3), // ended before it had gone on
    ...[...start(3, 1), step(2), step(3)],
    ...start(3, 3), // kept no step
    ...start(2, 3),
    ...[...start(4, 3), step(4), step(5)],
    ...[...start(4, 4), step(5)],
  ];
  const child = spawn("printf", ["%s\\n", ...lines], { stdio: ["ignore", "pipe", "inherit"] });
  child.stdout.setEncoding("utf8");
  const story = new Story({ child });
  await new Promise((resolve) => child.once("close", resolve));
  assert.deepEqual(story.worlds(5), [{ ranks: 4, last: 1 }, { ranks: 3, last: 3 }, { ranks: 4, last: 5 }]);
  assert.equal(story.starts, 7);
});
