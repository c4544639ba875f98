/** The ranks' code of `state_dict_memory_test.ts`: state dicts of which one rank has no memory for a piece. @module */
import { fullyShard } from "../../mod.ts";
import { getModelStateDict, setModelStateDict, type StateDictOptions } from "../../doors/checkpoint.ts";
import { initializeParameters } from "../../doors/nn.ts";
import { Stack } from "../fsdp/modules.ts";
import { failAllocation } from "../support/failing_memory.ts";
import { messageOf } from "../support/message.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** The call that fails, and the rank on which it fails; undefined: on all ranks. */
export interface StateDictFailure {
  readonly call: "get, to all ranks" | "get, to rank 0" | "set from rank 0";
  readonly victim: number | undefined;
}

/** Fails at each allocation in turn; gives what was wrong, and how often it failed. */
export function failStateDict(rank: WorldRank, { call, victim }: StateDictFailure): readonly [number, string[]] {
  const { device, group } = rank;
  const model = new Stack(device, 20, 2);
  model.nameTree();
  fullyShard(model, { mesh: group });
  initializeParameters(model, 5);
  const whole: StateDictOptions = { group, fullStateDict: true };
  const state = getModelStateDict(model, whole);
  const valuesOf = (): string => JSON.stringify(Array.from(model.parameters(), (one) => [...ownedValues(one)]));
  const act = (): void => {
    if (call === "set from rank 0") setModelStateDict(model, state, { ...whole, broadcastFromRank0: true });
    else getModelStateDict(model, { ...whole, cpuOffload: call === "get, to rank 0" });
  };
  const [before, inUse] = [valuesOf(), device.allocator.stats.inUse];
  const faults: string[] = [];
  for (let place = 0;; place++) {
    const failing = failAllocation([device.allocator], victim === undefined || victim === rank.rank ? place : Infinity);
    const error = messageOf(act);
    failing[Symbol.dispose]();
    if (error === "") return [place, faults];
    if (!error.includes("injected")) faults.push(`${place}: '${error}'`);
    if (device.allocator.stats.inUse !== inUse) faults.push(`${place}: ${device.allocator.stats.inUse} bytes in use`);
    if (valuesOf() !== before) faults.push(`${place}: other values`);
    if (place > 20) throw new Error("no end");
  }
}

rankFunctions(import.meta.url, { failStateDict });
