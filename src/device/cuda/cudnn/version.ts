/**
 * The version of cuDNN, and a check that it is new enough: plans for attention as one operation, in both directions, came with
 * 9.28, although older headers declare them.
 *
 * @module
 */
import { UnsupportedError } from "../../../errors.ts";
import { CUDNN, type CUDNN_BINDINGS } from "../../../ffi/bindings/cudnn.ts";
import { openLibrary } from "../../../ffi/mod.ts";
import type { FfiProvider, Library } from "../../../ffi/types.ts";
import type { Environment } from "../../../runtime/env.ts";

/** cuDNN. */
export type Cudnn = Library<typeof CUDNN_BINDINGS>;

/** Its version, e.g. `9.28.1`. */
export function cudnnVersion({ symbols }: Cudnn): string {
  const version = symbols.cudnnGetVersion(); // 10000 times the major, 100 times the minor, and the patch
  return [Math.floor(version / 10_000), Math.floor(version / 100) % 100, version % 100].join(".");
}

/** Reason why this cuDNN cannot be used, with the remedy; undefined if it can. */
export function cudnnObstacle(cudnn: Cudnn): string | undefined {
  const [major = NaN, minor = NaN] = `${CUDNN.oldest}`.split(".").map(Number);
  if (cudnn.symbols.cudnnGetVersion() >= major * 10_000 + minor * 100) return undefined;
  return `cuDNN ${cudnnVersion(cudnn)} (${cudnn.path}) is too old, ${CUDNN.oldest} is the oldest that serves: ` +
    "'pip install --upgrade nvidia-cudnn-cu13', or '-cu12' for a driver of CUDA 12";
}

/**
 * Opens cuDNN.
 *
 * @throws {LibraryNotFoundError} if it is not found
 * @throws {UnsupportedError} if it is too old
 */
export async function openCudnn(provider: FfiProvider, environment: Environment): Promise<Cudnn> {
  const cudnn = await openLibrary(CUDNN, { provider, environment });
  const obstacle = cudnnObstacle(cudnn);
  if (obstacle === undefined) return cudnn;
  cudnn.close();
  throw new UnsupportedError(`Cannot compute attention by cuDNN: ${obstacle}, or leave attention 'cudnn' out`);
}
