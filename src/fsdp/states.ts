/**
 * The states of a flat segment and the table of moves between them. A segment has three kinds of memory, each of which is in one
 * state: its parameters ({@link ShardedState}, PyTorch's name), its unsharded gradient, and its reduced gradient. They are independent, as
 * gradients add up while parameters are gathered and freed. `gathered.ts` moves the first, `gradients.ts` the others. A move that the
 * table does not have is refused.
 *
 * @module
 */
import { InternalError, UseAfterDisposeError } from "../errors.ts";

/** The state of a segment's parameters. */
export type ShardedState =
  /** Only the window is open, and not even that if the shard is offloaded. `dispose` closes it. */
  | "unopened"
  /** The shard exists: master weights and window. It exists in the later states too, until `dispose` frees it. */
  | "sharded"
  /** The unsharded buffer is allocated, and the gather stream writes it. It is read or freed only after a wait for the gather. */
  | "gathering"
  /** The compute stream may read the unsharded buffer. `reshard` frees it, on that stream, so after all that was enqueued there. */
  | "unsharded"
  /**
   * The unsharded buffer is freed, and this rank keeps its shard of it over fewer ranks (the post-forward shard). The next gather reads
   * and frees that, or `reshard` frees it.
   */
  | "sharded-post-forward"
  /** Nothing is left. */
  | "disposed";

/** The state of a segment's unsharded gradient: `world` shards in the reduce dtype. */
export type UnshardedGradientState =
  /** It has no memory: no backward has contributed yet, or its reduction is enqueued and the root has taken it over. */
  | "none"
  /** Backward passes add to it on the compute stream. The reduction takes it over, or `clearGradient` of the last parameter frees it. */
  | "accumulating";

/** The state of a segment's reduced gradient: this rank's shard of the sums over ranks, in float32. */
export type ReducedGradientState =
  /** It has no memory: nothing was reduced since `clearGradient`. */
  | "none"
  /**
   * Reduce-scattered, and not yet all-reduced over replicas or given to a hook. Freed by the all-reduce (or made the sharded gradient,
   * if there is none), `clearGradient` of the last parameter, a failed pass, or `resetIterState`. A sharded gradient of earlier passes
   * may exist beside it.
   */
  | "partial"
  /** The reduce stream writes the sharded gradient. It is read or freed only after a wait for the reduction. */
  | "reducing"
  /** The compute stream may read the sharded gradient. `clearGradient` of the last parameter frees it. */
  | "reduced";

/** Moves of parameters. */
export type ParameterMove =
  | "open"
  | "gather"
  | "fail to gather"
  | "use"
  | "reshard"
  | "reshard post forward"
  | "dispose";
/** Moves of the unsharded gradient. */
export type UnshardedGradientMove = "contribute" | "hand over" | "free";
/** Moves of the reduced gradient. */
export type ReducedGradientMove = "reduce" | "reduce partially" | "all-reduce" | "wait for" | "free";

/** One kind of memory of a segment. */
export interface StateMachine<State extends string, Move extends string> {
  /** Its name in messages. */
  readonly name: string;
  /** The state that it begins in. */
  readonly first: State;
  /** For each move, the states in which it is allowed, each with the state that follows. */
  readonly moves: Readonly<Record<Move, Readonly<Partial<Record<State, State>>>>>;
}

/** The table of moves. */
export const SEGMENT_MOVES: {
  readonly parameters: StateMachine<ShardedState, ParameterMove>;
  readonly unshardedGradient: StateMachine<UnshardedGradientState, UnshardedGradientMove>;
  readonly reducedGradient: StateMachine<ReducedGradientState, ReducedGradientMove>;
} = {
  parameters: {
    name: "parameters",
    first: "unopened",
    moves: {
      "open": { unopened: "sharded" },
      "gather": { sharded: "gathering", "sharded-post-forward": "gathering" },
      "fail to gather": { gathering: "sharded" },
      "use": { gathering: "unsharded" },
      "reshard": { unsharded: "sharded", "sharded-post-forward": "sharded" },
      "reshard post forward": { unsharded: "sharded-post-forward" },
      "dispose": { unopened: "disposed", sharded: "disposed" },
    },
  },
  unshardedGradient: {
    name: "unsharded gradient",
    first: "none",
    moves: {
      "contribute": { none: "accumulating", accumulating: "accumulating" },
      "hand over": { accumulating: "none" },
      "free": { none: "none", accumulating: "none" },
    },
  },
  reducedGradient: {
    name: "reduced gradient",
    first: "none",
    moves: {
      "reduce": { none: "reducing", partial: "partial", reducing: "reducing", reduced: "reducing" },
      "reduce partially": { none: "partial", partial: "partial", reducing: "partial", reduced: "partial" },
      "all-reduce": { partial: "reducing" },
      "wait for": { none: "none", partial: "partial", reducing: "reduced", reduced: "reduced" },
      "free": { none: "none", partial: "none", reducing: "none", reduced: "none" },
    },
  },
};

/** The text of an error that refuses to use a segment whose memory is gone for good. */
export function disposedText(name: string): string {
  return `Cannot use '${name}': its sharding was disposed, undone or merged into another unit`;
}

/** The present state of one kind of memory of one segment. */
export class MemoryState<State extends string, Move extends string> {
  readonly #kind: StateMachine<State, Move>;
  readonly #nameOf: () => string;
  #state: State;

  /** @param nameOf gives the present name of the segment */
  constructor(kind: StateMachine<State, Move>, nameOf: () => string) {
    this.#kind = kind;
    this.#nameOf = nameOf;
    this.#state = kind.first;
  }

  /** The present state. */
  get state(): State {
    return this.#state;
  }

  /** Moves to the next state. @throws as {@link require} */
  take(move: Move): void {
    this.#state = this.require(move);
  }

  /**
   * Checks that the present state allows a move, before the caller allocates or frees anything for it.
   *
   * @returns the state that the move leads to
   * @throws {UseAfterDisposeError} if the memory is gone for good
   * @throws {InternalError} naming the segment, its state, the move and the states that allow it
   */
  require(move: Move): State {
    const { name: kind, moves } = this.#kind;
    const state = this.#state;
    const next = moves[move][state];
    if (next !== undefined) return next;
    const name = this.#nameOf();
    if (state === "disposed") throw new UseAfterDisposeError(disposedText(name));
    const begins = Object.keys(moves[move]).map((one) => `'${one}'`).join(" or ");
    throw new InternalError(
      `invalid transition '${move}' of the ${kind} of '${name}': state is '${state}', allowed from ${begins}. A custom all-gather or ` +
        "reduce-scatter must not call unshard() or reshard() on its own unit",
    );
  }
}
