/**
 * Our side: rows as samples, trainings by `fullyshard train`, and what a model gives.
 *
 * @module
 */
import { readFileSync, writeFileSync } from "node:fs";
import * as z from "zod";
import {
  type Batch,
  generate,
  int32,
  launch,
  noGrad,
  openModel,
  type Run,
  scope,
  tensor,
  textData,
} from "../../mod.ts";
import { loadTokenizer } from "../../doors/data.ts";
import { succeeds } from "./commands.ts";
import { SEQUENCE_LENGTH } from "./inputs.ts";
import type { Reading, ReadRequest, Sample } from "./peer.ts";

/** Rows of a batch, with labels at their own tokens: the first token of a row is never predicted. */
export function samplesOf({ microBatches }: Batch): readonly Sample[] {
  return microBatches.flatMap(({ inputIds, labels, batch, seq, lengths }) =>
    Array.from({ length: batch }, (_, row) => {
      const begin = row * seq;
      const length = lengths?.[row] ?? seq;
      const shifted = [...labels.subarray(begin, begin + length)];
      return { ids: [...inputIds.subarray(begin, begin + length)], labels: [-100, ...shifted.slice(0, -1)] };
    })
  );
}

/** The ids of a batch's documents, each as one text: a row is one, or holds several. */
export function documentsOf({ microBatches }: Batch): readonly string[] {
  return microBatches.flatMap(({ inputIds, documentStarts, batch, seq, lengths }) =>
    Array.from({ length: batch }, (_, row) => {
      const begin = row * seq;
      const ids = inputIds.subarray(begin, begin + (lengths?.[row] ?? seq));
      const starts = new Set(documentStarts?.subarray(begin, begin + ids.length) ?? [0]);
      const borders = [...starts, ids.length];
      return borders.slice(1).map((end, i) => ids.subarray(borders[i], end).join());
    }).flat()
  );
}

/** Options of rows. */
interface RowOptions {
  readonly lossOn?: "assistant" | "completion" | "all";
  readonly isPreference?: boolean;
}

/** All rows of a file in their order, as samples. */
export async function readRows(base: string, rows: string, options: RowOptions = {}): Promise<readonly Sample[]> {
  await using run = await launch();
  const model = await openModel(run, base);
  using data = await textData(run, model, rows, { sequenceLength: SEQUENCE_LENGTH, batch: 1, ...options });
  const found: Sample[] = [];
  for await (const batch of data) found.push(...samplesOf(batch));
  return found;
}

/** The numbers of the rows that each step of a run with seed 0 takes, row after row. */
export async function orderOf(base: string, rows: string, steps: number, batch: number): Promise<readonly number[]> {
  const keys = (await readRows(base, rows)).map(({ ids }) => ids.join());
  await using run = await launch();
  const model = await openModel(run, base);
  using data = await textData(run, model, rows, { sequenceLength: SEQUENCE_LENGTH, batch });
  const order: number[] = [];
  for await (const taken of data.take(steps)) {
    order.push(...samplesOf(taken).map(({ ids }) => keys.indexOf(ids.join())));
  }
  return order;
}

/** Writes rows of a file into another one, in an order. */
export function writeInOrder(from: string, order: readonly number[], to: string): void {
  const lines = readFileSync(from, "utf8").trimEnd().split("\n");
  writeFileSync(to, order.map((row) => `${lines[row]}\n`).join(""));
}

/** A line of a run's metrics. */
const line: z.ZodType<
  { readonly step: number; readonly loss: number; readonly grad_norm: number; readonly eval_loss?: number | undefined }
> = z
  .object({ step: z.int(), loss: z.number(), grad_norm: z.number(), eval_loss: z.number().optional() });

/** The lines of a run's metrics, as they are. */
export function metricLines(out: string): readonly string[] {
  return readFileSync(`${out}/metrics.jsonl`, "utf8").split("\n").filter((text) => text !== "");
}

/** The metrics of a run, step by step. */
export function metricsOf(out: string): readonly z.infer<typeof line>[] {
  return metricLines(out).map((text) => line.parse(JSON.parse(text)));
}

/** Trains by `fullyshard train` on `ranks` ranks. */
export async function train(
  out: string,
  ranks: number,
  ...flags: readonly string[]
): Promise<{ readonly said: string }> {
  const { stdout, stderr } = await succeeds(
    ...["train", "--nproc-per-node", String(ranks), "--out", out, "--cache", `${out}-cache`, "--sample-tokens", "0"],
    ...["--sequence-length", String(SEQUENCE_LENGTH), "--schedule", "constant", "--warmup-steps", "0"],
    ...flags,
  );
  return { said: stdout + stderr };
}

/** Scores of samples, and texts that go on from prompts by the likeliest tokens. */
export async function read(request: ReadRequest): Promise<Reading> {
  const { base, adapter, samples, prompts, newTokens: maxNewTokens, eosId } = request;
  await using run: Run = await launch();
  const model = await openModel(run, base, adapter === undefined ? {} : { adapter });
  await model.load();
  model.eval();
  const tokenizer = await loadTokenizer(base);
  const logits = samples.map((ids) => {
    using _frame = scope();
    const inputIds = tensor(run.device, ids, { shape: [1, ids.length], dtype: int32 });
    return [...noGrad(() => model.call({ inputIds })).logits?.toArray() ?? []];
  });
  const texts = prompts.map((ids) => tokenizer.decode(generate(model, ids, { maxNewTokens, temperature: 0, eosId })));
  return { logits, texts };
}

/** The largest distance of two lists of numbers; infinite where their lengths differ or a number is none. */
export function distance(a: readonly number[], b: readonly number[]): number {
  if (a.length !== b.length || a.length === 0) return Infinity;
  return a.reduce((most, value, i) => {
    const off = Math.abs(value - (b[i] ?? NaN));
    return Number.isNaN(off) ? Infinity : Math.max(most, off);
  }, 0);
}
