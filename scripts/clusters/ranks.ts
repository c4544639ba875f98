/** What ranks of `npm run clusters` run: trainings whose bits are compared with those over shared memory. @module */
import { rankFunctions, type WorldRank } from "../../tests/support/world.ts";
import { train, type TrainingCase } from "../parity/training.ts";

/** What a rank has of a training: plain data. */
export interface TrainedPart {
  readonly losses: readonly number[];
  readonly gradNorms: readonly number[];
  /** Parts of parameters that the rank owns: their bits as hexadecimal text. */
  readonly owned: readonly { readonly fqn: string; readonly offset: number; readonly bits: string }[];
}

/** Trains in turn; every rank of the group calls it. */
export async function trainAll(
  { device, group }: WorldRank,
  cases: readonly TrainingCase[],
): Promise<readonly TrainedPart[]> {
  const parts: TrainedPart[] = [];
  for (const training of cases) {
    const { losses, gradNorms, owned } = await train(device, group, training);
    parts.push({
      losses,
      gradNorms,
      owned: owned.map(({ fqn, offset, values }) => ({ fqn, offset, bits: hexOf(values) })),
    });
  }
  group.barrier("end");
  return parts;
}

function hexOf(values: ArrayLike<number>): string {
  return new Uint8Array(Float32Array.from(values).buffer).toHex();
}

rankFunctions(import.meta.url, { trainAll });
