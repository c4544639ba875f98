/** Activation checkpointing of plain modules: bits, memory, what is computed again, and what is refused. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import {
  type ActivationCheckpointingOptions,
  applyActivationCheckpointing,
  dryRun,
  noGrad,
  scope,
  SGD,
  type Tensor,
  tensor,
} from "../../mod.ts";
import { openDevice } from "../../doors/device.ts";
import { ArgumentError, UseAfterDisposeError } from "../../doors/errors.ts";
import {
  attention,
  BufferTensor,
  initializeParameters,
  Linear,
  Module,
  ModuleList,
  SAVEABLE_OPS,
} from "../../doors/nn.ts";
import { gradients, input, Stack } from "../fsdp/modules.ts";
import { messageOf } from "../support/message.ts";

const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 27 });
const inUse = (): number => device.allocator.stats.inUse;
const WIDTH = 24;

/** Attention, a norm-like division and products: ops that save inputs, outputs and temporaries. */
class Block extends Module<[x: Tensor], Tensor> {
  readonly qkv = new Linear(device, WIDTH, 3 * WIDTH);
  readonly out = new Linear(device, WIDTH, WIDTH);
  runs = 0;

  forward(x: Tensor): Tensor {
    this.runs++;
    const [q, k, v] = this.qkv.call(x).chunk(3, -1);
    assert.ok(q !== undefined && k !== undefined && v !== undefined);
    const seen = attention(q, k, v, { heads: 2, kvHeads: 2, causal: true, scale: 0.3 });
    const mixed = seen.transpose(1, 2).contiguous().transpose(1, 2);
    const scores = mixed.matmul(x.transpose(1, 2)).softmax();
    return x.add(this.out.call(scores.matmul(seen)).sigmoid().tanh().exp().div(x.exp()));
  }
}

class Blocks extends Module<[x: Tensor], Tensor> {
  readonly blocks = Array.from({ length: 4 }, () => new Block());

  forward(x: Tensor): Tensor {
    return this.blocks.reduce((hidden, block) => block.call(hidden), x);
  }
}

function blocks(): Blocks {
  const model = new Blocks();
  initializeParameters(model, 3);
  return model;
}

const given = (): Tensor => input(device, "x", 2 * 5, WIDTH).reshape([2, 5, WIDTH]);

/** Gradients of a step, and bytes that its forward left for its backward. */
function step(model: Blocks): { bits: Map<string, number[] | undefined>; held: number } {
  model.zeroGrad();
  using _frame = scope();
  const x = given();
  const before = inUse();
  const loss = model.call(x).sum();
  const held = inUse() - before;
  loss.backward();
  const bits = gradients(model.parameters());
  model.zeroGrad();
  return { bits, held };
}

/** A module of one forward. */
class Of<Args extends readonly unknown[], Out> extends Module<Args, Out> {
  readonly weight: Linear["weight"];
  readonly #body: (weight: Tensor, ...args: Args) => Out;

  constructor(body: (weight: Tensor, ...args: Args) => Out) {
    super();
    this.weight = new Linear(device, WIDTH, WIDTH, { bias: false }).weight;
    this.#body = body;
    initializeParameters(this, 1);
  }

  forward(...args: Args): Out {
    return this.#body(this.weight, ...args);
  }
}

function checkpointed<Args extends readonly unknown[], Out>(
  body: (weight: Tensor, ...args: Args) => Out,
): Of<Args, Out> {
  const module = new Of(body);
  applyActivationCheckpointing(module);
  return module;
}

const options: readonly ActivationCheckpointingOptions[] = [
  {},
  { every: 2 },
  { every: 3 },
  { saveOps: SAVEABLE_OPS },
  { saveOps: ["attention"] },
  { saveOps: ["matmul"], every: 2 },
];

describe("applyActivationCheckpointing()", () => {
  const plain = step(blocks());

  for (const choice of options) {
    it(`gives the same gradients to the bit with less memory: ${JSON.stringify(choice)}`, () => {
      const model = blocks();
      applyActivationCheckpointing(model.blocks, choice);
      const before = inUse();
      for (let turn = 0; turn < 2; turn++) {
        const { bits, held } = step(model);
        assert.deepEqual(bits, plain.bits);
        assert.ok(held < plain.held, `${held} of ${plain.held}`);
        assert.equal(inUse(), before);
      }
      const { every = 1 } = choice;
      assert.deepEqual(model.blocks.map(({ runs }) => runs), [0, 1, 2, 3].map((i) => i % every === 0 ? 4 : 2));
    });
  }

  it("holds less the more is computed again, which costs as much", async () => {
    const costs = new Map<string, { readonly held: number; readonly flops: number }>();
    for (
      const [name, choice] of [["none", undefined], ["selective", { saveOps: SAVEABLE_OPS }], ["full", {}]] as const
    ) {
      const model = blocks();
      if (choice !== undefined) applyActivationCheckpointing(model.blocks, choice);
      const { flops } = await dryRun((run) => {
        const stack = new Stack(run.device, WIDTH, 3);
        initializeParameters(stack, 0);
        if (choice !== undefined) applyActivationCheckpointing(stack.layers, choice);
        return () => {
          using _step = scope();
          stack.zeroGrad();
          stack.call(tensor(run.device, new Float32Array(WIDTH), { shape: [1, WIDTH] })).sum().backward();
        };
      }, { worldSize: 1, device });
      costs.set(name, { held: step(model).held, flops });
    }
    const [none, selective, full] = ["none", "selective", "full"].map((name) => costs.get(name));
    assert.ok(none !== undefined && selective !== undefined && full !== undefined);
    assert.ok(full.held < selective.held && selective.held < none.held);
    const products = 3 * 2 * WIDTH * WIDTH;
    assert.ok(full.flops - none.flops >= products, "three products more");
    assert.ok(selective.flops - none.flops < products, "not one product more");
  });

  it("computes a module that ran twice twice again, whichever backward comes first", () => {
    const run = (wrap: boolean): unknown => {
      const model = blocks();
      if (wrap) applyActivationCheckpointing(model.blocks);
      using _frame = scope();
      const [a, b] = [model.call(model.call(given())), model.call(given().mul(2))];
      a.sum().backward();
      b.sum().backward();
      const bits = gradients(model.parameters());
      model.zeroGrad();
      return bits;
    };
    const before = inUse();
    assert.deepEqual(run(true), run(false));
    assert.equal(inUse(), before + 2 * blocksBytes());
  });

  it("hands on lists, objects, inputs and constants as they are, and computes unused results again as well", () => {
    const body = (weight: Tensor, { x, more: [y] }: { x: Tensor; more: readonly [Tensor] }) => {
      const product = x.matmul(weight);
      return { product, list: [y, product.exp()], note: "text", none: undefined };
    };
    const run = (
      module: Of<Parameters<typeof body> extends [Tensor, infer A] ? [A] : never, ReturnType<typeof body>>,
    ) => {
      using _frame = scope();
      const [x, y] = [given(), given().mul(3)];
      const { product, list, note } = module.call({ x, more: [y] });
      assert.equal(note, "text");
      assert.equal(list[0], y);
      product.tanh().sum().backward();
      return [...module.weight.grad?.toArray() ?? []];
    };
    assert.deepEqual(run(checkpointed(body)), run(new Of(body)));
  });

  it("runs as it is inside noGrad, and again when it is taken back", () => {
    const model = blocks();
    const undo = applyActivationCheckpointing(model.blocks);
    using _frame = scope();
    noGrad(() => model.call(given()));
    undo();
    assert.deepEqual(step(model), plain);
    assert.deepEqual(model.blocks.map(({ runs }) => runs), [2, 2, 2, 2]);
    applyActivationCheckpointing(model.blocks);
  });

  it("gives memory back where no backward comes, and where one fails", () => {
    const model = blocks();
    applyActivationCheckpointing(model.blocks, { saveOps: ["attention"] });
    const before = inUse();
    {
      using _frame = scope();
      model.call(given());
    }
    assert.equal(inUse(), before);
    let calls = 0;
    const failing = checkpointed((weight, x: Tensor) => {
      const product = x.matmul(weight).exp();
      if (++calls === 2) throw new RangeError("the second time");
      return product;
    });
    const between = inUse();
    {
      using _frame = scope();
      const loss = failing.call(given()).sum();
      assert.throws(() => loss.backward(), /the second time/);
    }
    assert.equal(inUse(), between);
  });

  it("has one backward a forward, as without", () => {
    using _frame = scope();
    const model = blocks();
    applyActivationCheckpointing(model.blocks);
    const loss = model.call(given()).sum();
    loss.backward();
    assert.throws(() => loss.backward(), UseAfterDisposeError);
    model.zeroGrad();
  });

  it("refuses what computes something else the second time, by name and op", () => {
    let calls = 0;
    const second = (): boolean => ++calls % 2 === 0;
    const bodies: readonly (readonly [(weight: Tensor, x: Tensor) => Tensor, RegExp])[] = [
      [
        (weight, x) => second() ? x.matmul(weight).sigmoid() : x.matmul(weight).exp(),
        /the activations of 'Of' again: the forward recorded 'exp' \[2, 5, 24\] where the recomputation came to 'sigmoid' \[2, 5, 24\]; a checkpointed module must compute the same/,
      ],
      [
        (weight, x) => (second() ? x.narrow(1, 0, 4) : x).matmul(weight).exp(),
        /recorded 'matmul' \[2, 5, 24\] where the recomputation came to 'matmul' \[2, 4, 24\]/,
      ],
      [
        (weight, x) => second() ? x.matmul(weight).exp().exp() : x.matmul(weight).exp(),
        /recorded the end where the recomputation came to 'exp'/,
      ],
      [
        (weight, x) => second() ? x.matmul(weight).exp() : x.matmul(weight).exp().tanh(),
        /recorded 'tanh' .* where the recomputation came to the end/,
      ],
    ];
    for (const [body, message] of bodies) {
      const module = checkpointed(body);
      const before = inUse();
      {
        using _frame = scope();
        const loss = module.call(given()).sum();
        assert.match(messageOf(() => loss.backward()), message);
      }
      assert.equal(inUse(), before);
    }
  });

  it("refuses what was written between forward and backward: inputs, weights, its own buffers", () => {
    const mean = new BufferTensor(device, [WIDTH]);
    mean.rename("running_mean");
    mean.materialize();
    const moving = checkpointed((weight, x: Tensor) => {
      mean.copyFromHost(new Float32Array(WIDTH).fill(mean.buffer.version));
      return x.matmul(weight).add(mean).exp();
    });
    const still = checkpointed((weight, x: Tensor) => x.matmul(weight).exp());
    using _frame = scope();
    const written = /was written after its forward, by an optimizer or by hand; run the forward again/;
    const loss = moving.call(given()).sum();
    assert.match(messageOf(() => loss.backward()), /'running_mean' was written after its forward/);
    const [x, of] = [given(), () => still.call(given()).sum()];
    const inputLoss = still.call(x).sum();
    x.copyFromHost(new Float32Array(x.numel));
    assert.match(messageOf(() => inputLoss.backward()), written);
    const [weightLoss, other] = [of(), of()];
    other.backward();
    const optimizer = new SGD(still.parameters(), { learningRate: 0.1 });
    optimizer.step();
    optimizer.dispose();
    assert.match(messageOf(() => weightLoss.backward()), written);
  });

  it("refuses modules inside checkpointed ones, those that are already, and what has no forward", () => {
    const model = blocks();
    model.nameTree();
    const undo = applyActivationCheckpointing(model);
    applyActivationCheckpointing(model.blocks, { every: 4 });
    assert.match(
      messageOf(() => applyActivationCheckpointing(model.blocks)),
      /Cannot checkpoint Block 'blocks\.0': it is checkpointed already/,
    );
    using _frame = scope();
    const before = inUse();
    assert.match(
      messageOf(() => model.call(given())),
      /Cannot checkpoint 'blocks\.0' inside 'Blocks', which is checkpointed and computes it again as it is; checkpoint one of the two/,
    );
    undo();
    assert.ok(inUse() > before, "what the frame holds");
    model.call(given());
    assert.throws(() => applyActivationCheckpointing(new ModuleList([new Block()])), /ModuleList: it has no forward/);
    for (const every of [0, -1, 1.5, NaN]) {
      assert.throws(() => applyActivationCheckpointing([], { every }), /every .* modules: give a positive integer/);
    }
  });

  it("refuses to be given or to give what cannot be looked into", () => {
    using _frame = scope();
    const taking = checkpointed((_weight, cache: Map<string, Tensor>) => cache.get("x") ?? assert.fail("no x"));
    assert.throws(
      () => taking.call(new Map([["x", given()]])),
      (error) =>
        error instanceof ArgumentError && /'Of': it is given a Map, which may be another one/.test(error.message),
    );
    const giving = checkpointed((weight, x: Tensor) => new Map([["y", x.matmul(weight)]]));
    const before = inUse();
    {
      using _inner = scope();
      assert.throws(() => giving.call(given()), /Of\.forward\(\) gave a Map/);
    }
    assert.equal(inUse(), before);
  });
});

/** Bytes of a model's parameters. */
function blocksBytes(): number {
  const before = inUse();
  blocks();
  return inUse() - before;
}
