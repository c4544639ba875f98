/** Training and evaluation on documents that are kept apart: on any number of ranks, and whatever rows they lie in. @module */
import assert from "node:assert/strict";
import { test as ownTest } from "node:test";
import type { MicroBatch } from "../../src/data/micro_batch.ts";
import { ArgumentError } from "../../src/errors.ts";
import { openModel } from "../../src/train/open_model.ts";
import { Logger } from "../../src/runtime/log.ts";
import { textData } from "../../src/train/text_data.ts";
import { launch } from "../../src/train/run.ts";
import { scope } from "../../src/tensor/scope.ts";
import { sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { valuesOf, world } from "../support/world.ts";
import { type PackedOrders, type PackedReport, trainPacked } from "./packed_ranks.ts";
import { SIZES } from "./loop_ranks.ts";

/** Documents of 3 to 40 bytes. */
const TEXT = Array.from({ length: 48 }, (_, i) => {
  return JSON.stringify({ text: "all of the words in a text and more of it".slice(0, 3 + (i * 11) % 38) });
}).join("\n");

async function reports(size: number, data: PackedOrders): Promise<readonly PackedReport[]> {
  return valuesOf<PackedReport>(await world(size, trainPacked, { data }));
}

for (const packing of ["bfd", "bfd-split", "none"] as const) {
  test(`FSDP, DDP and accumulation give the same bits with packing '${packing}'`, { timeout: 120_000 }, async () => {
    using folder = temporaryDirectory();
    const orders = { file: folder.write("text.jsonl", TEXT), packing, steps: 4 };
    const [alone] = await reports(1, { ...orders, mode: "fsdp", microBatches: 2 });
    assert.ok(alone !== undefined && new Set(alone.losses).size === 4);
    for (const mode of ["fsdp", "ddp"] as const) {
      for (const { losses } of await reports(2, { ...orders, mode, microBatches: 1 })) {
        assert.deepEqual(losses, alone.losses, mode);
      }
    }
    const { documents, tokens } = countsOf(packing);
    assert.equal(alone.tokens, tokens - documents);
  });
}

/** Parts of documents that rows take, and their tokens; each part's first token is not predicted. */
function countsOf(packing: "bfd" | "bfd-split" | "none") {
  const lengths = TEXT.split("\n").map((line) => line.length - '{"text":""}'.length + 1);
  const parts = lengths.flatMap((length) => {
    return length <= 32 ? [length] : packing === "bfd-split" ? [32, length - 32] : [32];
  });
  return { documents: parts.length, tokens: parts.reduce((sum, length) => sum + length, 0) };
}

ownTest("evaluate() gives documents one loss, whichever rows they lie in", async () => {
  using folder = temporaryDirectory();
  const orders = { file: folder.write("text.jsonl", TEXT), steps: 0, mode: "plain", microBatches: 1 } as const;
  const [[packed], [alone]] = [
    await reports(1, { ...orders, packing: "bfd" }),
    await reports(1, { ...orders, packing: "none" }),
  ];
  assert.ok(packed !== undefined && alone !== undefined);
  assert.equal(packed.tokens, alone.tokens);
  assert.ok(Math.abs(packed.mean - alone.mean) <= 1e-6 * alone.mean, `${packed.mean}, alone ${alone.mean}`);
});

ownTest("Run.backward() balances routers over tokens that are no padding", async () => {
  await using run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 26 });
  const config = { ...SIZES, model_type: "mixtral", num_local_experts: 4, num_experts_per_tok: 2 };
  const model = await openModel(run, { ...config, output_router_logits: true, router_aux_loss_coef: 0.5 }, { seed: 3 });
  await model.load();
  const ids = Int32Array.from({ length: 4 }, (_, i) => (i * i * 3 + 1) % 32);
  const labels = Int32Array.of(5, 6, 7, -100);
  const padded: MicroBatch = {
    inputIds: Int32Array.of(...ids, 0, 0),
    labels: Int32Array.of(...labels, -100, -100),
    ...{ batch: 1, seq: 6, lengths: Int32Array.of(4), documentStarts: Int32Array.of(0, 0, 0, 0, 4, 4) },
  };
  using _frame = scope();
  const [whole, short] = [padded, { inputIds: ids, labels, batch: 1, seq: 4 }].map((microBatch) =>
    run.backward(model, { microBatches: [microBatch] }).item()
  );
  assert.ok(whole !== undefined && short !== undefined);
  assert.ok(Math.abs(whole - short) <= 1e-6 * short, `${whole}, without padding ${short}`);
  const wrong = { ...padded, documentStarts: Int32Array.of(0, 0, 1, 1, 4, 4) };
  assert.throws(() => run.backward(model, { microBatches: [wrong] }), ArgumentError);
});

ownTest("textData() says what packing leaves out, and nothing where it keeps all", async () => {
  using folder = temporaryDirectory();
  const file = folder.write("text.jsonl", TEXT);
  const lines: string[] = [];
  const log = new Logger({ level: "warn", sink: ({ message }) => void lines.push(message) });
  await using run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 26, log });
  const model = await openModel(run, { ...SIZES, vocab_size: 257, max_position_embeddings: 32 });
  const [kept, all] = [countsOf("bfd"), countsOf("bfd-split")];
  const [documents, tokens] = [all.documents - kept.documents, all.tokens - kept.tokens];
  for (const [packing, remedy] of [["bfd", "'bfd-split'"], ["none", "'bfd-split' or 'wrapped'"]] as const) {
    lines.length = 0;
    using _data = await textData(run, model, file, { sequenceLength: 32, batch: 4, packing });
    assert.match(
      lines.join("\n"),
      new RegExp(
        `Packing '${packing}' leaves out ${tokens} tokens, of ${documents} documents longer than sequenceLength 32: a longer one, or the packing ` +
          `${remedy} would keep them`,
      ),
    );
  }
  lines.length = 0;
  using _data = await textData(run, model, file, { sequenceLength: 32, batch: 4, packing: "bfd-split" });
  assert.deepEqual(lines, []);
});
