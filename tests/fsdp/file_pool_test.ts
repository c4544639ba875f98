/** Optimizer states in a file: the same bits, what memory and disk hold, and what is said where the disk refuses. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readdirSync, readlinkSync } from "node:fs";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { AdamW, clipGradNorm, cpuOffloadPolicy, fullyShard, type OffloadPolicy, scope, SGD } from "../../mod.ts";
import { openFilePool } from "../../doors/device.ts";
import { FileError } from "../../doors/errors.ts";
import { initializeParameters } from "../../doors/nn.ts";
import { devicePtr } from "../../src/device/device.ts";
import { executablePath, platform, runtime } from "../../src/runtime/processes.ts";
import { ownedValues } from "../support/owned.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { input, Stack } from "./modules.ts";
import { openRank } from "./run.ts";

const WIDTH = 40;

/** Some steps of a stack. */
async function train(offloadPolicy: OffloadPolicy | undefined, momentum: boolean) {
  const { device, group } = await openRank();
  const model = new Stack(device, WIDTH, 3);
  const options = { mesh: group, ...offloadPolicy === undefined ? {} : { offloadPolicy } };
  for (const module of [...model.layers, model]) fullyShard(module, options);
  initializeParameters(model, 5);
  const optimizer = momentum
    ? new SGD(model.parameters(), { learningRate: 0.1, momentum: 0.9 })
    : new AdamW(model.parameters(), { learningRate: 1e-2 });
  let peak = 0;
  for (let step = 0; step < 3; step++) {
    using _frame = scope();
    optimizer.zeroGrad();
    model.order = step === 1 ? [0, 2] : [0, 1, 2];
    model.call(input(device, `x ${step}`, 3, WIDTH)).sum().backward();
    clipGradNorm(model.parameters(), 0.5);
    device.offload.resetPeak();
    optimizer.step();
    peak = Math.max(peak, device.offload.stats?.peakTerms.optimizer ?? 0);
  }
  return { device, model, optimizer, peak, weights: [...model.parameters()].map((one) => [...ownedValues(one)]) };
}

describe("openFilePool()", () => {
  for (const momentum of [false, true]) {
    it(`rests ${momentum ? "SGD's" : "AdamW's"} states in a file without a name, to the same bits`, async () => {
      using folder = temporaryDirectory();
      const [plain, host] = [await train(undefined, momentum), await train(cpuOffloadPolicy(), momentum)];
      const optimizerStates = await openFilePool(folder.path);
      const filed = await train(cpuOffloadPolicy({ optimizerStates }), momentum);
      assert.deepEqual(filed.weights, plain.weights);
      assert.deepEqual(readdirSync(folder.path), []);
      const { stateBytes } = filed.optimizer;
      const { inUse, peakTerms } = optimizerStates.allocator.stats;
      assert.ok(inUse >= stateBytes && peakTerms.optimizer >= stateBytes);
      const atRest = (of: typeof host): number =>
        of.device.offload.device.allocator.owners(1000).filter(({ owner }) => /optimizer (exp|mom)/.test(owner))
          .reduce((sum, { bytes }) => sum + bytes, 0);
      assert.ok(atRest(host) >= stateBytes);
      assert.equal(atRest(filed), 0);
      assert.ok(filed.peak < host.peak, "one unit's states at a time");
      filed.optimizer.dispose();
      assert.equal(optimizerStates.allocator.stats.inUse, 0);
      optimizerStates[Symbol.dispose]();
      optimizerStates[Symbol.dispose]();
      assert.throws(() => optimizerStates.copyIn(devicePtr(0), new Uint8Array(1)), FileError);
    });
  }

  it("gives its room back with the process's last descriptor, however it ends", async (context) => {
    if (platform().os !== "linux") return context.skip("needs /proc");
    using folder = temporaryDirectory();
    const pool = await openFilePool(folder.path);
    pool.copyIn(devicePtr(5000), Uint8Array.of(1, 2, 3));
    const back = new Uint8Array(4);
    pool.copyOut(back.subarray(1), devicePtr(5000));
    assert.deepEqual([...back], [0, 1, 2, 3]);
    const open = (): string[] =>
      readdirSync("/proc/self/fd").flatMap((name) => {
        try {
          return [readlinkSync(`/proc/self/fd/${name}`)];
        } catch {
          return [];
        }
      }).filter((target) => target.includes(".fullyshard-states-"));
    assert.ok(open().length > 0 && open().every((target) => target.endsWith("(deleted)")));
    pool[Symbol.dispose]();
    assert.deepEqual(open(), []);
  });

  it("names a folder that there is not, or that must not be written", async (context) => {
    using folder = temporaryDirectory();
    const refused = async (directory: string): Promise<FileError> => {
      const error: unknown = await openFilePool(directory).then(() => undefined, (error) => error);
      return error instanceof FileError ? error : assert.fail(String(error));
    };
    const missing = await refused(folder.file("none"));
    assert.match(
      missing.message,
      /Cannot write '.*none\/\.fullyshard-states-.*': there is no such file or directory; check/,
    );
    const file = folder.write("file", "text");
    assert.match((await refused(file)).message, /a part of the path is a file, not a directory/);
    if (platform().os !== "linux") return context.skip("needs /proc");
    assert.match(
      (await refused("/proc/self")).message,
      /Cannot write '\/proc\/self\/.*(permission denied|no such file|--allow)/,
    );
  });

  it("says how much room lacks before anything is updated", (context) => {
    if (platform().os !== "linux") return context.skip("needs a shell with ulimit -f and an ignored SIGXFSZ");
    using folder = temporaryDirectory();
    const script = fileURLToPath(new URL("./file_pool_full.ts", import.meta.url));
    const start = runtime().name === "deno" ? "run -A --no-check" : "run";
    const command = `trap '' XFSZ; ulimit -f 8; exec "$RUNTIME" ${start} "$0" "$1"`;
    const env = { PATH: "/usr/bin:/bin", RUNTIME: executablePath() };
    const { stdout: text } = spawnSync("sh", ["-c", command, script, folder.path], { encoding: "utf8", env });
    assert.match(
      text,
      /FileError: Cannot write '.*\.fullyshard-states-.*': the file would be larger than the process' limit \(ulimit -f\) \(EFBIG\)/,
    );
    assert.match(text, /weights as before: true, states: 0 bytes, steps: 0/);
    assert.deepEqual(readdirSync(folder.path), []);
  });
});
