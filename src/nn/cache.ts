/**
 * The states that a model keeps of the tokens that it has seen, so that a text is continued at the cost of its new tokens alone
 * (`past_key_values` of transformers).
 *
 * A layer that looks back has a {@link CacheSlot} for the state that it needs: keys and values, a window of them, a recurrent
 * state. The cache itself knows how far the text has come, and frees what all layers keep in it.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Device } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import { ArgumentError, ShapeError, UseAfterDisposeError } from "../errors.ts";
import { copyElements } from "../ops/convert.ts";
import { sameShape, type Shape, threeSizes } from "../shape.ts";
import { Tensor } from "../tensor/tensor.ts";

/**
 * The states of all layers for one batch of texts. Made by a model's `createCache`.
 *
 * @example
 * ```ts
 * import { int32, launch, noGrad, openModel, scope, tensor } from "fullyshard";
 * await using run = await launch();
 * const sizes = { vocab_size: 257, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4 };
 * const model = await openModel(run, { model_type: "llama", ...sizes });
 * await model.load();
 * using _frame = scope();
 * using cache = model.createCache(3);
 * for (const ids of [[104, 105], [33]]) {
 *   const inputIds = tensor(run.device, ids, { shape: [1, ids.length], dtype: int32 });
 *   noGrad(() => model.call({ inputIds, pastKeyValues: cache }));
 * }
 * if (cache.length !== 3) throw new Error("not all tokens were seen");
 * ```
 */
export class GenerationCache implements Disposable {
  /** Most tokens of each text. */
  readonly maxLength: number;
  readonly #states: Disposable[] = [];
  readonly #limits = new Set<number>();
  #length = 0;
  #disposed = false;

  /** Makes an empty cache for texts of at most `maxLength` tokens. */
  constructor(maxLength: number) {
    this.maxLength = maxLength;
  }

  /** Tokens of each text that every layer has seen: the position of the next one. */
  get length(): number {
    return this.#length;
  }

  /** Counts tokens that every layer has seen. Called by the model at the end of its forward. */
  advance(tokens: number): void {
    this.#length += tokens;
  }

  /** Notes that layers compute tokens otherwise in texts longer than `length`. Called by {@link RotaryTables.of}. */
  limit(length: number): void {
    this.#limits.add(length);
  }

  /**
   * True if the cached tokens would be computed in another way in a text of `length`: then the cache must be cleared and filled
   * again.
   */
  isOutgrownBy(length: number): boolean {
    return [...this.#limits].some((limit) => this.#length <= limit && limit < length);
  }

  /** Forgets all tokens; the memory for them stays. */
  clear(): void {
    this.#length = 0;
  }

  /**
   * Takes over a layer's state. Called by {@link CacheSlot.of}.
   *
   * @throws {UseAfterDisposeError} if the cache was disposed
   */
  adopt(state: Disposable): void {
    if (this.#disposed) throw new UseAfterDisposeError("A generation cache is used after it was disposed");
    this.#states.push(state);
  }

  /** Frees the states of all layers. */
  [Symbol.dispose](): void {
    this.#disposed = true;
    for (const state of this.#states.splice(0)) state[Symbol.dispose]();
  }
}

/**
 * A layer's place in every cache: its state there is made when the layer first asks for it.
 *
 * @example
 * ```ts
 * import { CacheSlot, GenerationCache } from "fullyshard/nn";
 * const slot = new CacheSlot(() => ({ ids: [0], [Symbol.dispose]: () => undefined }));
 * using cache = new GenerationCache(8);
 * slot.of(cache).ids.push(1);
 * if (slot.of(cache).ids.length !== 2) throw new Error("a cache has one state of a layer");
 * ```
 */
export class CacheSlot<State extends Disposable> {
  readonly #make: (cache: GenerationCache) => State;
  readonly #states = new WeakMap<GenerationCache, State>();

  /** `make` makes the layer's state, when the layer first runs with a cache. */
  constructor(make: (cache: GenerationCache) => State) {
    this.#make = make;
  }

  /** The layer's state in a cache. */
  of(cache: GenerationCache): State {
    const kept = this.#states.get(cache);
    if (kept !== undefined) return kept;
    const state = this.#make(cache);
    cache.adopt(state);
    this.#states.set(cache, state);
    return state;
  }
}

/** The state of an attention layer: keys and values of all tokens, in the dtype that they come in. */
export class KeyValues implements Disposable {
  readonly #cache: GenerationCache;
  #keys: Tensor | undefined;
  #values: Tensor | undefined;

  /** Makes an empty part of a cache. */
  constructor(cache: GenerationCache) {
    this.#cache = cache;
  }

  /**
   * Adds keys and values of the tokens that follow those in the cache.
   *
   * @param keys [batch, seq, width]
   * @param values [batch, seq, width], whose width may be another one
   * @returns keys and values of all tokens, [batch, cache.length + seq, width]
   * @throws {ArgumentError} if they are more than the cache has room for, or are recorded for a backward
   * @throws {ShapeError} if the batch or a width changes
   */
  update(keys: Tensor, values: Tensor): readonly [keys: Tensor, values: Tensor] {
    const { maxLength } = this.#cache;
    const allocate = ({ device, shape, dtype }: Tensor, owner: string): Tensor => {
      const [batch, , width] = threeSizes("cache", shape);
      return Tensor.empty(device, [batch, maxLength, width], dtype, owner);
    };
    this.#keys ??= allocate(keys, "cached keys");
    this.#values ??= allocate(values, "cached values");
    return [append(this.#cache, this.#keys, keys), append(this.#cache, this.#values, values)];
  }

  /** Frees both. */
  [Symbol.dispose](): void {
    this.#keys?.dispose();
    this.#values?.dispose();
  }
}

/** The state of a layer that looks back by some tokens: the rows of all, in the dtype that they come in. */
export class PastRows implements Disposable {
  readonly #cache: GenerationCache;
  #rows: Tensor | undefined;

  /** Makes an empty part of a cache. */
  constructor(cache: GenerationCache) {
    this.#cache = cache;
  }

  /**
   * Adds rows of the tokens that follow those in the cache.
   *
   * @param rows [batch, seq, width]
   * @param back tokens that the layer looks back by
   * @returns as many rows of earlier tokens as there are, at most `back`, and these
   * @throws {ArgumentError} {@link ShapeError} as {@link KeyValues.update}
   */
  update(rows: Tensor, back: number): Tensor {
    const { length, maxLength } = this.#cache;
    const { device, dtype } = rows;
    const [batch, , width] = threeSizes("cache", rows.shape);
    this.#rows ??= Tensor.empty(device, [batch, maxLength, width], dtype, "cached rows");
    const all = append(this.#cache, this.#rows, rows);
    const start = Math.max(0, length - back);
    return all.narrow(1, start, at(all.shape, 1, "dim") - start);
  }

  /** Frees the rows. */
  [Symbol.dispose](): void {
    this.#rows?.dispose();
  }
}

/** The state of a layer that keeps as much of any text: float32, zeros before the first token. */
export class RecurrentState implements Disposable {
  readonly #cache: GenerationCache;
  /** State of the layer after the cached tokens, and after the tokens of a call, which replaces it when the call has ended. */
  #states: readonly [kept: Tensor, next: Tensor] | undefined;
  /** Tokens in the cache once that call has ended. */
  #nextLength = 0;

  /** Makes an empty part of a cache. */
  constructor(cache: GenerationCache) {
    this.#cache = cache;
  }

  /**
   * The layer's state after the tokens in the cache, to be overwritten with the state after the next tokens.
   *
   * @param like a tensor of these tokens, [batch, seq, ..]
   * @throws {ArgumentError} if it is recorded for a backward
   * @throws {ShapeError} if the shape changes
   */
  of(like: Tensor, shape: Shape): Tensor {
    requireNoGrad(like);
    const { length } = this.#cache;
    const states = this.#states ??= bothStates(like.device, shape);
    if (!sameShape(states[0].shape, shape)) {
      throw new ShapeError("cache", "batch and width must be those of the tokens in it", shape, states[0].shape);
    }
    const [kept, next] = this.#states = length === this.#nextLength ? [states[1], states[0]] : states;
    if (length === 0) next.device.kernels.fill({ dtype: float32, n: next.numel, value: 0, dst: next.ptr });
    else copyElements(next, kept);
    this.#nextLength = length + at(like.shape, 1, "dim");
    return next;
  }

  /** Frees the states. */
  [Symbol.dispose](): void {
    for (const state of this.#states ?? []) state.dispose();
  }
}

function bothStates(device: Device, shape: Shape): readonly [kept: Tensor, next: Tensor] {
  using taken = new DisposableStack();
  const allocate = (): Tensor => taken.use(Tensor.empty(device, shape, float32, "recurrent state"));
  const states = [allocate(), allocate()] as const;
  taken.move();
  return states;
}

function requireNoGrad({ requiresGrad }: Tensor): void {
  if (!requiresGrad) return;
  throw new ArgumentError("Cannot train through a generation cache: call the model inside noGrad()");
}

/** Appends rows to the rows of the cached tokens; returns all rows. */
function append({ length, maxLength }: GenerationCache, kept: Tensor, added: Tensor): Tensor {
  requireNoGrad(added);
  if (added.ndim !== 3 || added.shape[0] !== kept.shape[0] || added.shape[2] !== kept.shape[2]) {
    throw new ShapeError("cache", "batch and width must be those of the tokens in it", added.shape, kept.shape);
  }
  const seq = at(added.shape, 1, "dim");
  if (length + seq > maxLength) {
    throw new ArgumentError(
      `Cannot add ${seq} tokens to a generation cache that holds ${length} of at most ${maxLength}: create a larger one`,
    );
  }
  using place = kept.narrow(1, length, seq);
  copyElements(place, added);
  return kept.narrow(1, 0, length + seq);
}
