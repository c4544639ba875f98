/** Evaluation: the mean over all tokens of all ranks, and nothing changed by it. @module */
import assert from "node:assert/strict";
import { describe } from "node:test";
import { openText } from "../../src/data/documents.ts";
import { packInMemory } from "../../src/data/token_stream.ts";
import { BYTE_TOKENIZER } from "../../src/data/tokenizer.ts";
import { ZOO, zooModels } from "../../scripts/zoo/families.ts";
import { noGrad } from "../../src/autograd/mode.ts";
import type { MicroBatch } from "../../src/data/micro_batch.ts";
import { int32 } from "../../src/dtype.ts";
import { tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import { evaluate, type Evaluation } from "../../src/train/evaluate.ts";
import { openModel } from "../../src/train/open_model.ts";
import { launch } from "../../src/train/run.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { errorsOf, valuesOf, world } from "../support/world.ts";
import { type EvaluateOrders, type EvaluateReport, evaluateTwice } from "./evaluate_ranks.ts";
import { microBatch, SIZES } from "./loop_ranks.ts";
import { longTest, sharedTest as it } from "../support/share.ts";

const CPU = { cpuMath: "wasm", memoryBytes: 2 ** 26 } as const;

function close(actual: number, expected: number, what: string): void {
  assert.ok(Math.abs(actual - expected) <= 1e-5 * Math.abs(expected), `${what}: ${actual} is not ${expected}`);
}

/** A row of tokens, of which the first two have no label. */
function rowOf(length: number, vocab: number): MicroBatch {
  const inputIds = Int32Array.from({ length }, (_, i) => 1 + (length * 7 + i * i * 3) % (vocab - 1));
  return { inputIds, labels: inputIds.map((id, i) => i < 2 ? -100 : (id * 5 + i) % vocab), batch: 1, seq: length };
}

/** Rows padded to the longest of them. */
function joined(rows: readonly MicroBatch[]): MicroBatch {
  const seq = Math.max(...rows.map((row) => row.seq));
  const wide = (of: "inputIds" | "labels", filled: number): Int32Array =>
    Int32Array.from(rows.flatMap((row) => [...row[of], ...Array.from({ length: seq - row.seq }, () => filled)]));
  const lengths = Int32Array.from(rows, (row) => row.seq);
  return { inputIds: wide("inputIds", 0), labels: wide("labels", -100), batch: rows.length, seq, lengths };
}

async function reportsOf(size: number, data: EvaluateOrders): Promise<readonly EvaluateReport[]> {
  return valuesOf<EvaluateReport>(await world(size, evaluateTwice, { data }));
}

describe("evaluate()", () => {
  const batches = {
    even: [[[[1, 0]], [[2, 2]]], [[[3, 1]], [[4, 0]]]],
    uneven: [[[[1, 0], [2, 5]], [[5, 0]], [[7, 1]]], [[[3, 3]]]], // 6 + 1, 6 and 5 tokens; 3 tokens
    idle: [[[[1, 0]], [[2, 1]]], []], // a rank without data
  } as const;
  for (const [name, parts] of Object.entries(batches)) {
    it(`is the mean over all tokens, alike on all ranks, in every mode: ${name} ranks`, async () => {
      const labels = parts.flat(2).map(([, ignored]) => 6 - ignored);
      const tokens = labels.reduce((sum, count) => sum + count);
      const [whole] = await reportsOf(1, { mode: "plain", batches: [[parts.flat(2)]] });
      assert.ok(whole !== undefined);
      assert.equal(whole.first.tokens, tokens);
      close(whole.first.perplexity, Math.exp(whole.first.loss), "perplexity");
      for (const mode of ["fsdp", "ddp"] as const) {
        const reports = await reportsOf(2, { mode, batches: parts });
        assert.deepEqual(reports[1]?.first, reports[0]?.first, "ranks differ");
        for (const { first, second, gradients: [before, after], inUse } of [whole, ...reports]) {
          assert.equal(first.tokens, tokens);
          assert.equal(first.loss, whole.first.loss, `loss of ${mode}`);
          assert.deepEqual(first, whole.first);
          assert.deepEqual(second, first);
          assert.deepEqual(after, before);
          assert.ok(before?.some((norm) => norm > 0));
          assert.equal(new Set(inUse).size, 1, `bytes in use: ${inUse}`);
        }
      }
    });
  }

  for (const family of ZOO) {
    it(`gives ${family} the same bits however its rows lie in micro-batches`, async () => {
      const [{ hfConfig } = assert.fail()] = zooModels(family);
      await using run = await launch(CPU);
      const model = await openModel(run, hfConfig, { seed: 3 });
      await model.load();
      const rows = [5, 9, 3, 16, 1, 7, 2, 12].map((length) => rowOf(length, model.vocabSize));
      const of = async (groups: readonly (readonly MicroBatch[])[]): Promise<Evaluation> =>
        await evaluate(run, model, groups.map((group) => ({ microBatches: [joined(group)] })));
      const alone = await of(rows.map((row) => [row]));
      assert.equal(alone.tokens, 55 - 2 * 8 + 1); // the row of one token has no label to lose
      assert.deepEqual(await of([rows]), alone);
      assert.deepEqual(await of([rows.slice(0, 3), rows.slice(3, 5), rows.slice(5)]), alone);
      assert.deepEqual(await of(rows.toReversed().map((row) => [row])), alone);
    });
  }

  it("is what the model's loss says, and counts the tokens that it finds likeliest", async () => {
    await using run = await launch(CPU);
    const model = await openModel(run, SIZES, { seed: 3 });
    await model.load();
    const { loss } = await evaluate(run, model, [{ microBatches: [microBatch(1, 2)] }]);
    const [whole] = await reportsOf(1, { mode: "plain", batches: [[[[1, 2]]]] });
    assert.equal(loss, whole?.first.loss);
    using _frame = scope();
    const rows = [microBatch(1, 2), microBatch(2, 0), microBatch(5, 1)];
    let [sum, tokens, correct] = [0, 0, 0];
    for (const { labels, inputIds, seq } of rows) {
      const ids = tensor(run.device, inputIds, { shape: [1, seq], dtype: int32 });
      const given = tensor(run.device, labels, { shape: [1, seq], dtype: int32 });
      sum += noGrad(() => model.call({ inputIds: ids, labels: given })).loss?.item() ?? NaN;
      const likeliest = noGrad(() => model.call({ inputIds: ids })).logits?.argmax().toArray() ?? [];
      for (const [place, label] of labels.entries()) {
        if (label < 0) continue;
        tokens++;
        if (likeliest[place] === label) correct++;
      }
    }
    const all = await evaluate(run, model, rows.map((row) => ({ microBatches: [row] })));
    close(all.loss, sum / tokens, "loss");
    assert.deepEqual([all.tokens, all.correct, all.accuracy], [tokens, correct, correct / tokens]);
    // Labels that the model finds likeliest are all counted.
    const [{ inputIds, seq, batch } = assert.fail()] = rows;
    const ids = tensor(run.device, inputIds, { shape: [1, seq], dtype: int32 });
    const labels = Int32Array.from(noGrad(() => model.call({ inputIds: ids })).logits?.argmax().toArray() ?? []);
    assert.equal((await evaluate(run, model, [{ microBatches: [{ inputIds, labels, seq, batch }] }])).accuracy, 1);
  });

  longTest("reads all of a text once, whatever the number of ranks", async () => {
    using folder = temporaryDirectory();
    const file = folder.write("a.txt", "Each byte is a token, and the last ones count. ".repeat(11));
    const { length } = await packInMemory(openText([file]), BYTE_TOKENIZER);
    assert.ok((length - 1) % 12 !== 0, "there is a rest");
    const all = await Promise.all([1, 2, 3, 4].map((size) => reportsOf(size, { mode: "fsdp", file })));
    const [[alone] = []] = all;
    assert.equal(alone?.first.tokens, length - 1);
    for (const reports of all) {
      for (const { first, second } of reports) {
        assert.equal(first.tokens, length - 1);
        close(first.loss, alone.first.loss, "loss");
        assert.deepEqual(second, first);
      }
    }
  });

  it("runs in evaluation mode, and lets each module train again as it did, also after a failure", async () => {
    await using run = await launch(CPU);
    const model = await openModel(run, SIZES, { seed: 3 });
    await model.load();
    const [first, second] = model.layers;
    assert.ok(first !== undefined && second !== undefined);
    second.eval();
    const seen: boolean[] = [];
    first.registerForwardHook(() => void seen.push(first.training));
    await evaluate(run, model, [{ microBatches: [microBatch(1, 2)] }]);
    const bad = { ...microBatch(1, 0), inputIds: new Int32Array(6).fill(99) };
    const inUse = run.device.allocator.stats.inUse;
    await assert.rejects(evaluate(run, model, [{ microBatches: [bad] }]), /id 99/);
    assert.equal(run.device.allocator.stats.inUse, inUse);
    assert.deepEqual(seen, [false]);
    assert.deepEqual([model.training, first.training, second.training], [true, true, false]);
  });

  it("refuses data without a label", async () => {
    await using run = await launch(CPU);
    const model = await openModel(run, SIZES, { seed: 3 });
    await model.load();
    const message = /Cannot evaluate on data in which no token has a label/;
    await assert.rejects(evaluate(run, model, []), { name: "ArgumentError", message });
    await assert.rejects(evaluate(run, model, [{ microBatches: [microBatch(1, 6)] }]), message);
  });

  it("tells every rank when one cannot read its data", async () => {
    const data = { mode: "fsdp", batches: batches.even, broken: 1 } as const;
    const [first, second] = errorsOf(await world(2, evaluateTwice, { data }));
    assert.match(
      first ?? "",
      /^CollectiveError: .*read a batch to evaluate on.*rank 1 failed: RangeError: the disk is gone/,
    );
    assert.match(second ?? "", /^RangeError: the disk is gone/);
  });
});
