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
import { IGNORE_INDEX, scoresOfLogits, where } from "../nn/functional.ts";
import type { HeadOutput, LanguageModelHead } from "../nn/head.ts";
import { combineInto } from "../ops/elementwise.ts";
import { embeddingOp } from "../ops/embedding.ts";
import { linearLossOp, type RowLosses } from "../ops/loss.ts";
import { applyOne } from "../tensor/apply.ts";
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

/** Losses `log Σ exp(logits) − logits[label]` and their gradients `softmax − onehot`, with the columns of the logits cut over ranks. */
const rowLosses: RowLosses<VocabularyLossAttrs> = (call, [losses, labels], firstRow, rows, logits, dlogits) =>
  noGrad(() => {
    using _chunk = scope();
    const { group, unit, vocab, ignoreIndex } = call.attrs;
    const given = labels.reshape([labels.numel]).narrow(0, firstRow, rows);
    const counted = given.ne(ignoreIndex);
    const { rows: columns, isOwn } = ownIds(where(counted, given.to(float32), 0).to(int32), vocab, group);
    const index = columns.unsqueeze(1);
    const hasOwn = counted.logicalAnd(isOwn).to(float32).unsqueeze(1);
    const largest = logits.max(-1, true).contiguous();
    group.allReduce(largest.ptr, rows, float32, { op: "max", unit: `largest logits of '${unit}'` }).wait();
    combineInto(call, "sub", logits, logits, largest);
    const sums = call.empty([2, rows, 1], float32);
    const target = logits.gather(1, index);
    const [own, targets] = [sums.select(0, 0), sums.select(0, 1)];
    combineInto(call, "mul", targets, target, hasOwn);
    const { kernels } = call.device;
    kernels.unary({ op: "exp", dtype: float32, n: logits.numel, p0: 0, p1: 0, dst: logits.ptr, src: logits.ptr });
    const [outer, n] = [rows, logits.numel / Math.max(1, rows)];
    kernels.reduce({ op: "sum", dtype: float32, outer, n, inner: 1, dst: own.ptr, src: logits.ptr });
    group.allReduce(sums.ptr, sums.numel, float32, { unit: `sums of exponentials of '${unit}'` }).wait();
    const weights = counted.to(float32).unsqueeze(1);
    const into = losses.narrow(0, firstRow, rows).unsqueeze(1);
    combineInto(call, "mul", into, own.log().sub(targets), weights);
    if (dlogits === undefined) return;
    combineInto(call, "mul", dlogits, logits, weights.div(own));
    kernels.scatterAdd({
      ...{ dtype: float32, outer, n, m: 1, inner: 1, strideOuter: 1, stride: 1, strideInner: 1 },
      ...{ dst: dlogits.ptr, src: hasOwn.neg().ptr, index: columns.ptr },
    });
  });

/** hidden [.., width], a part of the weight [vocab, width], labels int32 [..], a part of the bias → the sum of the rows' losses. */
const vocabularyCrossEntropyOp = linearLossOp<VocabularyLossAttrs>({
  name: "vocabularyCrossEntropy",
  rowLosses,
  // Ranks whose parts differ in size must call the same collectives.
  columns: ({ vocab, group: { size } }) => chunkRange(vocab, 0, size).length,
  classes: ({ vocab }) => vocab,
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
  if (labels === undefined || isPerToken) {
    const { logits: own } = forward(entered, undefined, logitsToKeep);
    if (own === undefined) return {};
    const logits = gather(own, vocab, attrs);
    return labels === undefined ? { logits } : { perToken: scoresOfLogits(logits.to(float32), labels) };
  }
  const inputs = [head.scaled(entered), weight, labels, ...bias === undefined ? [] : [bias]];
  return { loss: applyOne(vocabularyCrossEntropyOp, inputs, { ...attrs, vocab, ignoreIndex: IGNORE_INDEX, softcap }) };
}
