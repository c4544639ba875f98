/**
 * Environment variables: typed reading, and which rank a process is.
 *
 * @module
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { ConfigError } from "../../src/errors.ts";
import type { RankEnvironment } from "../../src/runtime/rank_environment.ts";
import type { EnvName } from "../../src/runtime/variables.ts";
import { environmentFrom, environmentNames, processEnvironment } from "../../src/runtime/env.ts";
import { readRankEnvironment } from "../../src/runtime/rank_environment.ts";
import { ENV } from "../../src/runtime/variables.ts";
import { executablePath, runtime } from "../../src/runtime/processes.ts";

type Values = Partial<Record<EnvName, string>>;

function rankOf(values: Values): RankEnvironment | undefined {
  return readRankEnvironment((name) => values[name]);
}

/** The problems of a rank environment, as `path: expected, got`. */
function problemsOf(values: Values): string[] {
  try {
    rankOf(values);
  } catch (error) {
    assert.ok(error instanceof ConfigError);
    return error.problems.map(({ path, expected, got }) => `${path}: ${expected}, ${got}`);
  }
  assert.fail("no error");
}

describe("readRankEnvironment()", () => {
  it("is undefined when no rank is set", () => {
    assert.equal(rankOf({}), undefined);
    assert.equal(rankOf({ RANK: "", WORLD_SIZE: "" }), undefined);
    assert.equal(rankOf({ MASTER_ADDR: "host", MASTER_PORT: "29500" }), undefined);
  });

  it("reads all of it", () => {
    const values = {
      RANK: "5",
      WORLD_SIZE: "8",
      LOCAL_RANK: "1",
      LOCAL_WORLD_SIZE: "4",
      GROUP_RANK: "1",
      MASTER_ADDR: "10.0.0.1",
      MASTER_PORT: "29500",
    };
    assert.deepEqual(rankOf(values), {
      launcher: "torchrun",
      rank: 5,
      worldSize: 8,
      localRank: 1,
      localWorldSize: 4,
      groupRank: 1,
      masterAddr: "10.0.0.1",
      masterPort: 29500,
      runId: undefined,
    });
  });

  it("derives what is left out", () => {
    const rest = { launcher: "torchrun", masterAddr: undefined, masterPort: undefined, runId: undefined };
    const alone = { rank: 1, worldSize: 2, localRank: 1, localWorldSize: 2, groupRank: 0, ...rest };
    assert.deepEqual(rankOf({ RANK: "1", WORLD_SIZE: "2" }), alone);
    const hosts = { rank: 5, worldSize: 8, localRank: 1, localWorldSize: 4, groupRank: 1, ...rest };
    assert.deepEqual(rankOf({ RANK: "5", WORLD_SIZE: "8", LOCAL_WORLD_SIZE: "4" }), hosts);
  });

  it("refuses a half set environment", () => {
    assert.deepEqual(problemsOf({ RANK: "0" }), ["WORLD_SIZE: to be set, as RANK is, nothing"]);
    assert.deepEqual(problemsOf({ WORLD_SIZE: "2" }), ["RANK: to be set, as WORLD_SIZE is, nothing"]);
    assert.deepEqual(problemsOf({ LOCAL_RANK: "0" }), [
      "RANK: to be set, as LOCAL_RANK is, nothing",
      "WORLD_SIZE: to be set, as LOCAL_RANK is, nothing",
    ]);
  });

  it("reports all problems at once", () => {
    const values = { RANK: "-1", WORLD_SIZE: "two", LOCAL_RANK: "1.5", LOCAL_WORLD_SIZE: "0", MASTER_PORT: "70000" };
    assert.deepEqual(problemsOf(values), [
      'RANK: a whole number from 0, "-1"',
      'WORLD_SIZE: a whole number from 1, "two"',
      'LOCAL_RANK: a whole number from 0, "1.5"',
      'LOCAL_WORLD_SIZE: a whole number from 1, "0"',
      'MASTER_PORT: a whole number from 1 to 65535, "70000"',
    ]);
    assert.deepEqual(problemsOf({ RANK: "0x1", LOCAL_RANK: "1e3" }), [
      'RANK: a whole number from 0, "0x1"',
      'LOCAL_RANK: a whole number from 0, "1e3"',
      "WORLD_SIZE: to be set, as RANK, LOCAL_RANK is, nothing",
    ]);
  });

  it("refuses numbers that contradict each other", () => {
    assert.deepEqual(problemsOf({ RANK: "2", WORLD_SIZE: "2" }), ["RANK: below WORLD_SIZE = 2, 2"]);
    assert.deepEqual(problemsOf({ RANK: "3", WORLD_SIZE: "4", LOCAL_RANK: "2", LOCAL_WORLD_SIZE: "2" }), [
      "LOCAL_RANK: below LOCAL_WORLD_SIZE = 2, 2",
    ]);
    assert.deepEqual(problemsOf({ RANK: "1", WORLD_SIZE: "2", LOCAL_WORLD_SIZE: "4" }), [
      "LOCAL_WORLD_SIZE: at most WORLD_SIZE = 2, 4",
    ]);
    assert.deepEqual(problemsOf({ RANK: "0", WORLD_SIZE: "4", LOCAL_RANK: "1" }), ["LOCAL_RANK: at most RANK = 0, 1"]);
  });
});

describe("environmentFrom()", () => {
  const read = (values: Values): ReturnType<typeof environmentFrom> => environmentFrom((name) => values[name]);

  it("reads text, numbers and flags; an empty value is none", () => {
    const some = read({ VIRTUAL_ENV: "/venv", OMP_NUM_THREADS: "2", FULLYSHARD_TIMEOUT_SECONDS: "1.5", CI: "1" });
    assert.equal(some.text("VIRTUAL_ENV"), "/venv");
    assert.equal(some.integer("OMP_NUM_THREADS"), 2);
    assert.equal(some.seconds("FULLYSHARD_TIMEOUT_SECONDS"), 1.5);
    assert.equal(some.flag("CI"), true);
    const none = read({ VIRTUAL_ENV: "", OMP_NUM_THREADS: "", CI: "" });
    assert.equal(none.text("VIRTUAL_ENV"), undefined);
    assert.equal(none.integer("OMP_NUM_THREADS"), undefined);
    assert.equal(none.seconds("FULLYSHARD_TIMEOUT_SECONDS"), undefined);
    assert.equal(none.flag("CI"), false);
  });

  it("names the variable whose value is wrong", () => {
    assert.throws(() => read({ OMP_NUM_THREADS: "many" }).integer("OMP_NUM_THREADS"), {
      name: "ConfigError",
      message: /OMP_NUM_THREADS: expected a whole number from 0, got "many"/,
    });
    for (const wrong of ["0", "-1", "soon", "Infinity"]) {
      const environment = read({ FULLYSHARD_TIMEOUT_SECONDS: wrong });
      assert.throws(() => environment.seconds("FULLYSHARD_TIMEOUT_SECONDS"), ConfigError);
    }
  });
});

it("processEnvironment() reads this process' variables", () => {
  // A test runner's own environment: only that reading works is known of it.
  const text = processEnvironment().text("VIRTUAL_ENV");
  assert.ok(text === undefined || text.length > 0);
});

it("readRankEnvironment() refuses to guess where Deno may not read RANK", (context) => {
  if (runtime().name !== "deno") return context.skip("Bun has no permissions");
  const script = fileURLToPath(new URL("./scripts/print_rank.ts", import.meta.url));
  const run = (...permissions: string[]): string => {
    const env = { RANK: "1", WORLD_SIZE: "2", VIRTUAL_ENV: "/venv" };
    const args = ["run", "--no-prompt", "--no-check", ...permissions, script];
    return spawnSync(executablePath(), args, { encoding: "utf8", env }).stdout;
  };
  // A Deno that is started by Deno with no permission at all gets all of them; with any one it gets that one.
  assert.match(
    run("--allow-sys=cpus"),
    /^ConfigError .*RANK: expected permission to read it .*run Deno with --allow-env$/s,
  );
  assert.match(run("--allow-env=WORLD_SIZE"), /^ConfigError .*RANK: expected permission/s);
  const rankNames = environmentNames().filter((name) => name !== "VIRTUAL_ENV").join(",");
  assert.equal(run(`--allow-env=${rankNames}`), "1 of 2, VIRTUAL_ENV undefined");
  assert.equal(run(`--allow-env=${environmentNames().join(",")}`), "1 of 2, VIRTUAL_ENV /venv");
});

it("ENV says what each variable means", () => {
  for (const name of Object.keys(ENV)) assert.ok(environmentNames().includes(name), name);
  for (const [name, { meaning }] of Object.entries(ENV)) {
    assert.match(name, /^[A-Z][A-Z0-9_]*$/);
    assert.ok(meaning.length > 10, name);
  }
});
