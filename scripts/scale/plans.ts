/**
 * Plans of many ranks: the tree of hosts, the shards of a model, a dry step, and the manifest of a checkpoint.
 *
 * @module
 */
import { AdamW, clipGradNorm, dryRun, fullyShard, openModel, scope } from "../../mod.ts";
import { agreeOnWriters } from "../../src/checkpoint/state_dict/partition.ts";
import { renderManifest } from "../../src/checkpoint/sharded/manifest.ts";
import { placeBoxes, savedTensors } from "../../src/checkpoint/sharded/shard_files.ts";
import { treePlaces } from "../../src/comm/hosts/tree.ts";
import { planSegment, shardLayoutOf } from "../../src/fsdp/layout.ts";
import { numelOf, type Shape } from "../../src/shape.ts";
import { at } from "../../src/at.ts";

/** What plans of some ranks took. */
export interface PlanFigures {
  /** The tree of hosts, and the shards of all units for one rank. */
  readonly plan_ms: number;
  readonly dry_step_ms: number;
  /** Calls of a step that move tensors. */
  readonly step_calls: number;
  /** Bytes that a rank receives in a step. */
  readonly step_bytes: number;
  /** Bytes of the manifest of the model and AdamW's two states, and the time of planning and writing it. */
  readonly manifest_bytes: number;
  readonly manifest_ms: number;
}

/** A Llama of 1.2 billion parameters, as `transformers` says of Llama 3.2 1B. */
const SIZES = {
  model_type: "llama",
  vocab_size: 128_256,
  hidden_size: 2048,
  intermediate_size: 8192,
  num_hidden_layers: 16,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  max_position_embeddings: 4096,
  tie_word_embeddings: true,
};

/** A unit's parameters, by name. */
type Unit = readonly (readonly [string, Shape])[];

/** Plans for a world of ranks. */
export async function measurePlans(size: number, ranksPerHost: number): Promise<PlanFigures> {
  const units = new Map<string, [string, Shape][]>();
  let dry_step_ms = 0;
  const { collectives, bytesCommunicated } = await dryRun(async (run) => {
    const model = await openModel(run, SIZES);
    for (const { fqn, shape } of model.parameters()) {
      const unit = /layers\.\d+/.exec(fqn)?.[0] ?? "root";
      units.set(unit, [...units.get(unit) ?? [], [fqn, shape]]);
    }
    for (const block of model.layers) fullyShard(block, { mesh: run.mesh });
    fullyShard(model, { mesh: run.mesh });
    await model.load();
    const optimizer = new AdamW(model.parameters());
    const ids = new Int32Array(512);
    const batch = { microBatches: [{ inputIds: ids, labels: ids, batch: 1, seq: 512 }] };
    return () => {
      using _step = scope();
      const begun = performance.now();
      optimizer.zeroGrad();
      run.backward(model, batch);
      clipGradNorm(model.parameters(), 1);
      optimizer.step();
      dry_step_ms = performance.now() - begun;
    };
  }, { worldSize: size, localWorldSize: ranksPerHost, standsFor: "mpi" });

  const begun = performance.now();
  treePlaces(Array.from({ length: size }, (_, rank) => rank), ranksPerHost);
  const plans = [...units.values()].map((unit: Unit) => planSegment(unit.map(([, shape]) => numelOf(shape)), size, 4));
  const plan_ms = performance.now() - begun;
  const { manifest_bytes, manifest_ms } = measureManifest([...units.values()], plans, size);
  return {
    ...{ plan_ms, dry_step_ms, manifest_bytes, manifest_ms },
    step_calls: collectives.length,
    step_bytes: bytesCommunicated,
  };
}

/** Renders the manifest that ranks with such shards would write. */
function measureManifest(
  units: readonly Unit[],
  plans: readonly ReturnType<typeof planSegment>[],
  size: number,
): Pick<PlanFigures, "manifest_bytes" | "manifest_ms"> {
  const begun = performance.now();
  const tensors = ["", ".exp_avg", ".exp_avg_sq"].flatMap((state) =>
    units.flatMap((unit, index) => {
      const plan = at(plans, index, "plan of unit");
      return unit.map(([name, shape], place) => ({
        name: `${name}${state}`,
        layoutOf: (rank: number) => shardLayoutOf(plan, at(plan.offsets, place, "offset"), shape, rank),
      }));
    })
  );
  const texts = Array.from(
    { length: size },
    (_, rank) => JSON.stringify(tensors.map(({ layoutOf }) => layoutOf(rank).boxes)),
  );
  const held = tensors.map(({ name, layoutOf }) => ({ name, shard: layoutOf(0) }));
  const writers = agreeOnWriters(held, { size, exchangeText: () => texts });
  const group = placeBoxes(
    "",
    held.map(({ name, shard: { shape } }, index) => ({
      source: name,
      name,
      shape,
      writers: at(writers, index, "writers of tensor"),
    })),
  );
  const files = new Map(group.boxes.map(({ file }) => [file, { byteLength: 2 ** 20, crc32: "00000000" }]));
  const text = renderManifest({
    ...{ step: 1, worldSize: size, environment: {}, files, optimizer: undefined, state: {} },
    model: savedTensors(group),
  });
  return { manifest_bytes: text.length, manifest_ms: performance.now() - begun };
}
