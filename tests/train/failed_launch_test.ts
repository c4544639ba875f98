/** Launches and ends of runs that throw: device, group and files are closed all the same. @module */
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { describe, it } from "node:test";
import { scope, tensor } from "../../mod.ts";
import { openModel } from "../../src/train/open_model.ts";
import { launch, Run } from "../../src/train/run.ts";
import { failAllocation } from "../support/failing_memory.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { SIZES } from "./loop_ranks.ts";

const CPU = { cpuMath: "wasm", memoryBytes: 2 ** 26 } as const;

describe("launch()", () => {
  it("leaves its group when what comes after it fails, so that the next one may join", async () => {
    using folder = temporaryDirectory();
    writeFileSync(folder.file("file"), "");
    const place = { ...CPU, backend: "shm", rank: 0, worldSize: 1, run: `launch ${crypto.randomUUID()}` } as const;
    for (let i = 0; i < 2; i++) {
      await assert.rejects(launch({ ...place, trace: folder.file("file/trace") }), { name: "FileError" });
    }
    await using run = await launch({ ...place, trace: folder.file("trace") });
    assert.equal(run.group.sum([2], "joined")[0], 2);
  });
});

describe("a Run", () => {
  it("leaves the group and closes the device though a line cannot be printed, and throws the first error", async () => {
    const place = { ...CPU, backend: "shm", rank: 0, worldSize: 1, run: `run ${crypto.randomUUID()}` } as const;
    const { device, group } = await launch(place);
    const printed: string[] = [];
    // Nothing is printed before the end, as no event comes to pass.
    const stream = { ...device.streams.get("compute"), record: () => ({ done: false }) };
    const late = Object.create(device, {
      streams: { value: { ...device.streams, get: () => stream } },
      dispose: { value: () => device.dispose() },
    });
    const run = new Run({
      device: late,
      group,
      print: (line) => {
        printed.push(line);
        throw new Error(`cannot print ${printed.length}`);
      },
    });
    {
      using _frame = scope();
      run.log({ loss: tensor(device, [1]).sum() });
      run.log({ loss: tensor(device, [2]).sum() });
    }
    await assert.rejects(async () => await run[Symbol.asyncDispose](), { message: "cannot print 1" });
    assert.equal(printed.length, 2);
    assert.ok(group.disposed);
    await using next = await launch(place);
    assert.equal(next.group.size, 1);
  });

  it("refuses to log a tensor of several elements at once, and keeps nothing of the line", async () => {
    await using run = await launch(CPU);
    using _frame = scope();
    const [one, two] = [tensor(run.device, [1]), tensor(run.device, [1, 2])];
    assert.throws(() => run.log({ one, two }), { name: "ShapeError", message: /'two' must have one element/ });
    const { inUse } = run.device.allocator.stats;
    one.dispose();
    assert.ok(run.device.allocator.stats.inUse < inUse, "no line has a handle on it");
  });
});

describe("openModel() with a plan", () => {
  it("frees what it has sharded when the load fails", async () => {
    await using run = await launch(CPU);
    const { allocator } = run.device;
    const kept = await openModel(run, SIZES, { fsdpPlan: "auto" }); // scalars and staging are there from now on
    const { inUse } = allocator.stats;
    for (const place of [0, 1, 2]) {
      using _failing = failAllocation([allocator], place);
      await assert.rejects(openModel(run, SIZES, { fsdpPlan: "auto" }), { name: "OutOfMemoryError" });
      assert.equal(allocator.stats.inUse, inUse, `allocation ${place}`);
    }
    using folder = temporaryDirectory();
    await kept.save(folder.file("model"));
    const copyIn = run.device.copyIn.bind(run.device);
    let copies = 0;
    Object.defineProperty(run.device, "copyIn", {
      configurable: true,
      value: (...args: Parameters<typeof copyIn>) => {
        if (++copies > 20) throw new Error("injected");
        copyIn(...args);
      },
    });
    await assert.rejects(openModel(run, folder.file("model"), { fsdpPlan: "auto" }), /injected/);
    Reflect.deleteProperty(run.device, "copyIn");
    assert.equal(allocator.stats.inUse, inUse);
    await openModel(run, folder.file("model"), { fsdpPlan: "auto" });
  });
});
