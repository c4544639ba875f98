/**
 * The storage of a parameter that has all of its elements on this rank, in memory of its own.
 *
 * @module
 */
import type { Buffer } from "../device/buffer.ts";
import { NO_PTR } from "../device/device.ts";
import type { DType } from "../dtype.ts";
import { GradientSlot } from "./gradient_slot.ts";
import { reduceOver } from "./norm_reducer.ts";
import type { Parameter } from "./parameter.ts";
import type { FlatShard, ParameterStorage } from "./parameter_storage.ts";
import { fullLayout } from "./shard_layout.ts";

/** The storage of a parameter without parallelism. Its flat shard, and so its optimizer states, stay when it is replicated. */
export function plainStorage(parameter: Parameter, buffer: Buffer, dtype: DType): ParameterStorage {
  const sink = new GradientSlot({ onFinish: () => parameter.announceGradient() });
  const flatShard: FlatShard = {
    dtype,
    device: buffer.device,
    length: parameter.numel,
    get param() {
      return buffer.ptr;
    },
    get grad() {
      return parameter.grad?.ptr ?? NO_PTR;
    },
    beginWrite: () => {},
    endWrite: () => void buffer.version++,
  };
  return {
    kind: "plain",
    shard: parameter.globalLayout(fullLayout(parameter.shape)),
    flatShard,
    sink,
    reducer: undefined,
    normReducer: reduceOver(parameter.placements.map(({ axis }) => axis.normReducer)),
    hasValues: () => buffer.hasMemory,
    materialize() {
      if (!buffer.hasMemory) buffer.allocateMemory();
    },
    vacate: () => buffer.freeMemory(),
    hasUnreduced: () => false,
    gradient: () => sink.gradient(),
    clearGradient: () => sink.clear(),
  };
}
