/**
 * Memory that ranks register with each other, on doubles of NVIDIA's libraries: gathers go by copy engines where NCCL has them, to
 * the bits of those that do not; it is counted, and given back.
 *
 * @module
 */
import assert from "node:assert/strict";
import { buildCudaTwin, lackingForTwin } from "../../native/cuda/build.ts";
import { longTest, sharedTest as test, usualFirst } from "../../support/share.ts";
import { errorsOf, valuesOf, world } from "../../support/world.ts";
import { trainByBoth } from "./graph_ranks.ts";
import { CONFIG } from "./llama.ts";
import { gatherElsewhere, gatherRegistered, leaveByForce, reopenWindows } from "./symmetric_ranks.ts";

const skip = lackingForTwin();
const OPTIONS = { skip, timeout: 900_000 };
const planes = { timeoutSeconds: 200 };

/** Variables of ranks that find an NCCL of that version, and must gather between registered memory if they register any. */
async function withNccl(version: string, more: Readonly<Record<string, string>> = {}) {
  return { ...(await buildCudaTwin()).variables, TWIN_NCCL: version, TWIN_STRICT_WINDOWS: "1", ...more };
}

const MIB = 2 ** 20;
/** The way in which each version gathers, and the line of the log. */
const VERSIONS = [
  ["22809", "all-gather by copy engines", /^NCCL 2\.28\.9 gathers by copy engines between symmetric memory/],
  [
    "22703",
    "all-gather by symmetric kernels",
    /^NCCL 2\.27\.3 gathers by kernels between symmetric memory.*from 2\.28 on/,
  ],
  ["22605", "all-gather", /^NCCL 2\.26\.5 gathers by kernels; from 2\.28 on by copy engines/],
] as const;
for (const [version, name, told] of usualFirst(VERSIONS, (place) => place === 0)) {
  test(`NCCL ${version} gathers units by '${name}', counts what is registered and gives it back`, OPTIONS, async () => {
    const variables = await withNccl(version);
    const ends = await world(2, gatherRegistered, { over: "nccl", variables, data: false, planes });
    for (const { gathers, owners, dryOwners, left, counted } of valuesOf(ends)) {
      // The root, which stays gathered, and each block twice.
      assert.deepEqual(gathers, new Array<string>(5).fill(name));
      assert.deepEqual(dryOwners, owners);
      assert.deepEqual(counted, version === "22605" ? owners : []);
      if (version === "22605") {
        assert.deepEqual(left, [0, 0]);
        continue;
      }
      // A window for each unit; two slots that the blocks' parameters are gathered into by turns share a size with the root's.
      assert.ok(owners.every((line) => line.endsWith(`: ${2 * MIB}`)), owners.join());
      assert.deepEqual(owners.filter((line) => line.startsWith("window")).length, 3);
      assert.ok(owners.length <= 6, owners.join());
      assert.deepEqual(left, [2 * owners.length, 0]);
    }
    const lines = ends.map(({ said }) => said.filter((line) => line.startsWith("NCCL")));
    assert.deepEqual(lines.map(({ length }) => length), [1, 0]);
    assert.match(lines[0]?.[0] ?? "", told);
  });
}

test("a rank that is alone registers nothing, here and in a dry run", OPTIONS, async () => {
  const options = { over: "nccl", variables: await withNccl("22809"), data: false, planes } as const;
  for (const { owners, dryOwners, left } of valuesOf(await world(1, gatherRegistered, options))) {
    assert.deepEqual(dryOwners, owners);
    assert.deepEqual(left, [0, 0]);
  }
});

test("what is offloaded is gathered by copy engines too", OPTIONS, async () => {
  const options = { over: "nccl", variables: await withNccl("22809"), data: true, planes } as const;
  for (const { gathers, left } of valuesOf(await world(2, gatherRegistered, options))) {
    assert.deepEqual(gathers, new Array<string>(5).fill("all-gather by copy engines"));
    assert.equal(left[1], 0);
  }
});

longTest(
  "an NCCL that has no use for registered memory, or is told to have none, gathers by kernels and says so",
  OPTIONS,
  async () => {
    for (
      const [variable, value, told] of [
        [
          "TWIN_NO_WINDOWS",
          "1",
          "NCCL cannot use symmetric memory between the ranks of 'world'; gathers run as kernels",
        ],
        ["NCCL_WIN_ENABLE", "0", "NCCL 2.28.9 gathers by kernels, as NCCL_WIN_ENABLE is 0"],
      ] as const
    ) {
      const variables = await withNccl("22809", { [variable]: value });
      const ends = await world(2, gatherRegistered, { over: "nccl", variables, data: false, planes });
      for (const { gathers, left } of valuesOf(ends)) {
        assert.deepEqual([gathers, left], [new Array<string>(5).fill("all-gather"), [0, 0]]);
      }
      assert.ok(ends[0]?.said.includes(told), ends[0]?.said.join());
    }
  },
);

longTest("FSDP trains by copy engines, and by graphs, to the bits of gathers by kernels", OPTIONS, async () => {
  const run = { config: CONFIG, steps: 8, precision: "bfloat16" } as const;
  const [kernels, engines] = await Promise.all(["22605", "22809"].map(async (version) => {
    const variables = await withNccl(version);
    return valuesOf(await world(2, trainByBoth, { over: "nccl", variables, data: run, planes }));
  }));
  for (const [rank, both] of engines?.entries() ?? []) {
    const [expected] = kernels?.[rank] ?? assert.fail();
    for (const [i, { steps, digest, error, replays, left }] of both.entries()) {
      assert.deepEqual(
        [error, steps, digest],
        [undefined, expected.steps, expected.digest],
        `rank ${rank} of run ${i}`,
      );
      assert.deepEqual([replays, left], [i === 0 ? 0 : 5, 0]);
    }
  }
});

test("ranks that would gather to different places are named before they do", OPTIONS, async () => {
  const ends = await world(2, gatherElsewhere, { over: "nccl", variables: await withNccl("22809"), planes });
  for (const error of errorsOf(ends)) assert.match(error, /CollectiveError.*gather 'unit'/s);
});

test("windows are deregistered when all ranks are done with them, in whatever order", OPTIONS, async () => {
  const ends = await world(2, reopenWindows, { over: "nccl", variables: await withNccl("22809"), planes });
  // Two of a round are given back when the next one's are opened.
  for (const counts of valuesOf(ends)) assert.deepEqual(counts, [4, 4, 4, 4]);
});

test("an abort frees what was registered", OPTIONS, async () => {
  const ends = await world(2, leaveByForce, { over: "nccl", variables: await withNccl("22809"), planes });
  for (const [before, after, error] of valuesOf(ends)) {
    assert.ok(before > 0);
    assert.equal(after, 0);
    assert.match(error, /on purpose/);
  }
});
