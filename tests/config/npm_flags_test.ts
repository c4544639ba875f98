/** Flags that npm took for its own, as `--` was forgotten. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { npmProblem } from "../../src/config/npm_flags.ts";
import type { Flag } from "../../src/config/flags.ts";

const FLAGS: readonly Flag[] = [
  { name: "steps", takes: "one", description: "Steps", otherNames: ["max-steps"] },
  { name: "save-every", takes: "one", description: "Saves" },
  { name: "overwrite", takes: "switch", description: "Replaces" },
  { name: "cache", takes: "one", description: "Folder" },
  { name: "runtime", takes: "one", description: "Runtime" },
];

const gotOf = (values: Readonly<Record<string, string>>): string | undefined =>
  npmProblem(FLAGS, { script: "train", values })?.got;

test("npmProblem() gives the command that was meant", () => {
  const meant = (values: Readonly<Record<string, string>>): string | undefined =>
    /Give '(.*)'$/.exec(gotOf(values) ?? "")?.[1];
  assert.equal(meant({ steps: "3" }), "npm run train -- --steps 3");
  assert.equal(meant({ save_every: "2", overwrite: "true" }), "npm run train -- --save-every 2 --overwrite");
  assert.equal(meant({ saveevery: "2" }), "npm run train -- --save-every 2");
  assert.equal(meant({ overwrite: "" }), "npm run train -- --no-overwrite");
  // Another program's name may mean something else, and the run answers it with its own.
  assert.equal(meant({ max_steps: "7" }), "npm run train -- --max-steps 7");
  // npm takes '--steps 3' for a switch, and hands '3' on.
  assert.equal(meant({ steps: "true" }), "npm run train -- --steps <value>");
  assert.match(
    gotOf({ steps: "3", overwrite: "true" }) ?? "",
    /^npm's own flags '--steps', '--overwrite': npm keeps all flags/,
  );
});

test("npmProblem() leaves alone what is npm's, or another program's", () => {
  assert.equal(gotOf({}), undefined);
  assert.equal(gotOf({ cache: "/home/a/.npm", user_agent: "npm/11", runtime: "electron", prefix: "/usr" }), undefined);
  assert.equal(npmProblem(FLAGS, undefined), undefined);
});
