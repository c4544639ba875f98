/**
 * Rows of several documents, whose tokens must hear those of their own document alone: the same loss and gradients as documents in
 * rows of their own, and no bit of a document changed by another one's tokens.
 *
 * @module
 */
import assert from "node:assert/strict";
import type { Device } from "../../src/device/device.ts";
import { float32, int32 } from "../../src/dtype.ts";
import type { CausalLm } from "../../src/models/causal_lm.ts";
import { buildModel } from "../../src/models/registry.ts";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { IGNORE_INDEX } from "../../src/nn/functional.ts";
import { noGrad } from "../../src/autograd/mode.ts";
import { tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";

/** Lengths of the documents in each row. */
const ROWS = [[23, 1, 17, 19], [9, 51]] as const;
const SEQ = 60;

/** A row's part: where it begins in all tokens of all rows, and how many there are. */
interface Place {
  readonly row: number;
  readonly start: number;
  readonly length: number;
}

const PLACES: readonly Place[] = ROWS.flatMap((lengths, row) =>
  lengths.map((length, i) => {
    return { row, length, start: row * SEQ + lengths.slice(0, i).reduce((sum, before) => sum + before, 0) };
  })
);

/** Token ids of all rows: those of each document are of a range of their own, so that rows of an embedding belong to one. */
function idsFor(vocabSize: number, changed?: number): Int32Array<ArrayBuffer> {
  const range = Math.floor(vocabSize / PLACES.length);
  return Int32Array.from(PLACES.flatMap(({ length }, document) => {
    return Array.from({ length }, (_, i) => {
      // Tokens at both ends of a document are those that a leak over a border reaches first.
      const other = document === changed && (i === 0 || i === length - 1 || i % 5 === 2) ? 1 : 0;
      return document * range + (7 * i * i + 3 * i + other) % range;
    });
  }));
}

/** Each token's label: the next of its document, of those documents that count. */
function labelsOf(ids: Int32Array, counts: (document: number) => boolean = () => true): Int32Array<ArrayBuffer> {
  const labels = new Int32Array(ids.length).fill(IGNORE_INDEX);
  for (const [document, { start, length }] of PLACES.entries()) {
    if (counts(document)) labels.set(ids.subarray(start + 1, start + length), start);
  }
  return labels;
}

const STARTS = Int32Array.from(PLACES.flatMap(({ row, start, length }) => {
  return Array.from({ length }, () => start - row * SEQ);
}));

/** A model with its weights, in evaluation, where nothing is drawn. */
function modelOf(device: Device, hfConfig: Readonly<Record<string, unknown>>): CausalLm {
  const model = buildModel(device, hfConfig);
  initializeParameters(model, 3);
  return model.eval();
}

/** The inputs of rows of one length. */
function inputsOf(device: Device, arrays: Readonly<Record<string, Int32Array<ArrayBuffer>>>, shape: readonly number[]) {
  return Object.fromEntries(
    Object.entries(arrays).map(([name, values]) => [name, tensor(device, values, { shape, dtype: int32 })]),
  );
}

/** Gradients of all parameters, which are cleared. */
function takeGradients(model: CausalLm): Map<string, Float32Array> {
  const gradients = new Map<string, Float32Array>();
  for (const parameter of model.parameters()) {
    const { grad } = parameter;
    if (grad !== undefined) gradients.set(parameter.fqn, Float32Array.from(grad.to(float32).toArray()));
  }
  model.zeroGrad();
  return gradients;
}

/** Sum of the loss of all rows, and gradients. */
function packed(model: CausalLm, ids: Int32Array<ArrayBuffer>, labels: Int32Array<ArrayBuffer>) {
  using _frame = scope();
  const { inputIds, ...others } = inputsOf(
    model.device,
    { inputIds: ids, labels, documentStarts: STARTS },
    [ROWS.length, SEQ],
  );
  const { loss } = model.call({ inputIds: inputIds ?? assert.fail(), ...others });
  assert.ok(loss !== undefined);
  loss.backward();
  return { loss: loss.item(), gradients: takeGradients(model) };
}

/** The same of each document in a row of its own. */
function alone(model: CausalLm, ids: Int32Array<ArrayBuffer>, labels: Int32Array<ArrayBuffer>) {
  let sum = 0;
  for (const { start, length } of PLACES) {
    using _frame = scope();
    const part = { inputIds: ids.slice(start, start + length), labels: labels.slice(start, start + length) };
    const { inputIds, ...others } = inputsOf(model.device, part, [1, length]);
    const { loss } = model.call({ inputIds: inputIds ?? assert.fail(), ...others });
    assert.ok(loss !== undefined);
    loss.backward();
    sum += loss.item();
  }
  return { loss: sum, gradients: takeGradients(model) };
}

/** Asserts that rows of documents have the loss and the gradients of the documents alone, within 1e-6 of the mean over tokens. */
export function requireSameAsAlone(device: Device, hfConfig: Readonly<Record<string, unknown>>): void {
  const model = modelOf(device, hfConfig);
  const ids = idsFor(model.vocabSize);
  const labels = labelsOf(ids);
  const tokens = labels.filter((label) => label !== IGNORE_INDEX).length;
  const [together, apart] = [packed(model, ids, labels), alone(model, ids, labels)];
  const near = (got: number, want: number, what: string): void => {
    const off = Math.abs(got - want) / tokens;
    assert.ok(off <= 1e-6 * Math.max(1, Math.abs(want) / tokens), `${what}: ${got / tokens}, alone ${want / tokens}`);
  };
  near(together.loss, apart.loss, "loss");
  assert.deepEqual([...together.gradients.keys()], [...apart.gradients.keys()]);
  for (const [name, gradient] of together.gradients) {
    const want = apart.gradients.get(name) ?? assert.fail();
    gradient.forEach((value, i) => near(value, want[i] ?? NaN, `${name}[${i}]`));
  }
}

/** The scores of all tokens. */
function logitsOf(model: CausalLm, ids: Int32Array<ArrayBuffer>): Float32Array {
  using _frame = scope();
  const { inputIds, ...others } = inputsOf(model.device, { inputIds: ids, documentStarts: STARTS }, [ROWS.length, SEQ]);
  const { logits } = noGrad(() => model.call({ inputIds: inputIds ?? assert.fail(), ...others }));
  return Float32Array.from(logits?.to(float32).toArray() ?? assert.fail());
}

/** Places at which two lists have other bits. */
function differing(a: Float32Array, b: Float32Array): number[] {
  const [x, y] = [new Uint32Array(a.buffer), new Uint32Array(b.buffer)];
  assert.equal(x.length, y.length);
  // The sign of a zero is no value.
  return [...x.keys()].filter((i) => x[i] !== y[i] && !(a[i] === 0 && b[i] === 0));
}

/**
 * Asserts that other tokens in each of some documents change its scores, and no bit of the scores of another; nor of a gradient, where the loss
 * is of another document.
 */
export function requireNoLeak(
  device: Device,
  hfConfig: Readonly<Record<string, unknown>>,
  documents: readonly number[] = [0, 1, 2, 4],
): void {
  const model = modelOf(device, hfConfig);
  const ids = idsFor(model.vocabSize);
  const before = logitsOf(model, ids);
  for (const changed of documents) {
    const others = idsFor(model.vocabSize, changed);
    const places = differing(before, logitsOf(model, others)).map((at) => Math.floor(at / model.vocabSize));
    const { start, length } = PLACES[changed] ?? assert.fail();
    assert.ok(places.length > 0, "other tokens give other scores");
    const reached = places.filter((place) => place < start || place >= start + length);
    assert.deepEqual([...new Set(reached)], [], `tokens that document ${changed} from ${start} on reaches`);
    const counts = (document: number): boolean => document !== changed;
    const [first, second] = [
      packed(model, ids, labelsOf(ids, counts)),
      packed(model, others, labelsOf(others, counts)),
    ];
    assert.equal(first.loss, second.loss);
    for (const [name, gradient] of first.gradients) {
      assert.deepEqual(differing(gradient, second.gradients.get(name) ?? assert.fail()), [], `gradient of '${name}'`);
    }
  }
}
