/**
 * Who computes attention on a card.
 *
 * @module
 */

/**
 * Who computes attention on a card. `own`: the kernels of this library. `cudnn`: NVIDIA's cuDNN, where it has a plan for the call,
 * and else our own kernels, which is told once for each kind of call.
 */
export const ATTENTION = ["own", "cudnn"] as const;
/** Name of who computes attention on a card. */
export type Attention = typeof ATTENTION[number];
/** Who computes it where nobody else is asked for. */
export const OWN_ATTENTION = "own" as const;
