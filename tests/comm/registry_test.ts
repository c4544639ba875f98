/** Opening process groups by environment and by option. @module */
import { test } from "node:test";
import assert from "node:assert/strict";
import { openProcessGroup } from "../../src/comm/registry.ts";
import { skipWithoutNative } from "../support/available.ts";
import { startRank } from "../support/rank_process.ts";
import { openCommDevice } from "../support/comm_device.ts";

const RANK = new URL("./registry_rank.ts", import.meta.url);
const LARGE = new URL("./large_rank.ts", import.meta.url);

const skip = await skipWithoutNative();

const run = (...environments: Record<string, string>[]): Promise<readonly string[]> =>
  runProgram(RANK, ...environments);

async function runProgram(program: URL, ...environments: Record<string, string>[]): Promise<readonly string[]> {
  const none = { RANK: "", WORLD_SIZE: "", LOCAL_RANK: "", LOCAL_WORLD_SIZE: "", MASTER_ADDR: "", MASTER_PORT: "" };
  const run = { FULLYSHARD_RUN_ID: crypto.randomUUID() };
  const ranks = environments.map((env) => startRank(program, [], { env: { ...none, ...run, ...env } }));
  await Promise.all(ranks.map((rank) => rank.ended));
  return ranks.map((rank) => rank.stdout.trim() || rank.stderr.trim());
}

test("openProcessGroup() without a launch environment is a world of one", { timeout: 60_000 }, async () => {
  assert.deepEqual(await run({}), ["loopback 0 of 1: 1"]);
});

test("openProcessGroup() shares memory where RANK and WORLD_SIZE say so", { timeout: 60_000 }, async () => {
  const env = { WORLD_SIZE: "2", MASTER_PORT: "29517" };
  assert.deepEqual(await run({ ...env, RANK: "0" }, { ...env, RANK: "1" }), ["shm 0 of 2: 3", "shm 1 of 2: 3"]);
});

test("openProcessGroup() says which directory cannot hold shared memory, and what names another", async () => {
  const env = { WORLD_SIZE: "2", MASTER_PORT: "29519", RANK: "0", FULLYSHARD_SHM_DIRECTORY: "/dev/null/shared" };
  const [said = ""] = await run(env);
  assert.match(said, /^FileError: Cannot share memory in '\/dev\/null\/shared': .*ENOTDIR.*FULLYSHARD_SHM_DIRECTORY/);
});

test("openWindow() and reduceScatter() give what was published and its sum where that goes past caches", {
  timeout: 60_000,
  skip,
}, async () => {
  const env = { WORLD_SIZE: "2", MASTER_PORT: "29518" };
  const ranks = await runProgram(LARGE, { ...env, RANK: "0" }, { ...env, RANK: "1" });
  assert.deepEqual(ranks, ["shm 0: right", "shm 1: right"]);
});

test("openProcessGroup() refuses half an environment", { timeout: 60_000 }, async () => {
  const [half, hosts] = await Promise.all([
    run({ RANK: "0" }),
    run({ RANK: "0", WORLD_SIZE: "4", LOCAL_WORLD_SIZE: "2", LOCAL_RANK: "0" }),
  ]);
  assert.match(half[0] ?? "", /ConfigError.*WORLD_SIZE: expected to be set/s);
  assert.match(hosts[0] ?? "", /MASTER_ADDR: expected to be set, as LOCAL_WORLD_SIZE is 2 of 4/);
});

test("openProcessGroup() refuses hosts without a token, unless they are to meet without one", {
  timeout: 60_000,
}, async () => {
  const env = { RANK: "0", WORLD_SIZE: "2", LOCAL_WORLD_SIZE: "1", MASTER_ADDR: "127.0.0.1", MASTER_PORT: "29516" };
  const said = async (more: Record<string, string>): Promise<string> => {
    const rank = startRank(RANK, ["nccl"], { env: { ...env, LOCAL_RANK: "", ...more } });
    await rank.ended;
    return rank.stdout;
  };
  const refused =
    /^ConfigError: .*FULLYSHARD_TOKEN: expected a secret that all ranks of the run share .*, got nothing/s;
  assert.match(await said({ FULLYSHARD_TOKEN: "", FULLYSHARD_RDZV_INSECURE: "" }), refused);
  assert.match(await said({ FULLYSHARD_TOKEN: "", FULLYSHARD_RDZV_INSECURE: "0" }), refused);
  // Both go on to what else is lacking: a card.
  const cpu = /^ArgumentError: Backend 'nccl' moves memory of NVIDIA's cards, but the device is/;
  assert.match(await said({ FULLYSHARD_TOKEN: "", FULLYSHARD_RDZV_INSECURE: "1" }), cpu);
  assert.match(await said({ FULLYSHARD_TOKEN: "agreed", FULLYSHARD_RDZV_INSECURE: "" }), cpu);
});

test("openProcessGroup() never replaces a backend that was named", async () => {
  const device = await openCommDevice(2 ** 24);
  await assert.rejects(
    openProcessGroup({ device, backend: "loopback", rank: 0, worldSize: 2 }),
    /Backend 'loopback' joins Workers of one process: give 'world' for 2 ranks, or use 'shm'/,
  );
});
