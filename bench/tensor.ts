/**
 * One optimizer step with AdamW of a Llama of 7.9 M parameters that two and four ranks compute together by tensor parallelism, against
 * transformers' own over gloo.
 *
 * @module
 */
import { launch } from "./process.ts";
import { modelOfCase } from "./ranks/models.ts";
import { type BenchCase, program, type Subject } from "./subject.ts";

/** A case, and its ranks. */
interface TensorCase extends BenchCase {
  readonly ranks: number;
}

const CASES: readonly TensorCase[] = [
  { name: "llama-8m-2", ranks: 2, peers: ["transformers"], targets: { transformers: 3 } },
  { name: "llama-8m-4", ranks: 4, peers: ["transformers"], targets: { transformers: 3 } },
];

function caseOf([name]: readonly string[]): TensorCase {
  const found = CASES.find((one) => one.name === name);
  if (found === undefined) throw new Error(`no case '${name}' of tensor parallelism`);
  return found;
}

/** Tokens a second, of the median of one run's steps. */
export const TENSOR: Subject = {
  name: "tp",
  unit: "tokens/s",
  higherIsBetter: true,
  takesThreads: true,
  isApart: true,
  cases: CASES,
  ours: program(({ runtime }, names) => {
    const { ranks, name } = caseOf(names);
    return launch(runtime, ranks, "bench/ranks/tensor.ts", name);
  }),
  peers: {
    transformers: program(({ python }, names) => {
      const { ranks, name } = caseOf(names);
      const launcher = ["-m", "torch.distributed.run", "--nproc_per_node", String(ranks)];
      return [python, ...launcher, "bench/peers/tensor.py", name, JSON.stringify(modelOfCase(name))];
    }),
  },
};
