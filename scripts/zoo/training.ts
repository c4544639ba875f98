/**
 * The trainings of one model of the zoo, on a rank: replicated, by the automatic plan, by a manual one, and with a resume in the
 * middle.
 *
 * @module
 */
import { AdamW, type CausalLm, describeSharding, type FsdpPlan, openModel, replicate } from "../../mod.ts";
import { loadCheckpoint, saveCheckpoint } from "../../doors/checkpoint.ts";
import type { ProcessGroup } from "../../doors/comm.ts";
import { trainStep } from "../../doors/config.ts";
import type { MicroBatch } from "../../doors/data.ts";
import type { Device } from "../../doors/device.ts";
import { IGNORE_INDEX } from "../../doors/nn.ts";
import { keyOf, uniformInt } from "../../doors/testing.ts";
import { withFolder } from "../parity/folder.ts";
import { ownedParts, type Trace } from "../parity/training.ts";
import type { ZooModel } from "./families.ts";

const [BATCH, SEQ] = [2, 20];
/** More than a run has. */
const RANKS = 16;

/** The place of a rank. */
export interface Place {
  readonly device: Device;
  readonly group: ProcessGroup;
}

/** The results of a model on one rank. */
export interface ZooReport {
  readonly ddp: Trace;
  readonly auto: Trace;
  readonly manual: Trace;
  /** By the automatic plan; the second half is taken by another model, which loads what the first half saved. */
  readonly resumed: Trace;
  /** Names of the modules of the automatic plan's units. */
  readonly units: readonly string[];
  /** Values of weights that were saved as a Hugging Face folder, and of those that another model loaded from it. */
  readonly saved: Trace["owned"];
  readonly loaded: Trace["owned"];
}

/** A model under its optimizer. */
class Training {
  readonly model: CausalLm;
  readonly #place: Place;
  readonly #optimizer: AdamW;
  readonly #losses: number[] = [];
  readonly #gradNorms: number[] = [];

  constructor(place: Place, model: CausalLm) {
    this.#place = place;
    this.model = model;
    this.#optimizer = new AdamW(model.parameters(), { learningRate: 3e-3 });
  }

  static async open(place: Place, { hfConfig }: ZooModel, fsdpPlan: FsdpPlan, seed: number): Promise<Training> {
    return new Training(place, await openModel(place, hfConfig, { fsdpPlan, seed }));
  }

  take(from: number, to: number): this {
    const { device, group } = this.#place;
    const { model } = this;
    for (let step = from; step < to; step++) {
      const context = { device, group, model, optimizer: this.#optimizer, maxGradNorm: 1 };
      const { loss, gradNorm } = trainStep(context, { microBatches: [microBatch(step, group.rank, model)] }, step + 1);
      this.#losses.push(loss);
      this.#gradNorms.push(gradNorm);
    }
    return this;
  }

  /** Hands over to another training, by a checkpoint. */
  async handOver(other: Training): Promise<Training> {
    const { group } = this.#place;
    await withFolder(group, async (directory) => {
      const { model } = this;
      await saveCheckpoint({ directory, step: 1, model, optimizer: this.#optimizer, group, state: {} });
      await loadCheckpoint({ directory, model: other.model, optimizer: other.#optimizer, group });
    });
    other.#losses.push(...this.#losses);
    other.#gradNorms.push(...this.#gradNorms);
    return other;
  }

  get trace(): Trace {
    return { losses: this.#losses, gradNorms: this.#gradNorms, owned: ownedParts(this.model) };
  }
}

/** Tokens of which some have no label, more on some ranks than on others. */
function microBatch(step: number, rank: number, { vocabSize }: CausalLm): MicroBatch {
  const key = keyOf(1, `step ${step}, rank ${rank}`);
  const inputIds = Int32Array.from({ length: BATCH * SEQ }, (_, i) => uniformInt(key, i, vocabSize));
  const labels = inputIds.map((_, i) => {
    const isIgnored = i % SEQ === SEQ - 1 || uniformInt(key, 1000 + i, 10) < 1 + 2 * rank;
    return isIgnored ? IGNORE_INDEX : inputIds[i + 1] ?? IGNORE_INDEX;
  });
  const random = { seed: 3, firstSample: (step * RANKS + rank) * BATCH };
  return { inputIds, labels, batch: BATCH, seq: SEQ, random };
}

/** Trains a model in all ways; every rank of the group calls it. */
export async function trainModel(place: Place, zoo: ZooModel, steps: number): Promise<ZooReport> {
  const replicated = await openModel(place, zoo.hfConfig, { seed: 7 });
  replicate(replicated, { mesh: place.group });
  await replicated.load();
  const ddp = new Training(place, replicated).take(0, steps).trace;
  const auto = (await Training.open(place, zoo, "auto", 7)).take(0, steps);
  const manual = (await Training.open(place, zoo, { mode: "manual", modules: zoo.manual }, 7)).take(0, steps).trace;
  const half = Math.ceil(steps / 2);
  const first = (await Training.open(place, zoo, "auto", 7)).take(0, half);
  const second = await first.handOver(await Training.open(place, zoo, "auto", 8));
  const loaded = await withFolder(place.group, async (folder) => {
    await auto.model.save(folder);
    return ownedParts(await openModel(place, folder, { fsdpPlan: "auto" }));
  });
  return {
    ddp,
    manual,
    loaded,
    auto: auto.trace,
    saved: ownedParts(auto.model),
    resumed: second.take(half, steps).trace,
    units: describeSharding(auto.model).units.map(({ name }) => name),
  };
}
