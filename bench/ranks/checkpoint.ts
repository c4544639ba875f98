/**
 * A rank that saves or loads a checkpoint several times; rank 0 prints the median in milliseconds.
 *
 * @module
 */
import { rmSync } from "node:fs";
import process from "node:process";
import { fullyShard, launch } from "fullyshard";
import { asyncSave, CheckpointStager, loadCheckpoint, saveCheckpoint } from "fullyshard/checkpoint";
import { initializeParameters, Module, Parameter } from "fullyshard/nn";
import { makeTemporaryDirectory } from "../../src/runtime/files.ts";
import { median } from "../figures.ts";

const MATRICES = 16;
const ROUNDS = 5;

class Matrices extends Module<[], undefined> {
  readonly matrices: readonly Parameter[];
  readonly hfConfig = { model_type: "matrices" };
  readonly tiedNames: ReadonlyMap<string, string> = new Map();

  constructor(device: Parameter["device"], numel: number) {
    super();
    const init = { kind: "uniform", low: -1, high: 1 } as const;
    this.matrices = Array.from({ length: MATRICES }, () => new Parameter(device, [numel / 1000, 1000], { init }));
    this.nameTree();
  }

  override forward(): undefined {
    return undefined;
  }

  *directoryTensors(): Generator<never> {}
}

await using run = await launch();
const { group, device } = run;
const name = process.argv[2] ?? "";
const megabytes = Number(/-(\d+)MB$/.exec(name)?.[1]);
const model = new Matrices(device, Math.round(megabytes * 1e6 / 4 / MATRICES / 2000) * 2000);
fullyShard(model, { mesh: run.mesh });
initializeParameters(model, 0);
using stager = new CheckpointStager(device);

const [directory = ""] = group.exchangeText(
  group.rank === 0 ? makeTemporaryDirectory("fullyshard-bench-") : "",
  "directory",
);
const where = { directory, model, group };
const what = { ...where, state: {} };
const remove = (): void => {
  group.barrier("saved");
  if (group.rank === 0) rmSync(directory, { recursive: true, force: true });
  group.barrier("removed");
};

/** Milliseconds of one round. */
const rounds: Readonly<Record<string, () => Promise<number>>> = {
  async save() {
    remove();
    const started = performance.now();
    await saveCheckpoint({ ...what, step: 1 });
    return performance.now() - started;
  },
  async load() {
    group.barrier("round");
    const started = performance.now();
    await loadCheckpoint(where);
    return performance.now() - started;
  },
  async "async-save"() {
    remove();
    const started = performance.now();
    const saving = asyncSave({ ...what, step: 1, stager });
    const blocked = performance.now() - started;
    await saving;
    return blocked;
  },
};

const round = rounds[name.replace(/-\d+MB$/, "")] ?? rounds["save"];
if (name.startsWith("load")) await saveCheckpoint({ ...what, step: 1 });
const times: number[] = [];
for (let i = 0; i <= ROUNDS && round !== undefined; i++) times.push(await round());
remove();
if (group.rank === 0) process.stdout.write(`${name} ${(median(times.slice(1)) ?? NaN).toFixed(2)}\n`);
