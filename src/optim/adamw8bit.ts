/**
 * AdamW with states in 8 bits (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization"), as bitsandbytes' `AdamW8bit`:
 * a code for each element, and the largest magnitude of each block of 256 elements of a parameter. Parameters of fewer than 4096 elements
 * have float32 states.
 *
 * Note [Blocks between ranks]: a cut between ranks may divide a block. Each rank with elements of a block keeps the
 * block's largest magnitude, which is the maximum over these ranks: so codes have the same bits as on one rank. The rank on which the
 * block begins saves and loads the magnitude, and sends it to the other ranks in the first update after a load.
 *
 * @module
 */
import { at } from "../at.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { float32, uint8 } from "../dtype.ts";
import { ArgumentError, InternalError, UnsupportedError } from "../errors.ts";
import { numelOf } from "../shape.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { elementSlices, rangeLayout, type ShardLayout } from "../tensor/shard_layout.ts";
import { type AdamWOptions, adamwRule, type AdamWSettings, requireAdamW } from "./adamw.ts";
import { dynamicMap } from "./dynamic_map.ts";
import type { ParamGroupOptions } from "./groups.ts";
import { Optimizer } from "./optimizer.ts";
import { isActive } from "./records.ts";
import type { StateSpec, UpdateCall, UpdateRule } from "./rule.ts";
import type { WorkBuffer, WorkMemory } from "./work_memory.ts";

/** Elements of a block. */
const BLOCK = 256;
/** Least number of elements of a parameter whose states are in 8 bits. */
const LEAST_NUMEL = 4096;

/** This rank's elements of a parameter, and their blocks. The first block may begin on an earlier rank. */
interface Range {
  readonly begin: number;
  readonly numel: number;
  /** Number of the first block. */
  readonly firstBlock: number;
  readonly blocks: number;
}

/** @throws {ArgumentError} if the rank's elements are not a range of the parameter */
function rangeOf(layout: ShardLayout, fqn: string): Range {
  const slices = elementSlices(layout);
  const [slice] = slices;
  if (slices.length > 1) {
    throw new ArgumentError(
      `Cannot keep the states of '${fqn}' in blocks of ${BLOCK}: a rank keeps ${slices.length} ranges of it; shard it flat or along dim 0`,
    );
  }
  if (slice === undefined) return { begin: 0, numel: 0, firstBlock: 0, blocks: 0 };
  const firstBlock = Math.floor(slice.offset / BLOCK);
  const blocks = Math.ceil((slice.offset + slice.length) / BLOCK) - firstBlock;
  return { begin: slice.offset, numel: slice.length, firstBlock, blocks };
}

const ownRange = ({ fqn, storage: { shard } }: Parameter): Range => rangeOf(shard, fqn);
/** The first block of the range has begun on another rank: 1, else 0. */
const begun = ({ begin, numel }: Range): number => Number(numel > 0 && begin % BLOCK !== 0);

/** The blocks that begin on this rank. */
function largestLayout(parameter: Parameter): ShardLayout {
  const range = ownRange(parameter);
  const shape = [Math.ceil(numelOf(parameter.globalShape) / BLOCK)];
  return rangeLayout(shape, range.firstBlock + begun(range), range.blocks - begun(range));
}

/** A state in 8 bits, by AdamW's name of it. */
interface State8 {
  readonly moment: "expAvg" | "expAvgSq";
  readonly codes: string;
  readonly largest: string;
  readonly isSigned: boolean;
}

const STATES: readonly State8[] = [
  { moment: "expAvg", codes: "state1", largest: "absmax1", isSigned: true },
  { moment: "expAvgSq", codes: "state2", largest: "absmax2", isSigned: false },
];

const RULE32: UpdateRule<AdamWSettings> = adamwRule();

const RULE8: UpdateRule<AdamWSettings> = {
  states: STATES.flatMap(({ codes, largest }): readonly StateSpec[] => [
    { name: codes, dtype: uint8 },
    { name: largest, layout: largestLayout, leadingPad: (parameter) => begun(ownRange(parameter)) },
  ]),
  record: RULE32.record,
  prepare: prepare8,
};

/** Dequantizes the states of a bucket, updates, and quantizes them. */
function prepare8({ device, bucket, args, state }: UpdateCall<AdamWSettings>, work: WorkMemory): () => void {
  if (device.traits.hostWork.isCapturing) {
    throw new UnsupportedError(
      "Cannot capture a step of AdamW with 8-bit states: the host writes its maps in each step. Train without graphs",
    );
  }
  const { kernels } = device;
  const members = [...bucket.members.entries()].map(([index, member]) => ({
    ...member,
    index,
    range: ownRange(member.parameter),
  }));
  const active = members.filter(isActive);
  const borders = new BlockBorders(members.map(({ parameter }) => parameter), device, work);
  const planFloats = (count: number): WorkBuffer => work.plan(device, count * float32.byteLength);
  const moments = STATES.map((moment) => {
    const values = dynamicMap(moment.isSigned);
    return { ...moment, values, map: work.plan(device, values.byteLength), wide: planFloats(bucket.length) };
  });
  const newLargest = planFloats(Math.max(0, ...active.map(({ range }) => range.blocks)));
  const largestPtr = (name: string, index: number): DevicePtr => {
    const { begin } = at(bucket.states.get(name)?.parts ?? [], index, `part of '${name}'`);
    const { range } = at(members, index, "member");
    return devicePtr(state(name) + (begin - begun(range)) * float32.byteLength);
  };
  const exchange = (name: string, gate: DevicePtr | undefined): void => {
    borders.exchange((index) => largestPtr(name, index), gate);
  };
  const dequantize = ({ codes, largest, map, wide }: typeof moments[number]): void => {
    for (const { index, offset: first, range: { begin, numel: n, blocks } } of members) {
      if (n === 0) continue;
      kernels.dequantizeBlocks({
        ...{ n, first: begin % BLOCK, block: BLOCK, blocks, map: map.ptr },
        dst: devicePtr(wide.ptr + first * float32.byteLength),
        codes: devicePtr(state(codes) + first),
        largest: largestPtr(largest, index),
      });
    }
  };
  const quantize = ({ codes, largest, map, wide }: typeof moments[number]): void => {
    for (const { index, offset: first, range: { begin, numel: n, blocks } } of active) {
      if (n === 0) continue;
      const src = devicePtr(wide.ptr + first * float32.byteLength);
      kernels.largestOfBlocks({ blocks, n, first: begin % BLOCK, block: BLOCK, dst: newLargest.ptr, src });
      // A shut gate keeps the old magnitudes beside the old codes.
      const dst = largestPtr(largest, index);
      kernels.lerp({ n: blocks, weight: 1, dst, src: newLargest.ptr, gate: args.gate });
    }
    exchange(largest, args.gate);
    for (const { index, offset: first, range: { begin, numel: n, blocks } } of active) {
      if (n === 0) continue;
      kernels.quantizeBlocks({
        ...{ n, first: begin % BLOCK, block: BLOCK, blocks, map: map.ptr, gate: args.gate },
        codes: devicePtr(state(codes) + first),
        src: devicePtr(wide.ptr + first * float32.byteLength),
        largest: largestPtr(largest, index),
      });
    }
  };
  return () => {
    for (const { map, values } of moments) device.copyIn(map.ptr, new Uint8Array(values.buffer));
    if (bucket.isFresh) { for (const { largest } of moments) exchange(largest, undefined); }
    for (const moment of moments) dequantize(moment);
    const [expAvg, expAvgSq] = moments.map(({ wide }) => wide.ptr);
    if (expAvg === undefined || expAvgSq === undefined) throw new InternalError("AdamW has two states");
    kernels.adamw({ ...args, expAvg, expAvgSq });
    for (const moment of moments) quantize(moment);
  };
}

/** The blocks of some parameters that lie on more than one rank. See Note [Blocks between ranks]. */
class BlockBorders {
  readonly #parameters: readonly Parameter[];
  readonly #device: Device;
  /** A float32 for each divided block. */
  readonly #slots: WorkBuffer | undefined;
  /** Number of divided blocks, on any rank. */
  #count = 0;
  /** Divided blocks with elements on this rank: number among all, member, and place among the member's blocks. */
  readonly #own: { readonly slot: number; readonly index: number; readonly local: number }[] = [];

  constructor(parameters: readonly Parameter[], device: Device, work: WorkMemory) {
    this.#parameters = parameters;
    this.#device = device;
    for (const [index, parameter] of parameters.entries()) {
      const { fqn, storage: { sharers } } = parameter;
      const own = ownRange(parameter);
      const divided = new Set<number>();
      for (let rank = 1; rank < (sharers?.ranks.size ?? 0); rank++) {
        const range = sharers === undefined ? own : rangeOf(sharers.layoutOf(rank), fqn);
        if (begun(range) === 1) divided.add(range.firstBlock);
      }
      for (const block of divided) {
        const local = block - own.firstBlock;
        if (own.numel > 0 && local >= 0 && local < own.blocks) this.#own.push({ slot: this.#count, index, local });
        this.#count++;
      }
    }
    this.#slots = this.#count === 0 ? undefined : work.plan(device, this.#count * float32.byteLength);
  }

  /** Takes the maximum over all ranks of each divided block's largest magnitude. */
  exchange(largest: (index: number) => DevicePtr, gate: DevicePtr | undefined): void {
    const reducer = this.#parameters[0]?.storage.normReducer;
    if (this.#slots === undefined || reducer === undefined) return;
    const { ptr: slots } = this.#slots;
    const { kernels } = this.#device;
    const slotPtr = (slot: number): DevicePtr => devicePtr(slots + slot * float32.byteLength);
    const own = this.#own.map(({ slot, index, local }) => {
      return { there: slotPtr(slot), here: devicePtr(largest(index) + local * float32.byteLength) };
    });
    kernels.fill({ dtype: float32, n: this.#count, value: 0, dst: slots });
    for (const { there, here } of own) {
      kernels.cast({ dstDtype: float32, srcDtype: float32, n: 1, dst: there, src: here });
    }
    reducer.allReduce(slots, this.#count, float32, "max");
    for (const { there, here } of own) kernels.lerp({ n: 1, weight: 1, dst: here, src: there, gate });
  }
}

/**
 * AdamW over float32 master weights with states in 8 bits: about 2 bytes an element instead of 8.
 *
 * @example
 * ```ts
 * import { AdamW8bit } from "fullyshard";
 * import { openDevice } from "fullyshard/device";
 * import { Linear } from "fullyshard/nn";
 * const layer = new Linear(await openDevice("cpu"), 64, 64, { bias: false });
 * const optimizer = new AdamW8bit(layer.parameters(), { learningRate: 1e-3 });
 * if (optimizer.stateBytes !== 2 * (4096 + 4 * 16)) throw new Error("a byte an element, and a float32 a block");
 * ```
 */
export class AdamW8bit extends Optimizer<AdamWSettings> {
  /**
   * Omitted options have the defaults of PyTorch's AdamW.
   *
   * @throws {ArgumentError} if a setting is out of range
   */
  constructor(
    parameters: Iterable<Parameter> | Iterable<ParamGroupOptions<AdamWSettings>>,
    options: AdamWOptions = {},
  ) {
    super(parameters, { learningRate: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weightDecay: 0.01 }, options);
  }

  /** Refuses settings that make no sense. */
  protected override check(settings: AdamWSettings): void {
    requireAdamW(settings);
  }

  /** Names of the settings that only it has. */
  protected override otherSettings(): { readonly betas: true; readonly eps: true } {
    return { betas: true, eps: true };
  }

  /** The rule of 8 bits, or AdamW's for small parameters and for parts of parameters. */
  protected override ruleOf({ globalShape, placements }: Parameter): UpdateRule<AdamWSettings> {
    return numelOf(globalShape) < LEAST_NUMEL || placements.length > 0 ? RULE32 : RULE8;
  }
}
