/**
 * Messages between the demo's page and its ranks: what a rank is told to do, and what of its trace it tells.
 *
 * @module
 */
import type { LoopbackWorld } from "../comm/control/workers.ts";
import type { MemoryTerms } from "../device/allocator.ts";
import type { TraceCategory, Track } from "../runtime/trace.ts";
import type { DemoSettings } from "./settings.ts";

/** Orders to a rank's Worker. */
export interface DemoOrder {
  readonly settings: DemoSettings;
  readonly rank: number;
  readonly text: string;
  readonly world: LoopbackWorld;
  /** A further world, in which the ranks measure the other strategy. */
  readonly otherWorld: LoopbackWorld;
  /** Most tokens of the sample at the end. */
  readonly sampleTokens: number;
  /** Words of {@link Pace}; undefined where a page may share no memory. */
  readonly pace: Int32Array | undefined;
}

/** A begin or an end of a span of a rank's trace. */
export interface DemoEvent {
  readonly phase: "begin" | "end";
  readonly track: Track;
  readonly category: TraceCategory;
  /** The span's name, as `forward model.layers.0` or `all-gather model.layers.0`. */
  readonly name: string;
  /** The unit's name; empty for a step. */
  readonly unit: string;
  /** Milliseconds of the rank's clock since 1970. */
  readonly time: number;
  readonly step: number;
  /** Bytes that a collective moves over all ranks. */
  readonly bytes?: number | undefined;
  /** Memory of the rank at this moment, in bytes by kind. */
  readonly memory: MemoryTerms;
}

/** True for the call in which the optimizer writes a rank's part of a unit. */
export function isUpdate(name: string): boolean {
  return name.startsWith("write ");
}

/** True for the call that reduces gradients: of a unit, or of a bucket of a replicated model. */
export function isReduction(name: string): boolean {
  return name.startsWith("reduce-scatter ") || name.startsWith("all-reduce gradient bucket");
}

/** Memory of a rank under a strategy. */
export interface MeasuredMemory {
  /** Bytes between steps. */
  readonly rest: MemoryTerms;
  /** Bytes at the highest moment of a step. */
  readonly peak: MemoryTerms;
}

/** A step of a rank that has ended. */
export interface DemoStep extends MeasuredMemory {
  readonly step: number;
  readonly loss: number;
  readonly gradNorm: number;
  readonly tokens: number;
}

/** A unit of the model: parameters that are gathered and reduced together. */
export interface DemoUnit {
  readonly name: string;
  /** Number of its parameters' elements, over all ranks. */
  readonly numel: number;
}

/** Messages of a rank's Worker. */
export type DemoMessage =
  & { readonly rank: number }
  & (
    | { readonly type: "ready"; readonly units: readonly DemoUnit[]; readonly other: MeasuredMemory }
    | {
      readonly type: "events";
      readonly events: readonly DemoEvent[];
      /** True if the rank waits behind them until the page lets it go on. */
      readonly waits: boolean;
    }
    | { readonly type: "step"; readonly step: DemoStep }
    | { readonly type: "sample"; readonly text: string }
    | { readonly type: "end" }
    | { readonly type: "failed"; readonly name: string; readonly message: string }
  );
