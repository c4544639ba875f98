/**
 * A vocabulary whose rows are divided among the ranks of an axis: the lookup of ids, logits of all ids, and the cross-entropy of labels
 * that never holds a row of all logits (Megatron-LM's `VocabParallelEmbedding` and `vocab_parallel_cross_entropy`: Shoeybi et al. 2019,
 * section 3).
 *
 * @module
 */
import { noGrad } from "../autograd/mode.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { float32, int32 } from "../dtype.ts";
import type { Embedding } from "../nn/embedding.ts";
import { IGNORE_INDEX, where } from "../nn/functional.ts";
import { InternalError } from "../errors.ts";
import type { HeadOutput, LanguageModelHead } from "../nn/head.ts";
import { copyElements } from "../ops/convert.ts";
import { combineInto } from "../ops/elementwise.ts";
import { embeddingOp } from "../ops/embedding.ts";
import { linearLossOp, type RowLosses } from "../ops/loss.ts";
import type { OpCall, OpContext } from "../ops/op.ts";
import { tokenScoresOpOf } from "../ops/token_scores.ts";
import { matrixOf } from "../shape.ts";
import { apply, applyOne } from "../tensor/apply.ts";
import { chunkRange } from "../tensor/cut.ts";
import { scope } from "../tensor/scope.ts";
import { Tensor } from "../tensor/tensor.ts";
import { enter, leave, type RegionAttrs } from "./ops.ts";
import { gather } from "./slices.ts";

/** Ids, counted from this rank's first row, and where they are its own. */
interface OwnIds {
  /** Row numbers in the rank's part, int32. An id of another rank's row has the nearest row of this part. */
  readonly rows: Tensor;
  /** uint8: 1 where the row is this rank's. */
  readonly isOwn: Tensor;
}

/** Ids as rows of this rank's part. An id out of the vocabulary is a fault of the device. */
function ownIds(ids: Tensor, vocab: number, { rank, size }: ProcessGroup): OwnIds {
  const { begin, length } = chunkRange(vocab, rank, size);
  const dense = ids.contiguous();
  const none = Tensor.empty(ids.device, [0], float32, "checked ids");
  const [dtype, n] = [float32, ids.numel];
  ids.device.kernels.embedding({ dtype, n, vocab, cols: 0, y: none.ptr, w: none.ptr, ids: dense.ptr });
  none.dispose();
  // Floats hold these integers, as a vocabulary has fewer than 2^24 ids.
  const rows = dense.to(float32).sub(begin).clamp(0, length - 1).to(int32);
  return { rows, isOwn: dense.ge(begin).logicalAnd(dense.lt(begin + length)) };
}

/** Looks up the rows of ids in a table whose rows are cut over ranks; every rank gets all rows. */
export function lookUp({ weight, paddingIdx }: Embedding, ids: Tensor, attrs: RegionAttrs): Tensor {
  const [vocab = 0] = weight.globalShape;
  const { begin, length } = chunkRange(vocab, attrs.group.rank, attrs.group.size);
  const own = noGrad(() => ownIds(ids, vocab, attrs.group));
  const padding = paddingIdx >= begin && paddingIdx < begin + length ? paddingIdx - begin : -1;
  const found = applyOne(embeddingOp, [weight, own.rows], { paddingIdx: padding });
  return leave(found.maskedFill(noGrad(() => own.isOwn.logicalNot()).unsqueeze(-1), 0), attrs);
}

/** Attributes of the loss. */
interface VocabularyLossAttrs extends RegionAttrs {
  /** Ids of all ranks. */
  readonly vocab: number;
  readonly ignoreIndex: number;
  readonly softcap: number | undefined;
}

/** Logits of some rows by all ranks, of which this rank has a part of the columns. */
interface JoinedRows {
  /** The largest logit of each row, float32 [rows, 1]. */
  readonly largest: Tensor;
  /** Sum of the exponentials of the logits less the largest one, float32 [rows, 1]. */
  readonly sums: Tensor;
  /** The label's logit less the largest one, float32 [rows, 1]. */
  readonly targets: Tensor;
}

/** Labels of some rows, as columns of this rank's part. */
interface OwnLabels {
  /** Columns, int32 [rows]. */
  readonly columns: Tensor;
  /** 1 where the label's column is this rank's, else 0: float32 [rows, 1]. */
  readonly hasOwn: Tensor;
  /** 1 where the row has a label, else 0: float32 [rows, 1]. */
  readonly weights: Tensor;
}

function ownLabels(labels: Tensor, { group, vocab, ignoreIndex }: VocabularyLossAttrs): OwnLabels {
  const counted = labels.ne(ignoreIndex);
  const { rows: columns, isOwn } = ownIds(where(counted, labels.to(float32), 0).to(int32), vocab, group);
  const hasOwn = counted.logicalAnd(isOwn).to(float32).unsqueeze(1);
  return { columns, hasOwn, weights: counted.to(float32).unsqueeze(1) };
}

/** Overwrites logits by the exponentials of their differences from the largest logit of their row, over all ranks. */
function exponentiate(
  call: OpCall<VocabularyLossAttrs>,
  logits: Tensor,
  { columns, hasOwn }: OwnLabels,
): JoinedRows {
  const { group, unit } = call.attrs;
  const { rows, cols: n } = matrixOf(logits);
  const largest = logits.max(-1, true).contiguous();
  group.allReduce(largest.ptr, rows, float32, { op: "max", unit: `largest logits of '${unit}'` }).wait();
  combineInto(call, "sub", logits, logits, largest);
  const both = call.empty([2, rows, 1], float32);
  const target = logits.gather(1, columns.unsqueeze(1));
  const [sums, targets] = [both.select(0, 0), both.select(0, 1)];
  combineInto(call, "mul", targets, target, hasOwn);
  const { kernels } = call.device;
  kernels.unary({ op: "exp", dtype: float32, n: logits.numel, p0: 0, p1: 0, dst: logits.ptr, src: logits.ptr });
  kernels.reduce({ op: "sum", dtype: float32, outer: rows, n, inner: 1, dst: sums.ptr, src: logits.ptr });
  group.allReduce(both.ptr, both.numel, float32, { unit: `sums of exponentials of '${unit}'` }).wait();
  return { largest, sums, targets };
}

/** Subtracts 1 from the elements of the labels that this rank has. */
function subtractLabels({ device: { kernels } }: OpContext, dlogits: Tensor, { columns, hasOwn }: OwnLabels): void {
  const { rows: outer, cols: n } = matrixOf(dlogits);
  kernels.scatterAdd({
    ...{ dtype: float32, outer, n, m: 1, inner: 1, strideOuter: 1, stride: 1, strideInner: 1 },
    ...{ dst: dlogits.ptr, src: hasOwn.neg().ptr, index: columns.ptr },
  });
}

/** Losses `log Σ exp(logits) − logits[label]` and their gradients `softmax − onehot`, with the columns of the logits cut over ranks. */
const rowLosses: RowLosses<VocabularyLossAttrs> = (call, [losses, labels], firstRow, rows, logits, dlogits) =>
  noGrad(() => {
    using _chunk = scope();
    const own = ownLabels(labels.reshape([labels.numel]).narrow(0, firstRow, rows), call.attrs);
    const { sums, targets } = exponentiate(call, logits, own);
    const into = losses.narrow(0, firstRow, rows).unsqueeze(1);
    combineInto(call, "mul", into, sums.log().sub(targets), own.weights);
    if (dlogits === undefined) return;
    combineInto(call, "mul", dlogits, logits, own.weights.div(sums));
    subtractLabels(call, dlogits, own);
  });

/** Columns by which ranks count the rows of a chunk: those whose parts differ in size must call the same collectives. */
function columnsOf({ vocab, group: { size } }: VocabularyLossAttrs): number {
  return chunkRange(vocab, 0, size).length;
}

/** hidden [.., width], a part of the weight [vocab, width], labels int32 [..], a part of the bias → the sum of the rows' losses. */
const vocabularyCrossEntropyOp = linearLossOp<VocabularyLossAttrs>({
  name: "vocabularyCrossEntropy",
  rowLosses,
  columns: columnsOf,
  classes: ({ vocab }) => vocab,
});

/** The first id of those with the largest logit of all ranks, int32 [rows]. */
function likeliestOf(call: OpCall<VocabularyLossAttrs>, logits: Tensor): Tensor {
  const { group, unit, vocab } = call.attrs;
  const { rows, cols } = matrixOf(logits);
  const own = call.empty([rows], int32);
  call.device.kernels.argmax({ dtype: float32, rows, cols, src: logits.ptr, dst: own.ptr });
  const scores = logits.gather(1, own.unsqueeze(1));
  const largest = scores.contiguous().clone();
  group.allReduce(largest.ptr, rows, float32, { op: "max", unit: `likeliest logits of '${unit}'` }).wait();
  // The largest negative id is the smallest one.
  const { begin } = chunkRange(vocab, group.rank, group.size);
  const ids = own.to(float32).add(begin).neg().unsqueeze(1);
  const candidates = where(scores.eq(largest), ids, -vocab).contiguous();
  group.allReduce(candidates.ptr, rows, float32, { op: "max", unit: `likeliest ids of '${unit}'` }).wait();
  return candidates.neg().to(int32).squeeze(-1);
}

/** hidden, a part of the weight, labels, a part of the bias → the loss of each label, and the likeliest id, as `tokenScores`. */
const vocabularyScoresOp = tokenScoresOpOf<VocabularyLossAttrs>({
  name: "vocabularyScores",
  columns: columnsOf,
  // The backward begins at the logarithms of the sums, and asks no rank.
  keepsRows: true,
  score: (call, logits, labels, start, kept) =>
    noGrad(() => {
      using _chunk = scope();
      const { rows } = matrixOf(logits);
      const take = (tensor: Tensor): Tensor => tensor.reshape([labels.numel]).narrow(0, start, rows);
      copyElements(take(call.output(1)), likeliestOf(call, logits));
      const own = ownLabels(take(labels), call.attrs);
      const { largest, sums, targets } = exponentiate(call, logits, own);
      const logSums = sums.log();
      combineInto(call, "mul", take(call.output(0)).unsqueeze(1), logSums.sub(targets), own.weights);
      if (kept !== undefined) combineInto(call, "add", kept.narrow(0, start, rows), logSums, largest);
    }),
  differentiate: (call, { logits, start }, labels, kept) =>
    noGrad(() => {
      using _chunk = scope();
      if (kept === undefined) throw new InternalError("scores of a vocabulary without their sums");
      const { rows } = matrixOf(logits);
      const own = ownLabels(labels.reshape([labels.numel]).narrow(0, start, rows), call.attrs);
      combineInto(call, "sub", logits, logits, kept.narrow(0, start, rows));
      const { kernels } = call.device;
      kernels.unary({ op: "exp", dtype: float32, n: logits.numel, p0: 0, p1: 0, dst: logits.ptr, src: logits.ptr });
      subtractLabels(call, logits, own);
      combineInto(call, "mul", logits, logits, own.weights);
    }),
});

/**
 * What a head gives whose rows are divided among ranks: the loss of labels, the logits of all ids, or the loss of each label, on all
 * ranks.
 */
export function headOutput(
  head: LanguageModelHead,
  forward: LanguageModelHead["forward"],
  [hidden, labels, logitsToKeep, isPerToken = false]: Parameters<LanguageModelHead["forward"]>,
  attrs: RegionAttrs,
): HeadOutput {
  const { weight, bias, softcap, weight: { globalShape: [vocab = 0] } } = head;
  const entered = enter(hidden, attrs);
  if (labels === undefined) {
    const { logits: own } = forward(entered, undefined, logitsToKeep);
    return own === undefined ? {} : { logits: gather(own, vocab, attrs) };
  }
  const inputs = [head.scaled(entered), weight, labels, ...bias === undefined ? [] : [bias]];
  const how = { ...attrs, vocab, ignoreIndex: IGNORE_INDEX, softcap };
  if (!isPerToken) return { loss: applyOne(vocabularyCrossEntropyOp, inputs, how) };
  const [losses, likeliest] = apply(vocabularyScoresOp, inputs, how);
  if (losses === undefined || likeliest === undefined) {
    throw new InternalError("scores of a vocabulary without outputs");
  }
  return { perToken: { losses, likeliest } };
}
