/**
 * Examines NVIDIA GPUs for `fullyshard doctor`: the versions and if they fit together, the obstacles that keep cards from
 * being used with their remedies, and how each card may be shared. Nothing is allocated on a card.
 *
 * @module
 */
import { describeGathers, describeVersion, isWithoutWindows, type Nccl, versionOf } from "../comm/data/nccl/version.ts";
import { nvrtcVersion } from "../device/cuda/compiler.ts";
import { type Cudnn, cudnnObstacle, cudnnVersion } from "../device/cuda/cudnn/version.ts";
import { attributeOf, type Cudart, cudaState, cudaVersion, type Nvrtc } from "../device/cuda/libraries.ts";
import { FileError, LibraryNotFoundError, NativeError } from "../errors.ts";
import { NCCL_BINDINGS } from "../ffi/bindings/nccl.ts";
import { NVML, NVML_CONSTANTS } from "../ffi/bindings/nvml.ts";
import { openLibrary } from "../ffi/mod.ts";
import type { Environment } from "../runtime/env.ts";
import { openReadable, pathExists } from "../runtime/files.ts";

/** One card. Null is what only NVML knows, where that does not tell. */
export interface CardReport {
  /** Its number for this process. */
  readonly index: number;
  readonly name: string | null;
  /** E.g. `9.0`. */
  readonly capability: string;
  readonly computeMode: "default" | "exclusive" | "prohibited";
  /** True if the card is divided into instances (MIG). */
  readonly isDivided: boolean | null;
  /** The cards whose memory it reaches directly. */
  readonly peers: readonly number[];
}

/** The findings about CUDA; a version is null where its library does not work. */
export interface CudaReport {
  /** The newest CUDA of the driver; null also where there is none. */
  readonly driver: string | null;
  readonly runtime: string | null;
  readonly compiler: string | null;
  /** The way in which the parameters of several ranks are gathered. */
  readonly gathers: string | null;
  /** The attention that cuDNN can compute where it is asked to; null where cuDNN is missing or does not work. */
  readonly attention: string | null;
  /** The reason that no card can be used, and the remedy. */
  readonly obstacle: string | null;
  readonly cards: readonly CardReport[];
  /** True if MPS runs, which lets processes share a card at the same time; null where its folder may not be looked at. */
  readonly hasMps: boolean | null;
  /** Parts that are present and do not fit together, each with its remedy. */
  readonly problems: readonly string[];
}

/** The libraries that could be opened. */
export interface OpenedLibraries {
  readonly cudart: Cudart | undefined;
  readonly nvrtc: Nvrtc | undefined;
  readonly cudnn: Cudnn | undefined;
  readonly nccl: Nccl | undefined;
  /** The CUDA that NCCL was built for, as {@link ncclBuild} reads it of a file of hundreds of MiB. */
  readonly builtFor: string | null;
}

/** Gathers the facts about CUDA. */
export async function examineCuda(
  { cudart, nvrtc, cudnn, nccl, builtFor }: OpenedLibraries,
  environment: Environment,
): Promise<CudaReport> {
  const state = cudart === undefined ? undefined : cudaState(cudart);
  const compiler = nvrtc === undefined ? null : nvrtcVersion(nvrtc);
  const driver = state === undefined || state.driver === 0 ? null : cudaVersion(state.driver);
  const found = cudart === undefined || state === undefined
    ? { cards: [], problems: [] }
    : await examineCards(cudart, state.cards, environment);
  const obstacle = state === undefined ? "the CUDA runtime is not there, or does not work" : state.obstacle ?? null;
  return {
    driver,
    runtime: state === undefined ? null : cudaVersion(state.runtime),
    compiler,
    gathers: nccl === undefined ? null : describeGathers(versionOf(nccl), isWithoutWindows(environment)),
    attention: cudnn === undefined ? null : describeAttention(cudnn),
    obstacle,
    cards: found.cards,
    hasMps: hasPipe(environment.text("CUDA_MPS_PIPE_DIRECTORY") ?? "/tmp/nvidia-mps"),
    problems: [
      ...driver !== null && obstacle !== null ? [`no GPU can be used: ${obstacle}`] : [],
      ...found.problems,
      ...tooNew("NVRTC", compiler, driver, "nvidia-cuda-nvrtc"),
      ...tooNew("NCCL", builtFor, driver, "nvidia-nccl"),
      ...cudnn === undefined ? [] : tooNew("cuDNN", cudnnBuild(cudnn), driver, "nvidia-cudnn"),
      ...nccl === undefined ? [] : tooOld(nccl, builtFor),
    ],
  };
}

function describeAttention(cudnn: Cudnn): string {
  const obstacle = cudnnObstacle(cudnn);
  if (obstacle !== undefined) return `attention by our own kernels alone: ${obstacle}`;
  return `attention by cuDNN ${cudnnVersion(cudnn)}, which is for CUDA ${cudnnBuild(cudnn)}, with --attention cudnn`;
}

/** The CUDA that cuDNN was built with. */
function cudnnBuild(cudnn: Cudnn): string {
  return cudaVersion(cudnn.symbols.cudnnGetCudartVersion());
}

/** True if the daemon of MPS has its pipe in a folder. */
function hasPipe(folder: string): boolean | null {
  try {
    return pathExists(`${folder}/control`);
  } catch (error) {
    if (error instanceof FileError) return null;
    throw error;
  }
}

/** The problem of a library of a newer CUDA than the driver's major version, which cannot be used with the driver. */
function tooNew(name: string, cuda: string | null, driver: string | null, wheel: string): string[] {
  if (cuda === null || driver === null || parseInt(cuda) <= parseInt(driver)) return [];
  const [own, other] = [parseInt(driver), parseInt(cuda)];
  return [`${name} is for CUDA ${other}, the driver for CUDA ${own}: 'pip install ${wheel}-cu${own}'`];
}

/** The problem of an NCCL that lacks the function by which ranks join. */
function tooOld(nccl: Nccl, builtFor: string | null): string[] {
  if (nccl.symbols.ncclCommInitRankScalable !== undefined) return [];
  return [tooOldNccl(ncclVersion(nccl), builtFor)];
}

/** The problem of an NCCL that is too old, with its remedy. */
function tooOldNccl(version: string, builtFor: string | null): string {
  const { since } = NCCL_BINDINGS.ncclCommInitRankScalable;
  const wheel = builtFor === null ? "nvidia-nccl" : `nvidia-nccl-cu${parseInt(builtFor)}`;
  return `NCCL ${version} is too old, ${since} is the oldest that serves: 'pip install --upgrade ${wheel}'`;
}

/** The reason that a file of NCCL could not be opened: it is too old, where it lacks functions and gives its version. */
export function explainNccl({ path, reason }: LibraryNotFoundError["tried"][number]): string {
  if (!reason.startsWith("it lacks ")) return reason;
  const build = ncclBuild(path);
  return build === null ? reason : tooOldNccl(build.version, build.cuda);
}

/** NCCL's version, e.g. `2.28.9`. */
export function ncclVersion(nccl: Nccl): string {
  return describeVersion(versionOf(nccl));
}

/** The version of NCCL and the CUDA that it was built with, which its file says and no function; null where it does not. */
export function ncclBuild(path: string): { readonly version: string; readonly cuda: string } | null {
  try {
    using file = openReadable(path);
    let before = "";
    for (const piece of file.pieces(0, file.byteLength)) {
      const text = before + new TextDecoder("latin1").decode(piece);
      const [, version, cuda] = /NCCL version ([\d.]+)\+cuda(\d+\.\d+)/.exec(text) ?? [];
      if (version !== undefined && cuda !== undefined) return { version, cuda };
      before = text.slice(-64);
    }
  } catch (error) {
    if (!(error instanceof FileError)) throw error;
  }
  return null;
}

/** The cards that answer, and what those say that do not. */
async function examineCards(
  cudart: Cudart,
  count: number,
  environment: Environment,
): Promise<{ readonly cards: readonly CardReport[]; readonly problems: readonly string[] }> {
  if (count === 0) return { cards: [], problems: [] };
  const { symbols, provider } = cudart;
  const all = Array.from({ length: count }, (_, index) => index);
  const reach = provider.out("i32");
  /** True if a card reaches another card; a card that does not answer counts as not reached, and is reported by itself. */
  const canReach = (index: number, other: number): boolean => {
    try {
      symbols.cudaDeviceCanAccessPeer(reach, index, other);
      return reach.value !== 0;
    } catch (error) {
      if (!(error instanceof NativeError)) throw error;
      return false;
    }
  };
  const own = await examineByNvml(cudart, all, environment);
  const cards: CardReport[] = [];
  const problems: string[] = [];
  for (const index of all) {
    const attribute = (name: Parameters<typeof attributeOf>[2]): number => attributeOf(cudart, index, name);
    try {
      const major = attribute("cudaDevAttrComputeCapabilityMajor");
      cards.push({
        index,
        ...own[index] ?? UNKNOWN,
        capability: `${major}.${attribute("cudaDevAttrComputeCapabilityMinor")}`,
        computeMode: computeModeOf(attribute("cudaDevAttrComputeMode")),
        peers: all.filter((other) => other !== index && canReach(index, other)),
      });
    } catch (error) {
      if (!(error instanceof NativeError)) throw error;
      problems.push(
        `cuda:${index} does not answer: ${error.message}. See 'nvidia-smi' and the kernel's log, and reset the card, or leave it ` +
          "out with CUDA_VISIBLE_DEVICES",
      );
    }
  }
  return { cards, problems };
}

function computeModeOf(mode: number): CardReport["computeMode"] {
  if (mode === NVML_CONSTANTS.NVML_COMPUTEMODE_DEFAULT) return "default";
  return mode === NVML_CONSTANTS.NVML_COMPUTEMODE_PROHIBITED ? "prohibited" : "exclusive";
}

/** The facts of a card where NVML is missing, or does not know the card. */
const UNKNOWN = { name: null, isDivided: null };

/** The facts that NVML has on each card; nothing where NVML is missing. */
async function examineByNvml(
  { symbols: { cudaDeviceGetPCIBusId } }: Cudart,
  cards: readonly number[],
  environment: Environment,
): Promise<Pick<CardReport, "name" | "isDivided">[]> {
  try {
    const { symbols, provider } = await openLibrary(NVML, { environment });
    symbols.nvmlInit_v2();
    const read = (length: number, fill: (bytes: Uint8Array) => void): string => {
      const bytes = new Uint8Array(length);
      fill(bytes);
      return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
    };
    const examine = (index: number): Pick<CardReport, "name" | "isDivided"> => {
      const [device, mode, later] = [provider.out("nvmlDevice_t"), provider.out("u32"), provider.out("u32")];
      const place = read(64, (bytes) => cudaDeviceGetPCIBusId(bytes, bytes.length, index));
      symbols.nvmlDeviceGetHandleByPciBusId_v2(place, device);
      const name = read(96, (bytes) => symbols.nvmlDeviceGetName(device.value, bytes, bytes.length));
      const canDivide = symbols.nvmlDeviceGetMigMode(device.value, mode, later) === 0;
      return { name, isDivided: canDivide && mode.value === NVML_CONSTANTS.NVML_DEVICE_MIG_ENABLE };
    };
    const found = cards.map((index) => {
      try {
        return examine(index);
      } catch (error) {
        if (!(error instanceof NativeError)) throw error;
        return UNKNOWN;
      }
    });
    symbols.nvmlShutdown();
    return found;
  } catch (error) {
    if (error instanceof LibraryNotFoundError || error instanceof NativeError) return [];
    throw error;
  }
}

/** The report as text for people, a fact a line. */
export function describeCuda(report: CudaReport): string[] {
  const { driver, runtime, compiler, gathers, attention, obstacle, cards, hasMps } = report;
  const versions = [
    ...driver === null ? [] : [`driver of CUDA ${driver}`],
    ...runtime === null ? [] : [`runtime ${runtime}`],
    ...compiler === null ? [] : [`NVRTC ${compiler}`],
  ];
  const isOlder = driver !== null && runtime !== null && parseInt(driver) === parseInt(runtime) &&
    Number(driver.split(".")[1]) < Number(runtime.split(".")[1]);
  const together = isOlder
    ? "they go together by minor version compatibility: what is new in the runtime's CUDA is missing"
    : "they go together";
  return [
    ...versions.length === 0 ? [] : [`${versions.join(", ")}${obstacle === null ? `: ${together}` : ""}`],
    ...obstacle === null ? [] : [`no GPU can be used: ${obstacle}`],
    ...gathers === null ? [] : [gathers],
    ...attention === null ? [] : [attention],
    ...cards.map((card) => {
      const { index, name, capability, computeMode, isDivided, peers } = card;
      const mode = { default: "for all processes", exclusive: "for one process", prohibited: "for none" }[computeMode];
      const mig = isDivided === null ? "MIG unknown, as NVML does not tell" : `MIG ${isDivided ? "on" : "off"}`;
      const reach = peers.length === 0 ? "no other card" : peers.map((peer) => `cuda:${peer}`).join(", ");
      return `cuda:${index}: ${
        name === null ? "" : `${name}, `
      }compute capability ${capability}, open ${mode} (compute mode), ${mig}, reaches ${reach} directly`;
    }),
    ...cards.length === 0 ? [] : [describeMps(hasMps)],
  ];
}

function describeMps(hasMps: boolean | null): string {
  if (hasMps === null) return "MPS unknown, as the folder of its pipes may not be looked at";
  return hasMps
    ? "MPS runs: processes work on a card at the same time"
    : "MPS does not run: processes on one card take turns";
}
