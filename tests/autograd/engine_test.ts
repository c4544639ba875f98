/** The backward pass: order, accumulation, places of gradients, hooks, and memory after it ends or fails. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { activePass } from "../../src/autograd/engine.ts";
import { gradEnabled, noGrad } from "../../src/autograd/mode.ts";
import { openDevice } from "../../src/device/registry.ts";
import { bfloat16, float32 } from "../../src/dtype.ts";
import { ArgumentError, DTypeError, OutOfMemoryError, ShapeError, UseAfterDisposeError } from "../../src/errors.ts";
import type { ComputeOp } from "../../src/ops/op.ts";
import { applyOne, hookBackward } from "../../src/tensor/apply.ts";
import { ones, tensor } from "../../src/tensor/create.ts";
import type { Parameter } from "../../src/tensor/parameter.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { allClose } from "../support/allclose.ts";
import { disposeLeaf, gradcheck, leaf } from "../support/gradcheck.ts";
import { map, random } from "../support/reference.ts";
import { longTest } from "../support/share.ts";

const device = await openDevice("cpu", { memoryBytes: 32 * 2 ** 20 });
const inUse = (): number => device.allocator.stats.inUse;

function gradients(...leaves: readonly Parameter[]): (number[] | undefined)[] {
  return leaves.map(({ grad }) => grad === undefined ? undefined : [...grad.toArray()]);
}

/** Twice the input; `onBackward` sees each pass. */
function observed(onBackward: () => void, onForward: () => void = () => {}): ComputeOp<undefined> {
  return {
    name: "observed",
    infer: (inputs) => inputs.slice(0, 1).map(({ shape, dtype }) => ({ shape, dtype })),
    forward: (call) => {
      const x = call.dense(call.input(0));
      call.save(x, call.empty([1000], float32));
      onForward();
      call.device.kernels.scale({ dtype: x.dtype, n: x.numel, factor: 2, dst: call.output(0).ptr, src: x.ptr });
    },
    backward: (call) => {
      const dy = call.dense(call.grad(0));
      const dx = call.out(0);
      onBackward();
      call.device.kernels.scale({ dtype: dy.dtype, n: dy.numel, factor: 2, dst: dx.ptr, src: dy.ptr });
    },
  };
}

test("backward() adds what comes back along several paths", () => {
  const check = (label: string, run: (x: Tensor) => Tensor, f: (x: number) => number): void =>
    gradcheck(device, { label, inputs: [random([5], 3, 0.5, 1.5)], run, reference: (x) => map(x, f) });
  check("x * x", (x) => x.mul(x), (x) => x * x);
  check("x + x", (x) => x.add(x), (x) => x + x);
  check("x / x", (x) => x.div(x), (x) => x / x);
  check("x - x + x", (x) => x.sub(x).add(x), (x) => x);
  check("diamond", (x) => {
    const y = x.exp();
    return y.mul(y.add(x)).sub(y);
  }, (x) => Math.exp(x) * (Math.exp(x) + x) - Math.exp(x));
  check("one value five times", (x) => {
    const y = x.square();
    return y.add(y).add(y.mul(y)).mul(y);
  }, (x) => (2 * x ** 2 + x ** 4) * x ** 2);
  check("a sum whose gradient both sides see", (x) => {
    const [a, b] = [x.exp(), x.sin()];
    const twice = a.mul(2);
    return a.add(b).add(twice);
  }, (x) => 3 * Math.exp(x) + Math.sin(x));
  check("deep and shallow paths", (x) => {
    let y = x;
    for (let i = 0; i < 20; i++) y = y.mul(0.9).add(x);
    return y.mul(x);
  }, (x) => {
    let y = x;
    for (let i = 0; i < 20; i++) y = y * 0.9 + x;
    return y * x;
  });
});

test("backward() of many passes adds to the gradient, from scalars and from seeds", () => {
  const x = leaf(device, { shape: [3], data: [1, 2, 3] });
  {
    using _frame = scope();
    x.sum().backward();
    x.mul(2).backward(tensor(device, [1, 10, 100]));
    x.backward(tensor(device, [0.5, 0.5, 0.5]));
  }
  assert.deepEqual(gradients(x), [[3.5, 21.5, 201.5]]);
  disposeLeaf(x);
});

test("backward() does not change or keep its seed", () => {
  using _frame = scope();
  const x = leaf(device, { shape: [2], data: [1, 2] });
  const seed = tensor(device, [5, 7]);
  x.backward(seed);
  x.add(x).backward(seed);
  x.backward(seed);
  assert.deepEqual([...seed.toArray()], [5, 7]);
  assert.deepEqual(gradients(x), [[20, 28]]);
  disposeLeaf(x);
});

test("backward() a second time says that the graph is used up, and leaves no pass behind", () => {
  const x = leaf(device, { shape: [2], data: [1, 2] });
  const before = inUse();
  {
    using _frame = scope();
    const y = x.exp();
    const loss = y.sum();
    loss.backward();
    x.zeroGrad();
    assert.throws(() => loss.backward(), UseAfterDisposeError);
    assert.throws(() => loss.backward(), /The backward of 'sum' has run already .* run the forward again/);
    assert.throws(() => y.mul(2).sum().backward(), /The backward of 'exp' has run already/);
    assert.equal(activePass(), undefined);
  }
  assert.equal(inUse(), before);
  disposeLeaf(x);
});

test("backward() with retainGraph can run again, and leaves no memory when its tensors are gone", () => {
  const x = leaf(device, { shape: [2], data: [1, 2] });
  const before = inUse();
  {
    using _frame = scope();
    const y = x.exp();
    const [first, second] = [y.mul(y).sum(), y.sum()];
    first.backward(undefined, { retainGraph: true });
    first.backward(undefined, { retainGraph: true });
    second.backward();
    const expected = [1, 2].map((value) => 4 * Math.exp(2 * value) + Math.exp(value));
    allClose(x.grad?.toArray() ?? [], expected, { relative: 1e-6, absolute: 0 }, "three passes");
    assert.throws(
      () => first.backward(),
      /add the losses of one forward and run one backward of their sum, .*retainGraph: true/,
    );
    x.zeroGrad();
  }
  assert.equal(inUse(), before);
  disposeLeaf(x);
});

test("backward() refuses what it cannot start from", () => {
  using _frame = scope();
  const x = leaf(device, { shape: [2], data: [1, 2] });
  assert.throws(() => ones(device, [1]).backward(), ArgumentError);
  assert.throws(() => x.mul(2).backward(), /'backward' as a seed is needed unless scalar: shapes \[2\]/);
  assert.throws(() => x.mul(2).backward(ones(device, [3])), ShapeError);
  assert.throws(() => x.mul(2).backward(ones(device, [2], bfloat16)), DTypeError);
  assert.throws(() => noGrad(() => x.mul(2)).sum().backward(), /no parameter leads to it/);
  assert.throws(() => x.detach().sum().backward(), ArgumentError);
  disposeLeaf(x);
});

test("noGrad() and detach() cut the graph, and the switch survives an error", () => {
  using _frame = scope();
  const x = leaf(device, { shape: [2], data: [3, 4] });
  x.mul(x.detach()).add(noGrad(() => x.square())).sum().backward();
  assert.deepEqual(gradients(x), [[3, 4]]);
  assert.throws(() =>
    noGrad(() => {
      noGrad(() => assert.equal(gradEnabled(), false));
      assert.equal(gradEnabled(), false);
      throw new Error("inside");
    }), /inside/);
  assert.equal(gradEnabled(), true);
  disposeLeaf(x);
});

test("nothing leaks: forward alone, with backward, under noGrad, with unused outputs", () => {
  const [x, w] = [leaf(device, random([4, 4], 1)), leaf(device, random([4, 4], 2))];
  const before = inUse();
  const forward = (): Tensor => x.matmul(w).softmax().mul(w.exp()).sum();
  const runs: (() => void)[] = [
    () => void forward(),
    () => void noGrad(forward),
    () => forward().backward(),
    () => {
      const y = x.matmul(w);
      y.exp();
      y.square().sum().backward();
    },
    () => {
      forward();
      forward().backward();
      forward();
    },
  ];
  for (const run of runs) {
    {
      using _frame = scope();
      run();
    }
    x.zeroGrad();
    w.zeroGrad();
    assert.equal(inUse(), before, run.toString());
  }
  [x, w].forEach(disposeLeaf);
});

test("saved tensors live as long as the graph, though their handles are disposed", () => {
  const x = leaf(device, { shape: [3], data: [1, 2, 3] });
  const before = inUse();
  let loss: Tensor;
  {
    using frame = scope();
    {
      using inner = scope();
      const y = x.square(); // saves x
      const z = y.exp().log(); // saves y, exp(y)
      loss = z.mul(y).sum();
      inner.keep(loss);
    }
    frame.keep(loss);
  }
  assert.ok(inUse() > before + 256);
  loss.backward();
  assert.deepEqual(gradients(x)[0]?.map((v) => Math.round(v * 1000) / 1000), [4, 32, 108]);
  loss.dispose();
  x.zeroGrad();
  assert.equal(inUse(), before);
  disposeLeaf(x);
});

test("memory is freed as the pass goes back, not at its end", () => {
  const x = leaf(device, random([1000], 1, -0.1, 0.1));
  using _frame = scope();
  let loss: Tensor;
  {
    using inner = scope();
    let y: Tensor = x;
    for (let i = 0; i < 50; i++) y = y.sin();
    loss = y.sum();
    inner.keep(loss);
  }
  const forward = inUse();
  device.allocator.resetPeak();
  loss.backward();
  assert.ok(device.allocator.stats.peak < forward + 4 * 4096, "no more than a few gradients at once");
  assert.ok(inUse() < forward - 40 * 4000);
  disposeLeaf(x);
});

longTest("a graph of any depth is walked and freed without running out of stack", () => {
  const x = leaf(device, { shape: [1], data: [1] });
  const before = inUse();
  for (const withBackward of [false, true]) {
    {
      using frame = scope();
      let y: Tensor = x;
      for (let i = 0; i < 30_000; i++) {
        const next = y.add(0);
        if (y !== x) y.dispose();
        y = next;
      }
      if (withBackward) y.backward();
      frame.keep(y);
      y.dispose();
    }
    assert.deepEqual(gradients(x), [withBackward ? [1] : undefined]);
    x.zeroGrad();
    assert.equal(inUse(), before);
  }
  disposeLeaf(x);
});

test("an op that fails in its forward keeps nothing", () => {
  const x = leaf(device, { shape: [3], data: [1, 2, 3] });
  const before = inUse();
  const op = observed(() => {}, () => {
    throw new Error("midway");
  });
  assert.throws(() => applyOne(op, [x], undefined), /midway/);
  assert.equal(inUse(), before);
  disposeLeaf(x);
});

test("an op that fails in its backward ends the pass and keeps nothing once gradients are dropped", () => {
  const [x, w] = [leaf(device, random([100], 1)), leaf(device, random([100], 2))];
  const before = inUse();
  const op = observed(() => {
    throw new Error("midway");
  });
  {
    using _frame = scope();
    const y = applyOne(op, [x.mul(w)], undefined);
    assert.throws(() => y.mul(w).add(x.exp()).sum().backward(), /midway/);
    assert.equal(activePass(), undefined);
  }
  x.zeroGrad();
  w.zeroGrad();
  assert.equal(inUse(), before);
  {
    using _frame = scope();
    x.sum().backward();
  }
  assert.deepEqual(gradients(x), [new Array(100).fill(1)]);
  [x, w].forEach(disposeLeaf);
});

test("gradients that do not fit each other end the pass and are freed", () => {
  const x = leaf(device, random([4], 1));
  const before = inUse();
  const op: ComputeOp<undefined> = {
    ...observed(() => {}),
    backward: (call) => call.give(0, call.empty([1], bfloat16).expand([4])),
  };
  {
    using _frame = scope();
    const y = x.mul(1);
    const wrong = applyOne(op, [y], undefined);
    assert.throws(() => y.sum().add(wrong.sum()).backward(), DTypeError);
    assert.equal(activePass(), undefined);
  }
  x.zeroGrad();
  assert.equal(inUse(), before);
  disposeLeaf(x);
});

test("running out of memory in either direction names the owners and keeps nothing", () => {
  const x = leaf(device, random([1000], 1));
  const before = inUse();
  {
    using _frame = scope();
    assert.throws(() => x.reshape([1000, 1]).expand([1000, 20_000]).contiguous(), OutOfMemoryError);
    assert.throws(() => x.reshape([1000, 1]).expand([1000, 20_000]).contiguous(), /Largest owners: .*parameter/);
    const big = x.reshape([1000, 1]).expand([1000, 3000]);
    const loss = big.sin().sum(); // 12 MB saved and 12 MB result; the backward needs 12 MB more
    assert.throws(() => loss.backward(), OutOfMemoryError);
  }
  x.zeroGrad();
  assert.equal(inUse(), before);
  disposeLeaf(x);
});

test("a backward inside a backward is refused", () => {
  using _frame = scope();
  const x = leaf(device, { shape: [1], data: [1] });
  const op = observed(() => x.mul(2).backward());
  assert.throws(() => applyOne(op, [x], undefined).backward(), /Cannot run backward inside a backward pass/);
  disposeLeaf(x);
});

test("backward() runs nodes from the last recorded to the first, whatever the order of inputs", () => {
  using _frame = scope();
  const order: string[] = [];
  const named = (name: string, input: Tensor): Tensor =>
    applyOne(observed(() => void order.push(name)), [input], undefined);
  const x = leaf(device, { shape: [1], data: [1] });
  const [a, b] = [named("a", x), named("b", x)];
  const c = named("c", a);
  const d = named("d", b.add(a));
  named("e", d.add(c).add(b)).backward();
  assert.deepEqual(order, ["e", "d", "c", "b", "a"]);
  disposeLeaf(x);
});

test("hookBackward() runs when all gradients are known and before any flows on; callbacks at the end run last", () => {
  using _frame = scope();
  const order: string[] = [];
  const named = (name: string, input: Tensor): Tensor =>
    applyOne(observed(() => void order.push(name)), [input], undefined);
  const x = leaf(device, { shape: [1], data: [3] });
  const inner = named("inner", x);
  const other = named("other", x);
  const first = { endPass: () => void order.push(`end, gradient ${x.grad?.item()}`), abandonPass: () => {} };
  const second = { endPass: () => void order.push("end"), abandonPass: () => {} };
  const run = (): void => {
    order.push("hook");
    for (const member of [first, second, first]) activePass()?.join(member);
  };
  const unhook = hookBackward([inner, other, x, ones(device, [1])], { name: "unit", run });
  assert.ok(unhook !== undefined);
  const y = named("outer", inner).add(named("outer too", other)).add(inner);
  y.backward();
  assert.deepEqual(order, ["outer too", "outer", "hook", "other", "inner", "end, gradient 10", "end"]);
  const never = { name: "never", run: () => assert.fail("called") };
  assert.equal(hookBackward([x, ones(device, [1])], never), undefined);
  assert.equal(noGrad(() => hookBackward([named("z", x)], never)), undefined);
  disposeLeaf(x);
});

test("hookBackward() of an output that nothing uses changes nothing and leaks nothing", () => {
  const x = leaf(device, { shape: [2], data: [3, 4] });
  const before = inUse();
  {
    using _frame = scope();
    const [used, unused] = [x.mul(2), x.exp()];
    let calls = 0;
    hookBackward([used, unused], { name: "unit", run: () => void calls++ });
    used.sum().backward();
    assert.equal(calls, 1);
  }
  assert.deepEqual(gradients(x), [[2, 2]]);
  x.zeroGrad();
  assert.equal(inUse(), before);
  disposeLeaf(x);
});
