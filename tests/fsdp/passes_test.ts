/** The state after backward passes that bypass the root, fail, are dropped, or do not use every parameter. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { fullyShard, noGrad, scope, type Tensor } from "../../mod.ts";
import { UseAfterDisposeError } from "../../doors/errors.ts";
import { initializeParameters, Linear, ones } from "../../doors/nn.ts";
import { ownedValues } from "../support/owned.ts";
import { forwardBackward, shardStack, traffic, WIDTH } from "./life_cycle_scenario.ts";
import { gradients, input, Stack } from "./modules.ts";
import { openRank, runRanks } from "./run.ts";
import type { Rank } from "./scenarios.ts";
import type { UnusedReport } from "./unused_scenario.ts";

/** Bytes of one kind of owner. */
function bytesOf({ device }: Rank, what: string): number {
  const owners = device.allocator.owners(1000).filter(({ owner }) => owner.endsWith(what));
  return owners.reduce((sum, { bytes }) => sum + bytes, 0);
}

describe("a backward pass of fullyShard()", () => {
  it("reduces when the loss does not come through the root's output", async () => {
    const rank = await openRank();
    const model = new Stack(rank.device, WIDTH, 1);
    fullyShard(model, { mesh: rank.group });
    initializeParameters(model, 5);
    using _frame = scope();
    let hidden: Tensor | undefined;
    const keep = model.layers[0]?.registerForwardHook((_args, output) => {
      hidden = output instanceof Object && "alias" in output ? model.layers[0]?.linear.weight : undefined;
    });
    model.call(input(rank.device, "x", 3, WIDTH));
    keep?.();
    assert.ok(hidden !== undefined);
    hidden.square().sum().backward();
    assert.deepEqual(traffic(rank), ["gather root forward", "reduce root"]);
    const expected = [...ownedValues(model.layers[0]?.linear.weight)].map((value) => Math.fround(2 * value));
    assert.deepEqual([...model.layers[0]?.linear.weight.grad?.toArray() ?? []], expected);
    assert.equal(model.head.weight.grad, undefined);
  });

  it("says of a second one, and of a disposed output, which module's graph is used up or what was disposed", async () => {
    const rank = await openRank();
    const model = new Stack(rank.device, WIDTH, 1);
    fullyShard(model, { mesh: rank.group });
    initializeParameters(model, 5);
    const call = (): Tensor => model.call(input(rank.device, "x", 3, WIDTH));
    {
      using _frame = scope();
      const output = call();
      const seed = ones(rank.device, output.shape);
      output.backward(seed);
      assert.throws(() => output.backward(seed), UseAfterDisposeError);
      assert.throws(() => output.backward(seed), /The backward of the output of 'Stack' has run already/);
      assert.throws(() => output.mul(2).sum().backward(), /The backward of the output of 'Stack' has run already/);
    }
    const escaped = ((): Tensor => {
      using _frame = scope();
      return call().sum();
    })();
    assert.throws(() => escaped.backward(), /A tensor of 'sum' is used after it was disposed: its scope has ended/);
  });

  it("reduces a unit that was gathered by hand and used without its module", async () => {
    const rank = await openRank();
    const layer = new Linear(rank.device, WIDTH, WIDTH);
    const sharded = fullyShard(layer, { mesh: rank.group });
    initializeParameters(layer, 5);
    using _frame = scope();
    sharded.unshard();
    layer.weight.sum().backward();
    assert.ok(layer.weight.grad?.toArray().every((value) => value === 1));
    assert.equal(layer.bias?.grad, undefined);
    assert.equal(sharded.unit.unsharded, false);
  });

  it("is not held up by a graph that was dropped", async () => {
    const rank = await openRank();
    const stack = shardStack(rank, { depth: 4 });
    {
      using _frame = scope();
      stack.model.call(input(rank.device, "evaluated with gradients on", 3, WIDTH));
    }
    rank.calls.length = 0;
    forwardBackward(rank, stack, "a");
    const after = traffic(rank).filter((call) => call.startsWith("reduce") || call.endsWith("backward"));
    assert.deepEqual(after.slice(0, 3), ["gather 3 backward", "reduce 3", "gather 2 backward"], "not all at the end");
  });

  it("leaves the chain of a tensor that modules are called with as it was", async () => {
    const rank = await openRank();
    const stack = shardStack(rank, { depth: 1 });
    using _frame = scope();
    const before = new Linear(rank.device, WIDTH, WIDTH);
    initializeParameters(before, 3);
    const x = before.call(input(rank.device, "x", 3, WIDTH));
    const node = x.edge?.node;
    for (let i = 0; i < 5; i++) stack.model.call(x);
    assert.ok(node !== undefined && x.edge?.node === node);
  });

  it("that failed leaves no gradient, neither its own nor of earlier ones", async () => {
    for (const syncs of [true, false]) {
      const rank = await openRank();
      const stack = shardStack(rank, { depth: 3 });
      stack.sharded.setRequiresGradientSync(syncs);
      forwardBackward(rank, stack, "a");
      {
        using _frame = scope();
        const loss = stack.model.call(input(rank.device, "b", 3, WIDTH)).sum();
        const { kernels } = rank.device;
        const { gemm } = kernels;
        let products = 0;
        Object.defineProperty(kernels, "gemm", {
          configurable: true,
          value: (...args: Parameters<typeof gemm>) => {
            if (++products === 6) throw new Error("injected");
            gemm.apply(kernels, args);
          },
        });
        assert.throws(() => loss.backward(), /injected/);
        Object.defineProperty(kernels, "gemm", { configurable: true, value: gemm });
      }
      assert.ok([...stack.model.parameters()].every(({ grad }) => grad === undefined));
      stack.sharded.setRequiresGradientSync(true);
      forwardBackward(rank, stack, "c");
      const plain = await openRank();
      const twin = new Stack(plain.device, WIDTH, 3);
      initializeParameters(twin, 5);
      forwardBackward(plain, { ...stack, model: twin }, "c");
      assert.deepEqual(
        gradients(stack.model.parameters()),
        gradients(twin.parameters()),
        syncs ? "reduced" : "unreduced",
      );
      assert.equal(bytesOf(rank, " gradients"), 0);
    }
  });
});

function isReport(value: unknown): value is UnusedReport {
  return typeof value === "object" && value !== null && "grads" in value;
}

describe("unused parameters", () => {
  it("have no gradient where no rank used them and a share of the sum where one did, alike in FSDP and DDP", async () => {
    const norms: number[] = [];
    for (const mode of ["fsdp", "ddp"]) {
      const reports = await runRanks(2, "unused", mode);
      for (const report of reports) {
        assert.ok(isReport(report));
        norms.push(report.norm);
        for (const [fqn, grad] of report.grads) assert.equal(grad === null, fqn.startsWith("never"), `${mode} ${fqn}`);
        for (const [fqn, moved] of report.moved) {
          if (fqn.startsWith("never")) assert.equal(moved, false, `${mode} ${fqn} is not decayed`);
        }
      }
      const moved = (half: string): boolean =>
        reports.some((report) => isReport(report) && report.moved.some(([fqn, did]) => did && fqn.startsWith(half)));
      assert.ok(moved("left") && moved("right"), mode);
    }
    assert.equal(new Set(norms).size, 1, `one norm: ${norms}`);
  });
});

describe("evaluation", () => {
  it("keeps what is not to be freed and what was gathered by hand", async () => {
    const rank = await openRank();
    const kept = shardStack(rank, { depth: 2, reshardAfterForward: false });
    const evaluate = ({ model }: typeof kept): void => {
      using _frame = scope();
      noGrad(() => model.call(input(rank.device, "x", 3, WIDTH)));
    };
    evaluate(kept);
    rank.calls.length = 0;
    evaluate(kept);
    assert.deepEqual(traffic(rank), []);

    const freed = shardStack(rank, { depth: 2 });
    evaluate(freed);
    for (const unit of freed.sharded.units()) unit.unshard("manual");
    rank.calls.length = 0;
    evaluate(freed);
    assert.deepEqual(traffic(rank), []);
    freed.sharded.units()[1]?.reshard();
    evaluate(freed);
    assert.deepEqual(traffic(rank), ["gather 0 forward"]);
  });
});

describe("sharding a model that has values", () => {
  it("keeps them, frees the whole as it goes, and can be undone and done again", async () => {
    const rank = await openRank();
    const [model, twin] = [new Stack(rank.device, WIDTH, 2), new Stack(rank.device, WIDTH, 2)];
    for (const stack of [model, twin]) initializeParameters(stack, 5);
    const values = [...model.parameters()].map(ownedValues);
    const numel = [...model.parameters()].reduce((sum, parameter) => sum + parameter.numel, 0);
    const before = rank.device.allocator.stats.inUse;
    rank.device.allocator.resetPeak();
    for (const layer of model.layers) fullyShard(layer, { mesh: rank.group });
    const sharded = fullyShard(model, { mesh: rank.group });
    assert.deepEqual([...model.parameters()].map(ownedValues), values);
    const { inUse, peak } = rank.device.allocator.stats;
    assert.ok(inUse - before < 4 * 64 * 10 && peak - before < 4 * numel / 2, "one unit at a time is held twice");
    using _frame = scope();
    for (const stack of [model, twin]) stack.call(input(rank.device, "x", 3, WIDTH)).sum().backward();
    assert.deepEqual(gradients(model.parameters()), gradients(twin.parameters()));

    sharded.dispose();
    assert.ok([...model.parameters()].every(({ storage, buffer }) => storage.kind === "plain" && !buffer.hasMemory));
    for (const layer of model.layers) fullyShard(layer, { mesh: rank.group });
    fullyShard(model, { mesh: rank.group });
    initializeParameters(model, 5);
    model.call(input(rank.device, "x", 3, WIDTH)).sum().backward();
    assert.deepEqual(gradients(model.parameters()), gradients(twin.parameters()));
  });
});
