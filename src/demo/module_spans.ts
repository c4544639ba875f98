/**
 * Forward and backward of a replicated model's parts in a trace. Units of FSDP trace their own; a replicated model has none.
 *
 * @module
 */
import { isRecomputing } from "../autograd/recompute.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { tensorsIn } from "../nn/tree.ts";
import type { Span, Trace } from "../runtime/trace.ts";
import { hookBackward } from "../tensor/apply.ts";

/** Traces modules, whose names between commas are those of a unit. */
export function traceModules(trace: Trace, model: CausalLm, units: readonly string[]): void {
  for (const unit of units) {
    const names = new Set(unit.split(", "));
    const modules = [...model.namedModules()].filter(([name]) => names.has(name)).map(([, module]) => module);
    const begin = (what: string): Span => trace.begin("compute", "unit", `${what} ${unit}`, { unit });
    let forward: Span | undefined;
    let backward: Span | undefined;
    const [first, last] = [modules.at(0), modules.at(-1)];
    first?.registerForwardPreHook((args) => {
      if (isRecomputing()) return;
      forward = begin("forward");
      hookBackward(tensorsIn(args), { name: `the input of '${unit}'`, run: () => backward?.end() });
    });
    last?.registerForwardHook((_, output) => {
      if (isRecomputing()) return;
      forward?.end();
      hookBackward(tensorsIn(output), { name: `the output of '${unit}'`, run: () => backward = begin("backward") });
    });
  }
}
