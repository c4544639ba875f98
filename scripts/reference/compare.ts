/**
 * Compares what this library computes with a directory of reference results: scores, losses, gradients, and six AdamW steps.
 *
 * @module
 */
import { loadHfWeights, readHfConfig } from "../../doors/checkpoint.ts";
import { type Device, uint8 } from "../../doors/device.ts";
import { buildModel, Parameter } from "../../doors/nn.ts";
import { AdamW, clipGradNorm, int32, noGrad, scope, type Tensor, tensor } from "../../mod.ts";
import { at } from "../../src/at.ts";
import { plainDirectoryTensors } from "../../src/checkpoint/state_dict/state_dict.ts";
import type { CausalLm } from "../../src/models/causal_lm.ts";
import { fullBox, sharedSlices } from "../../src/tensor/shard_layout.ts";
import { type Facts, readFacts, StoredTensors } from "./directory.ts";
import { judge, type Judged, judgeToScale, type Quantity, RELATIVE } from "./verdict.ts";

/** Steps that `expected.json` tells of, taken with its settings. */
const STEPS = 6;
const OPTIMIZER = { learningRate: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weightDecay: 0.01 } as const;
const CLIP_NORM = 1;
/** Label that the loss leaves out. */
const IGNORED = -100;

/** A model beside its reference. */
class Comparison {
  readonly model: CausalLm;
  readonly #device: Device;
  readonly #facts: Facts;
  readonly #stored: StoredTensors;

  constructor(device: Device, model: CausalLm, facts: Facts, stored: StoredTensors) {
    this.model = model;
    this.#device = device;
    this.#facts = facts;
    this.#stored = stored;
  }

  /** Scores and losses of the batch without padding, of the one with padding, and of a long one where there is one. */
  *outputs(): Generator<Quantity> {
    yield this.#logits("logits", "input_ids");
    yield this.#loss("loss", "input_ids", "input_ids", this.#facts.loss);
    yield this.#logits("masked_logits", "masked_ids", "masked_attention_mask");
    yield this.#loss("masked_loss", "masked_ids", "masked_labels", this.#facts.masked_loss, "masked_attention_mask");
    if (this.#stored.has("long_logits")) yield this.#logits("long_logits", "long_ids");
    if (typeof this.#facts.long_loss === "number" && this.#stored.has("long_ids")) {
      yield this.#loss("long_loss", "long_ids", "long_ids", this.#facts.long_loss);
    }
  }

  /** The loss that balances routers, where the config asks for it: of both batches, as the model gives it beside the loss. */
  *auxLosses(): Generator<Quantity> {
    const { aux_loss: plain, masked_aux_loss: masked } = this.#facts;
    if (plain != null) yield judgeToScale("aux_loss", [this.#auxLoss("input_ids")], [plain], 0);
    if (masked == null) return;
    yield judgeToScale("masked_aux_loss", [this.#auxLoss("masked_ids", "masked_attention_mask")], [masked], 0);
  }

  /** The same of a model whose config was made to ask for it, and what becomes of loss and gradients with it. */
  *balanced(aux: NonNullable<Facts["aux"]>): Generator<Quantity> {
    yield judgeToScale("aux_loss", [this.#auxLoss("input_ids")], [aux.aux_loss], 0);
    const loss = this.#backward(this.#stored.ints("input_ids"), this.#stored.shape("input_ids"));
    yield judgeToScale("loss_with_aux", [loss], [aux.loss_with_aux], this.#sensitivity("loss"));
    const squares = [...this.model.parameters()].map(({ grad }) =>
      sumOf(grad?.toArray() ?? [], (value) => value * value)
    );
    const norm = Math.sqrt(sumOf(squares, (value) => value));
    yield judgeToScale("grad_norm_with_aux", [norm], [aux.total_grad_norm], norm * this.#sensitivity("grad_norm_rel"));
  }

  /** Every gradient given, and the norm of each. */
  *gradients(): Generator<Quantity> {
    const ids = this.#stored.ints("input_ids");
    this.#backward(ids, this.#stored.shape("input_ids"));
    const found = new Map(tensorsOf(this.model, (parameter) => parameter.grad));
    const { grads, grad_norm_rel: ofNorms } = this.#facts.sensitivity;
    // Where a sensitivity is given for norms alone, elements move by at least the same share as their norm.
    const gradSensitivity = grads ?? ofNorms ?? 0;
    const { grad_norms: norms, no_grad_params: without } = this.#facts;
    const isTrained = (name: string): boolean => !without.includes(name);
    const given = this.#stored.names.filter((one) => one.startsWith("grad.") && isTrained(one.slice("grad.".length)));
    for (const name of given) {
      const expected = this.#stored.floats(name);
      const scale = expected.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
      const actual = found.get(name.slice("grad.".length)) ?? [];
      yield judgeToScale(name, actual, expected, scale * gradSensitivity);
    }
    const share = Math.max(RELATIVE, 2 * this.#sensitivity("grad_norm_rel"));
    yield judge("grad_norms", [
      ...Object.entries(norms).filter(([name]) => isTrained(name)).map(([name, norm]): Judged => {
        return [Math.sqrt(sumOf(found.get(name) ?? [NaN], (value) => value * value)), norm, share * norm];
      }),
      // A parameter without a gradient in PyTorch must have none here.
      ...without.map((name): Judged => [found.has(name) ? NaN : 0, 0, 0]),
    ]);
    this.model.zeroGrad();
  }

  /** Losses and norms of the steps, and the weights that they end in. */
  *steps(): Generator<Quantity> {
    const optimizer = new AdamW(this.model.parameters(), OPTIMIZER);
    const [losses, norms]: [number[], number[]] = [[], []];
    const ids = this.#stored.ints("train_ids");
    const [steps = 0, ...shape] = this.#stored.shape("train_ids");
    const each = ids.length / steps;
    for (let step = 0; step < STEPS; step++) {
      using _frame = scope();
      this.model.zeroGrad();
      losses.push(this.#backward(ids.slice(step * each, (step + 1) * each), shape));
      norms.push(clipGradNorm(this.model.parameters(), CLIP_NORM).item());
      optimizer.step();
    }
    optimizer.dispose();
    yield judgeToScale("step_losses", losses, this.#facts.step_losses, this.#sensitivity("step_losses"));
    yield judgeToScale("step_grad_norms", norms, this.#facts.step_grad_norms, this.#sensitivity("step_grad_norms"));
    yield judge("final_weights", this.#finalWeights());
  }

  /** Sums, and sums of squares, of the weights; what elements may be off by adds up in them. */
  *#finalWeights(): Generator<Judged> {
    const { final_sum: sums, final_sumsq: squares, final_max_abs_change_under_ulp_noise: changes } = this.#facts;
    const found = new Map(tensorsOf(this.model, (parameter) => parameter));
    // The sensitivity of elements is given by the parameter that a tensor is a part of.
    const parameters = new Map([...this.model.directoryTensors()].map(({ name, part }) => [name, part.fqn]));
    for (const [name, sumsq] of Object.entries(squares)) {
      const values = found.get(name) ?? [NaN];
      const each = 2 * (changes[name] ?? changes[parameters.get(name) ?? name] ?? 0);
      const norm = Math.sqrt(sumsq);
      const ofSum = [RELATIVE * norm, 2 * this.#sensitivity("final_sum"), values.length * each];
      yield [sumOf(values, (value) => value), sums[name] ?? NaN, Math.max(...ofSum)];
      const ofSquares = [
        RELATIVE * sumsq,
        2 * this.#sensitivity("final_sumsq"),
        2 * each * norm * Math.sqrt(values.length),
      ];
      yield [sumOf(values, (value) => value * value), sumsq, Math.max(...ofSquares)];
    }
  }

  /** Scores; of a batch with padding, those of tokens that are none. */
  #logits(name: string, idsName: string, maskName?: string): Quantity {
    using _frame = scope();
    const shape = this.#stored.shape(idsName);
    const attentionMask = maskName === undefined ? undefined : this.#mask(maskName);
    const inputIds = this.#input(this.#stored.ints(idsName), shape);
    const { logits } = noGrad(() => this.model.call({ inputIds, attentionMask }));
    const [all, expected] = [logits?.toArray() ?? [], this.#stored.floats(name)];
    if (maskName === undefined) return judgeToScale(name, all, expected, this.#sensitivity(name));
    const mask = this.#stored.ints(maskName);
    const isToken = (_: number, i: number): boolean => mask[Math.floor(i * mask.length / expected.length)] !== 0;
    const shown = [Array.from(all).filter(isToken), expected.filter(isToken)] as const;
    return judgeToScale(name, ...shown, this.#sensitivity(name));
  }

  #auxLoss(idsName: string, maskName?: string): number {
    using _frame = scope();
    const inputIds = this.#input(this.#stored.ints(idsName), this.#stored.shape(idsName));
    const attentionMask = maskName === undefined ? undefined : this.#mask(maskName);
    return noGrad(() => this.model.call({ inputIds, attentionMask })).auxLoss?.item() ?? NaN;
  }

  #loss(name: string, idsName: string, labelsName: string, expected: number, maskName?: string): Quantity {
    using _frame = scope();
    const shape = this.#stored.shape(idsName);
    const labels = shifted(this.#stored.ints(labelsName), shape);
    const given = {
      inputIds: this.#input(this.#stored.ints(idsName), shape),
      labels: this.#input(labels, shape),
      attentionMask: maskName === undefined ? undefined : this.#mask(maskName),
    };
    const { loss } = noGrad(() => this.model.call(given));
    return judgeToScale(name, [(loss?.item() ?? NaN) / countOf(labels)], [expected], this.#sensitivity(name));
  }

  /** The mean loss of a batch, and its backward. */
  #backward(ids: Int32Array, shape: readonly number[]): number {
    using _frame = scope();
    const labels = shifted(ids, shape);
    const { loss } = this.model.call({ inputIds: this.#input(ids, shape), labels: this.#input(labels, shape) });
    const mean = loss?.mul(1 / countOf(labels));
    mean?.backward();
    return mean?.item() ?? NaN;
  }

  #input(ids: Int32Array, shape: readonly number[]): Tensor {
    return tensor(this.#device, ids, { shape, dtype: int32 });
  }

  #mask(name: string): Tensor {
    return tensor(this.#device, this.#stored.ints(name), { shape: this.#stored.shape(name), dtype: uint8 });
  }

  /** The change of a quantity by rounding alone; undefined where it is not given. */
  #sensitivity(name: string): number {
    return this.#facts.sensitivity[name] ?? 0;
  }
}

/** Hugging Face's labels, moved to the position that predicts them. */
function shifted(labels: Int32Array, shape: readonly number[]): Int32Array {
  const seq = at(shape, 1, "dim of labels");
  return labels.map((_, i) => i % seq === seq - 1 ? IGNORED : at(labels, i + 1, "label"));
}

/** Number of labels that count. */
function countOf(labels: Int32Array): number {
  return labels.filter((label) => label !== IGNORED).length;
}

function sumOf(values: ArrayLike<number>, of: (value: number) => number): number {
  return Array.from(values).reduce((sum, value) => sum + of(value), 0);
}

/** The values of every tensor of the model's directory, under its name there, and of every parameter as it is in memory. */
function* tensorsOf(
  model: CausalLm,
  valuesOf: (parameter: Parameter) => Tensor | undefined,
): Generator<readonly [name: string, values: ArrayLike<number>]> {
  const apart = [...model.directoryTensors()];
  const names = new Set(apart.map(({ name }) => name));
  const whole = [...plainDirectoryTensors(model)].filter(({ name }) => !names.has(name));
  for (const { name, part, box } of [...apart, ...whole]) {
    const values = part instanceof Parameter ? valuesOf(part)?.toArray() : undefined;
    if (values === undefined) continue;
    const slices = sharedSlices(fullBox(part.shape), box);
    yield [name, slices.flatMap(({ inFirst, length }) => Array.from(values.slice(inFirst, inFirst + length)))];
  }
}

/** Runs what compares a model of a config with a directory. */
async function withModel(
  device: Device,
  directory: string,
  facts: Facts,
  config: Readonly<Record<string, unknown>>,
  run: (comparison: Comparison) => Iterable<Quantity>,
): Promise<readonly Quantity[]> {
  const stored = await StoredTensors.read(`${directory}/expected.safetensors`);
  // PyTorch's results were computed in evaluation mode.
  const model = buildModel(device, config).eval();
  await loadHfWeights(model, directory);
  try {
    return [...run(new Comparison(device, model, facts, stored))];
  } finally {
    model.zeroGrad();
    for (const parameter of model.parameters()) parameter.dispose();
  }
}

/**
 * Compares one directory.
 *
 * @throws what reading the directory or building the model throws
 */
export async function compareDirectory(device: Device, directory: string): Promise<readonly Quantity[]> {
  const [facts, config] = [readFacts(directory), await readHfConfig(directory)];
  const quantities = await withModel(device, directory, facts, config, function* (comparison) {
    yield* comparison.outputs();
    yield* comparison.auxLosses();
    yield* comparison.gradients();
    yield* comparison.steps();
  });
  const { aux } = facts;
  if (aux == null) return quantities;
  const asked = { ...config, output_router_logits: true };
  return [...quantities, ...await withModel(device, directory, facts, asked, (comparison) => comparison.balanced(aux))];
}
