/** The variables of ranks that may be started again, and of launchers on one machine. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { type LaunchIdentity, rankVariables } from "../../src/launch/command.ts";

const identity: LaunchIdentity = {
  ...{ numRanks: 2, numHosts: 3, hostRank: 1, masterAddr: "10.0.0.1", masterPort: 29500, runId: "run-4" },
  ...{ token: "secret", numCores: 4, showsStatus: false, showsColors: false, columns: undefined, elastic: undefined },
};

test("rankVariables() gives torchrun's variables of a start, and none of them where ranks are started once", () => {
  const elastic = {
    ...{ id: "run", restarts: 2, folder: "/dev/shm/x", fewestRanks: 2, mostRanks: 6, hasHosts: true, goesOn: true },
    ...{ maxRestarts: 5, redundancyEvery: 3, cause: "as rank 1 is lost" },
  };
  const variables = rankVariables(1, { ...identity, elastic }, {});
  const own = Object.entries(variables).filter(([name]) => /^(TORCHELASTIC|FULLYSHARD_ELASTIC|GROUP)/.test(name));
  assert.deepEqual(Object.fromEntries(own), {
    GROUP_RANK: "1",
    GROUP_WORLD_SIZE: "3",
    TORCHELASTIC_RUN_ID: "run",
    TORCHELASTIC_RESTART_COUNT: "2",
    TORCHELASTIC_MAX_RESTARTS: "5",
    FULLYSHARD_ELASTIC_FOLDER: "/dev/shm/x",
    FULLYSHARD_ELASTIC_RANKS: "2:6",
    FULLYSHARD_ELASTIC_HOSTS: "1",
    FULLYSHARD_ELASTIC_EVERY: "3",
    FULLYSHARD_ELASTIC_GOES_ON: "1",
    FULLYSHARD_ELASTIC_CAUSE: "as rank 1 is lost",
  });
  assert.equal(variables["FULLYSHARD_RUN_ID"], "run-4");
  const once = Object.keys(rankVariables(1, identity, {}));
  assert.deepEqual(once.filter((name) => /ELASTIC/.test(name)), []);
});

test("rankVariables() makes one host of launchers on one machine", () => {
  const placeOf = (isOneMachine: boolean): string[] => {
    const { RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE } = rankVariables(1, { ...identity, isOneMachine }, {});
    return [RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE].map(String);
  };
  assert.deepEqual(placeOf(false), ["3", "1", "6", "2"]);
  assert.deepEqual(placeOf(true), ["3", "3", "6", "6"]);
});
