/**
 * The libraries and the card that a CUDA device needs, or one error that says if driver, runtime or card is missing.
 *
 * @module
 */
import { NativeError, UnsupportedError } from "../../errors.ts";
import { CUBLASLT, type CUBLASLT_BINDINGS } from "../../ffi/bindings/cublaslt.ts";
import { CUDA } from "../../ffi/bindings/cuda.ts";
import { CUDART, CUDART_BINDINGS, CUDART_CONSTANTS } from "../../ffi/bindings/cudart.ts";
import { NVRTC, type NVRTC_BINDINGS } from "../../ffi/bindings/nvrtc.ts";
import { openLibrary, openProvider } from "../../ffi/mod.ts";
import type { FfiProvider, Library } from "../../ffi/types.ts";
import type { Environment } from "../../runtime/env.ts";
import { countOf } from "../../words.ts";
import { type Attention, OWN_ATTENTION } from "../attention.ts";
import { type Cudnn, openCudnn } from "./cudnn/version.ts";

/** The CUDA runtime. */
export type Cudart = Library<typeof CUDART_BINDINGS>;
export type Nvrtc = Library<typeof NVRTC_BINDINGS>;
/** cuBLASLt. */
export type Cublaslt = Library<typeof CUBLASLT_BINDINGS>;

/** Libraries of an open device. */
export interface CudaLibraries {
  readonly provider: FfiProvider;
  /** Number of their card among the visible ones. */
  readonly index: number;
  readonly cudart: Cudart;
  readonly nvrtc: Nvrtc;
  readonly cublaslt: Cublaslt;
  /** cuDNN, if it computes attention. */
  readonly cudnn: Cudnn | undefined;
}

/** A rank's number on its host: each rank has a card of its own. */
export interface LocalRank {
  readonly localRank: number;
  readonly ranksOnHost: number;
}

/**
 * The card of this thread in CUDA, and the number of open devices that use it. A stream of another card would be refused, and
 * memory would come from the wrong card.
 */
const ofThread = { index: 0, users: 0 };

/**
 * Opens the libraries, and makes a card this thread's until {@link leaveCard}.
 *
 * @param which number of a visible card, or the rank whose card it is
 * @param attention code that computes it; cuDNN is opened only for `cudnn`
 * @throws {LibraryNotFoundError} if the CUDA runtime, NVRTC, cuBLASLt or a cuDNN that is asked for is not found
 * @throws {UnsupportedError} if there is no driver, it or cuDNN is too old, there is no such card, or not one for each rank, or
 * this thread has another card open
 */
export async function openCudaLibraries(
  which: number | LocalRank,
  environment: Environment,
  attention: Attention = OWN_ATTENTION,
): Promise<CudaLibraries> {
  const provider = await openProvider();
  const cudart = await openLibrary(CUDART, { provider, environment });
  try {
    const index = cardOf(cudart, which);
    const nvrtc = await openLibrary(NVRTC, { provider, environment });
    const cublaslt = await openLibrary(CUBLASLT, { provider, environment });
    const cudnn = attention === "cudnn" ? await openCudnn(provider, environment) : undefined;
    if (ofThread.users > 0 && ofThread.index !== index) {
      throw new UnsupportedError(
        `Cannot open device 'cuda:${index}': this thread works on 'cuda:${ofThread.index}', and CUDA knows one card for each ` +
          "thread. Dispose that device first, or open this one in a Worker or another process",
      );
    }
    cudart.symbols.cudaSetDevice(index);
    [ofThread.index, ofThread.users] = [index, ofThread.users + 1];
    return { provider, index, cudart, nvrtc, cublaslt, cudnn };
  } catch (error) {
    cudart.close();
    throw error;
  }
}

/** Called when a device is disposed. */
export function leaveCard(): void {
  ofThread.users--;
}

/** State of driver, runtime and cards before a card is opened; versions are 1000 times the major and 10 times the minor. */
export interface CudaState {
  /** Newest CUDA version of the driver; 0 without a driver. */
  readonly driver: number;
  readonly runtime: number;
  readonly cards: number;
  /** Reason why no card can be opened, with the remedy. */
  readonly obstacle: string | undefined;
}

/** Asks driver and runtime if cards can be opened. */
export function cudaState({ symbols, provider, path }: Cudart): CudaState {
  const [driver, runtime, count] = [provider.out("i32"), provider.out("i32"), provider.out("i32")];
  symbols.cudaDriverGetVersion(driver);
  symbols.cudaRuntimeGetVersion(runtime);
  const state = (cards: number, obstacle?: string): CudaState => {
    return { driver: driver.value, runtime: runtime.value, cards, obstacle };
  };
  const major = (version: number): number => Math.floor(version / 1000);
  const newest = driver.value === 0 ? runtime.value : driver.value;
  const wheel = `nvidia-cuda-runtime${major(newest) === 12 ? "-cu12" : ""}`;
  const { since } = CUDART_BINDINGS.cudaLibraryLoadData;
  if (symbols.cudaLibraryLoadData === undefined) {
    return state(
      0,
      `the CUDA runtime (${path}) is for CUDA ${cudaVersion(runtime.value)}, which loads no kernels: ${since} is ` +
        `the oldest that does. Install a newer one with 'pip install --upgrade ${wheel}'`,
    );
  }
  if (driver.value === 0) return state(0, `there is no NVIDIA driver. ${CUDA.remedy}`);
  if (major(driver.value) < major(runtime.value)) {
    return state(
      0,
      `the NVIDIA driver is one of CUDA ${major(driver.value)}, the CUDA runtime (${path}) needs one of CUDA ` +
        `${major(runtime.value)}. Install a newer driver, or 'pip install ${wheel}'`,
    );
  }
  try {
    symbols.cudaGetDeviceCount(count);
    return state(count.value);
  } catch (error) {
    if (!(error instanceof NativeError)) throw error;
    return state(0, `the driver shows no card. ${error.message}`);
  }
}

/** Number of cards that this process may use, at least one. @throws {UnsupportedError} if there is none, with the reason */
export async function numCards(environment: Environment): Promise<number> {
  const cudart = await openLibrary(CUDART, { environment });
  const { cards, obstacle } = cudaState(cudart);
  cudart.close();
  if (cards > 0) return cards;
  throw new UnsupportedError(`Cannot count the cards: ${obstacle ?? "the driver shows none"}`);
}

/** A version in words, e.g. 12.8 for 12080. */
export function cudaVersion(version: number): string {
  return `${Math.floor(version / 1000)}.${Math.floor(version % 1000 / 10)}`;
}

function cardOf(cudart: Cudart, which: number | LocalRank): number {
  const name = typeof which === "number" ? `cuda:${which}` : "cuda";
  const { cards, obstacle } = cudaState(cudart);
  if (obstacle !== undefined) throw new UnsupportedError(`Cannot open device '${name}': ${obstacle}`);
  // A launcher may show each rank its own card only; if two ranks share a card, joining finds it.
  const index = typeof which === "number" ? which : cards === 1 ? 0 : which.localRank;
  if (index < cards) return index;
  const shown = `the driver shows ${countOf(cards, "card")}`;
  const whose = typeof which === "number"
    ? shown
    : `${shown} for the ${countOf(which.ranksOnHost, "rank")} of this host`;
  throw new UnsupportedError(
    `Cannot open device '${name}': ${whose}. See 'nvidia-smi' and CUDA_VISIBLE_DEVICES; in a container, start it with '--gpus all'` +
      (typeof which === "number" ? "" : "; start at most one rank for each card, with '--nproc-per-node'"),
  );
}

/** An attribute of a card. */
export function attributeOf(
  { symbols, provider }: Cudart,
  index: number,
  name: keyof typeof CUDART_CONSTANTS & `cudaDevAttr${string}`,
): number {
  const value = provider.out("i32");
  symbols.cudaDeviceGetAttribute(value, CUDART_CONSTANTS[name], index);
  return value.value;
}
