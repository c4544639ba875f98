/**
 * The code that computes attention on a card.
 *
 * @module
 */

/**
 * Code that computes attention on a card. `own`: kernels of this library. `cudnn`: NVIDIA's cuDNN where it has a plan for the
 * call, else the library's own kernels, which is reported once for each kind of call.
 */
export const ATTENTION = ["own", "cudnn"] as const;
/** Name of the code that computes attention on a card. */
export type Attention = typeof ATTENTION[number];
/** The default. */
export const OWN_ATTENTION = "own" as const;
