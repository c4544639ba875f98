/**
 * Attention by cuDNN beside that by our own kernels, on one card: how far their results are apart, and how long each takes.
 *
 * @module
 */
import { bfloat16, type DType, float32 } from "fullyshard";
import { type Attention, type DevicePtr, openDevice } from "fullyshard/device";
import { LibraryNotFoundError, UnsupportedError } from "fullyshard/errors";
import { decode } from "../../tests/conformance/kernels/bed.ts";
import type { LlamaSize } from "../ranks/llama_step.ts";
import { attentionArgs, attentionBackwardArgs, millisecondsOf } from "./kernels.ts";
import { type Row, tell } from "./row.ts";

/** Results by name, and the milliseconds of both directions. */
interface Computed {
  readonly results: ReadonlyMap<string, readonly number[]>;
  readonly forwardMs: number;
  readonly backwardMs: number;
  /** Calls that cuDNN should have computed and did not. */
  readonly reports: readonly string[];
}

async function compute(attention: Attention, size: LlamaSize, rounds: number): Promise<Computed> {
  const reports: string[] = [];
  const device = await openDevice("cuda:0", { attention, report: (text) => void reports.push(text) });
  const forward = attentionArgs(device, size);
  device.kernels.attention(forward);
  const backward = attentionBackwardArgs(device, forward);
  device.kernels.attentionBackward(backward);
  const { batch, seqQ, seqK, heads, kvHeads, headDim } = forward;
  const [queries, keys] = [batch * seqQ * heads * headDim, batch * seqK * kvHeads * headDim];
  const read = (ptr: DevicePtr, count: number, dtype: DType = bfloat16): readonly number[] => {
    const bytes = new Uint8Array(count * dtype.byteLength);
    device.synchronize();
    device.copyOut(bytes, ptr);
    return decode(dtype, bytes);
  };
  const results = new Map([
    ["o", read(forward.o, queries)],
    ["lse", read(forward.lse, batch * heads * seqQ, float32)],
    ["dq", read(backward.dq, queries)],
    ["dk", read(backward.dk, keys)],
    ["dv", read(backward.dv, keys)],
  ]);
  const time = (call: () => void): number => millisecondsOf(device, call, rounds);
  const forwardMs = time(() => device.kernels.attention(forward));
  const backwardMs = time(() => device.kernels.attentionBackward(backward));
  device.dispose();
  return { results, forwardMs, backwardMs, reports };
}

/** Largest difference of two lists, by the largest number of the second; NaN where one is no number. */
function differenceOf(found: readonly number[], expected: readonly number[]): number {
  let [most, apart] = [0, 0];
  for (const [i, want] of expected.entries()) {
    const difference = Math.abs((found[i] ?? NaN) - want);
    if (!Number.isFinite(difference)) return NaN;
    most = Math.max(most, Math.abs(want));
    apart = Math.max(apart, difference);
  }
  return apart / most;
}

/** Tells one row. */
export async function compareCudnn(size: LlamaSize, rounds: number): Promise<void> {
  const what = "attention by cuDNN";
  try {
    const [own, other] = [await compute("own", size, rounds), await compute("cudnn", size, rounds)];
    const differences = Object.fromEntries(
      [...own.results].map(([name, expected]) => [name, differenceOf(other.results.get(name) ?? [], expected)]),
    );
    // Both round to bfloat16, and our own kernels round weights before they multiply them.
    const isRight = Object.values(differences).every((difference) => difference < 2 ** -5);
    const reason = other.reports.length > 0
      ? other.reports.join("; ")
      : isRight
      ? undefined
      : `results are apart by ${JSON.stringify(differences)}`;
    const figures = {
      ...{ ownForwardUs: own.forwardMs * 1000, cudnnForwardUs: other.forwardMs * 1000 },
      ...{ ownBackwardUs: own.backwardMs * 1000, cudnnBackwardUs: other.backwardMs * 1000, ...differences },
    };
    const row: Row = reason === undefined
      ? { case: what, outcome: "passed", figures }
      : { case: what, outcome: "failed", reason, figures };
    tell(row);
  } catch (error) {
    if (!(error instanceof LibraryNotFoundError || error instanceof UnsupportedError)) throw error;
    tell({ case: what, outcome: "cannot", reason: error.message });
  }
}
