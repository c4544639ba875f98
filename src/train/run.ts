/**
 * A process's part in a run: its device, its ranks, and the functions that a training loop calls each step.
 *
 * @module
 */
import { type DeviceMesh, deviceMesh, type MeshShape } from "../comm/mesh.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { tellingEarlyEnd } from "../comm/data/mpi/early_end.ts";
import { GROUP_OPTIONS, openProcessGroup, type ProcessGroupOptions } from "../comm/registry.ts";
import { type KnownKeys, requireKnownKeys } from "../config/known_keys.ts";
import type { Batch } from "../data/micro_batch.ts";
import type { Device } from "../device/device.ts";
import { DEVICE_OPTIONS, type DeviceOptions, openDevice } from "../device/registry.ts";
import type { DeviceEvent } from "../device/stream.ts";
import { ArgumentError, ShapeError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { stepsTakenOn } from "../optim/optimizer.ts";
import { processEnvironment } from "../runtime/env.ts";
import { readRankEnvironment } from "../runtime/rank_environment.ts";
import { Logger, standardErrorSink } from "../runtime/log.ts";
import { ignoreFileSizeSignal } from "../runtime/signals.ts";
import { terminal } from "../runtime/terminal.ts";
import { Trace } from "../runtime/trace.ts";
import { Tensor } from "../tensor/tensor.ts";
import { untrack } from "../tensor/scope.ts";
import { takeAll } from "../unwind.ts";
import { valueText } from "../words.ts";
import {
  dataRanksOf,
  requirePositionRanks,
  requireStageRanks,
  runAxes,
  type SamplePart,
  samplePartOf,
} from "./axes.ts";
import { backwardStep } from "./backward.ts";
import { writeFlightRecord } from "./flight.ts";
import { hostSizes } from "./host_sizes.ts";
import { requireOpenedModel } from "./opened_model.ts";
import { tellUncaughtErrors } from "./failure.ts";
import { openTrace } from "./trace.ts";

/** Options of {@link launch}; options left out come from the environment. */
export interface LaunchOptions extends Omit<DeviceOptions, "trace">, Omit<ProcessGroupOptions, "device"> {
  /**
   * Name of the device; `cuda`: the GPU with index LOCAL_RANK.
   *
   * @default cpu
   */
  readonly device?: string;
  /**
   * Lengths of the axes of the run's mesh, outermost first: `replicate`, `shard`, `expert`, `context`, `tensor`, `pipeline`, or torchtitan's names of them.
   * One may be -1 for all remaining ranks. If none carries samples, an axis `shard` of one rank comes first.
   *
   * @default { shard: all ranks }
   */
  readonly axes?: MeshShape | undefined;
  /** Receives notices for the user. @default standard error, a line each */
  readonly log?: Logger;
  /** Folder of this rank's trace: see `docs/trace.md`. @default FULLYSHARD_TRACE, else none */
  readonly trace?: string | undefined;
}

/** Names of the options of {@link launch}. */
const LAUNCH_OPTIONS: KnownKeys<LaunchOptions> = {
  ...DEVICE_OPTIONS,
  ...GROUP_OPTIONS,
  ...{ device: true, axes: true, log: true, trace: true },
};

/** Values of {@link Run.log} by name: numbers and texts, or scalars on the device. */
export type LogValues = Readonly<Record<string, number | string | Tensor>>;

export interface RunParts extends Pick<Run, "device" | "group"> {
  /** Ranks on a host. @default all */
  readonly localWorldSize?: number | undefined;
  /** See {@link Run.hasEqualHosts}. @default true */
  readonly hasEqualHosts?: boolean | undefined;
  /** Lengths of the axes of the mesh. @default one, `shard`, of all ranks */
  readonly axes?: MeshShape | undefined;
  /** Closed with the run. */
  readonly trace?: Trace | undefined;
  /** Receives a line of {@link Run.log}. */
  readonly print: (line: string) => void;
}

/** A run, as one rank sees it. Made by {@link launch}. */
export class Run implements AsyncDisposable {
  /** The device of this rank. */
  readonly device: Device;
  /** All ranks of the run. */
  readonly group: ProcessGroup;
  /** All ranks as a mesh: of one axis, `shard`, unless the run was given axes. */
  readonly mesh: DeviceMesh;
  /**
   * The ranks that read different data, this one included: losses, tokens and gradients are summed over them. All ranks, unless an axis
   * is `tensor` or `pipeline`.
   */
  readonly data: ProcessGroup;
  /** This rank's part of the samples; ranks that differ on a `tensor` or `pipeline` axis read the same ones. */
  readonly samples: SamplePart;
  /** Ranks on a host; 1 if {@link hasEqualHosts} is false, as if each rank were on a host of its own. */
  readonly localWorldSize: number;
  /** True if hosts have equal numbers of ranks, and the ranks of each host follow each other. */
  readonly hasEqualHosts: boolean;
  #hybridMesh: DeviceMesh | undefined;
  readonly #print: (line: string) => void;
  readonly #trace: Trace | undefined;
  /** Lines that wait until the device has computed their values. */
  readonly #lines: { readonly ready: DeviceEvent; readonly print: () => void }[] = [];

  /**
   * Use {@link launch}.
   *
   * @throws {ArgumentError} if an axis has an unknown name, or the axes have another number of ranks
   */
  constructor(
    { device, group, print, trace, localWorldSize = group.size, hasEqualHosts = true, axes = { shard: group.size } }:
      RunParts,
  ) {
    this.device = device;
    this.group = group;
    this.localWorldSize = localWorldSize;
    this.hasEqualHosts = hasEqualHosts;
    this.mesh = deviceMesh(group, runAxes(axes, group.size));
    this.data = dataRanksOf(this.mesh);
    this.samples = samplePartOf(this.mesh);
    this.#print = print;
    this.#trace = trace;
  }

  /**
   * All ranks as a mesh of two axes: the ranks of a host are `shard`, hosts are `replicate` (PyTorch's HYBRID_SHARD). Made at its
   * first use, which is collective.
   *
   * @throws {ArgumentError} if hosts have unequal numbers of ranks
   */
  get hybridMesh(): DeviceMesh {
    const { group, localWorldSize: shard } = this;
    if (!this.hasEqualHosts) {
      throw new ArgumentError(
        `Cannot shard over the ranks of each host: hosts of this run have unequal numbers of its ${group.size} ranks, or the ranks ` +
          "of one do not follow each other. Start as many on each, such as by 'mpirun --map-by ppr:4:node', or give axes",
      );
    }
    return this.#hybridMesh ??= deviceMesh(group, { replicate: group.size / shard, shard });
  }

  /** True if this rank prints and logs for all ranks. */
  get isMain(): boolean {
    return this.group.rank === 0;
  }

  /**
   * Runs forward and backward on all micro-batches of a step, and adds the gradients of the mean loss over the tokens of all
   * ranks that read other data to the gradients of the model. Gradients are reduced with the last micro-batch. Every rank must call it.
   *
   * @returns the mean loss in nats, a float32 scalar, the same on every rank
   * @throws {ArgumentError} if there are several ranks and nothing reduces some trained parameters, or over other ranks than {@link data};
   * or if the run has a context axis and the model's positions are not shared over it
   */
  backward(model: CausalLm, batch: Batch): Tensor {
    requireOpenedModel("run.backward", model);
    if (batch.step !== undefined) this.group.step = batch.step;
    requirePositionRanks("run a backward", model, this.mesh);
    requireStageRanks("run a backward", model, this.mesh);
    return backwardStep(model, batch, this.device, this.data).loss;
  }

  /**
   * Prints a line of the step's values on the main rank, once the device has computed them; never waits for the device.
   *
   * The line begins with the step: the value named `step`, else the step of {@link backward}'s last batch, else the number of
   * steps that the optimizer has taken.
   *
   * @throws {ShapeError} if a tensor has more than one element
   * @throws {ArgumentError} if a value is neither a number, a text nor a tensor
   */
  log(values: LogValues): void {
    for (const [name, value] of Object.entries(values)) requireLoggable(name, value);
    const { step: own, ...others } = values;
    // A group knows the step of batches that have one; 0 means none.
    const step = typeof own === "number" ? own : this.group.step || stepsTakenOn(this.device);
    const kept = Object.entries(typeof own === "number" ? others : values).map(([name, value]) =>
      [name, keep(value)] as const
    );
    const print = (): void => {
      const words = kept.map(([name, value]) => `${name} ${textOf(value)}`);
      if (this.isMain) this.#print(`step ${step}  ${words.join("  ")}\n`);
    };
    this.#lines.push({ ready: this.device.streams.get("compute").record(), print });
    while (this.#lines[0]?.ready.done) this.#lines.shift()?.print();
  }

  /** Prints the remaining lines, leaves the group and closes the device, even if printing throws; then it throws that error. */
  [Symbol.asyncDispose](): Promise<void> {
    const { device, group } = this;
    const ends = [() => group.dispose(), () => device.dispose(), () => this.#trace?.close()];
    return Promise.try(() => takeAll([...this.#lines.splice(0).map(({ print }) => print), ...ends]));
  }
}

/** Refuses a value that {@link Run.log} cannot print. */
function requireLoggable(name: string, value: unknown): void {
  if (typeof value === "number" || typeof value === "string") return;
  if (!(value instanceof Tensor)) {
    throw new ArgumentError(
      `Cannot log '${name}': expected a number, a text or a tensor of one element, got ${valueText(value)}`,
    );
  }
  if (value.numel !== 1) throw new ShapeError("log", `'${name}' must have one element`, value.shape);
}

/** A handle on a tensor's value that the step's scope does not free. */
function keep(value: LogValues[string]): LogValues[string] {
  if (!(value instanceof Tensor)) return value;
  const own = value.alias();
  untrack(own);
  return own;
}

/** A value in words; frees the handle of a tensor. */
function textOf(value: LogValues[string]): string {
  if (typeof value === "string") return value;
  if (typeof value === "number") return formatNumber(value);
  using scalar = value;
  return formatNumber(scalar.item());
}

function formatNumber(value: number): string {
  if (Number.isInteger(value) || !Number.isFinite(value)) return String(value);
  const isPlain = Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6;
  return isPlain ? value.toFixed(4) : value.toExponential(3);
}

/**
 * Joins the run for which this process was started: as one of several ranks under a launcher, else alone.
 *
 * @throws {ConfigError} if the launch environment is incomplete or contradicts itself
 * @throws {ArgumentError} if an option is none of these, nothing is known of an axis, or the axes have another number of ranks
 * @throws {RendezvousError} if a rank does not start in time, is started twice, or disagrees about the world
 * @throws {UnsupportedError} {@link LibraryNotFoundError} if there is no such device, or a library that it needs is missing
 * @throws {FileError} if a trace is asked for and its file cannot be made
 * @example
 * ```ts
 * import { launch } from "fullyshard";
 * await using run = await launch();
 * if (run.group.size !== 1) throw new Error("no launcher, so one rank");
 * ```
 */
export function launch(options: LaunchOptions = {}): Promise<Run> {
  return tellingEarlyEnd(() => join(options));
}

async function join(options: LaunchOptions): Promise<Run> {
  requireKnownKeys("launch", options, LAUNCH_OPTIONS);
  const environment = readRankEnvironment();
  tellUncaughtErrors();
  ignoreFileSizeSignal();
  const { device: name = "cpu", axes, log = new Logger({ sink: standardErrorSink() }), trace: named, ...both } =
    options;
  const { memoryBytes, cpuMath, ranksOnHost, threads, lateStatus, localRank, attention, ...ofGroup } = both;
  const folder = named ?? processEnvironment().text("FULLYSHARD_TRACE");
  const trace = folder === undefined ? undefined : new Trace();
  const own = environment === undefined ? log : log.withRank(environment.rank);
  using opened = new DisposableStack();
  opened.defer(() => trace?.close());
  const device = await openDevice(name, {
    report: both.report ?? ((text) => own.once().warn(text)), // all ranks have the same text
    cpuMath: cpuMath ?? "auto",
    ranksOnHost: ranksOnHost ?? environment?.localWorldSize ?? 1,
    localRank: localRank ?? environment?.localRank,
    ...{ memoryBytes, threads, attention, trace },
    ...lateStatus === undefined ? {} : { lateStatus },
  });
  opened.defer(() => device.dispose());
  const report = (text: string): void => own.warn(text);
  const group = opened.use(await openProcessGroup({ report, onStop: writeFlightRecord, ...ofGroup, device }));
  if (folder !== undefined && trace !== undefined) openTrace(folder, trace, group);
  const hosts = hostSizes(group, environment);
  const run = new Run({ device, group, ...hosts, axes, trace, print: terminal("stdout").write });
  opened.move();
  return run;
}
