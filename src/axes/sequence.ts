/**
 * Sequence parallelism within tensor parallelism (Korthikanti et al. 2022, section 4.2.2; PyTorch's `SequenceParallel`): between the layers
 * that tensor parallelism cuts, each rank of the axis has a part of the positions of every row. So norms and residuals take a rank's share of
 * their memory. Rows are gathered before attention and feed-forward, and what ranks make of them is reduce-scattered behind.
 *
 * Calls with a cache go on with whole rows, as a row of one new token has no parts.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import { ArgumentError, InternalError, UnsupportedError } from "../errors.ts";
import { SelfAttention } from "../nn/attention.ts";
import { Dropout } from "../nn/dropout.ts";
import { FeedForward, GatedFeedForward } from "../nn/feed_forward.ts";
import { Linear } from "../nn/linear.ts";
import { type HookHandle, Module } from "../nn/module.ts";
import { LayerNorm, RMSNorm } from "../nn/norm.ts";
import { Tensor } from "../tensor/tensor.ts";
import type { CutModule } from "./checks.ts";
import { gatherPositions, takePositions } from "./sequence_ops.ts";
import type { CutTarget, Style } from "./styles.ts";

/** A model whose blocks pass hidden states on. */
interface Stack extends Module {
  /** In the order of the forward. */
  readonly layers: readonly Module[];
  /** The modules behind the blocks, of which the first is a norm. */
  readonly parts: { readonly tail: readonly Module[] };
}

/** Rows of a sublayer whose linear layers sum over the ranks by themselves. */
export interface SummedRows {
  /** True while the sublayer computes with rows of which the layers around it have parts. */
  isActive: boolean;
}

/** The rows of which each rank has its positions, in one model. */
export interface SharedRows {
  /** Attentions and feed-forwards whose linear layers take whole rows, and give this rank's positions of the sum. */
  readonly summed: ReadonlyMap<Module, SummedRows>;
  /** Has blocks and norms compute with a rank's positions. @returns ends that */
  join(group: ProcessGroup): readonly HookHandle[];
}

const PARTIAL: readonly (Style | undefined)[] = ["colwise", "packed_colwise", "rowwise"];

function isNorm(module: unknown): module is RMSNorm | LayerNorm {
  return module instanceof RMSNorm || module instanceof LayerNorm;
}

function isStack(module: Module): module is Stack {
  if (!("layers" in module && "parts" in module)) return false;
  const { layers, parts } = module;
  return Array.isArray(layers) && typeof parts === "object" && parts !== null && "tail" in parts;
}

/** Names of the norms of a model that compute each position by itself: those of its blocks, and the one behind them. */
export function sequenceNorms(model: Module): readonly string[] {
  const { norms, last } = partsOf(model);
  return [...norms, last].flatMap(({ fqn }) => fqn === undefined ? [] : [fqn]);
}

/** A model's blocks, their norms and sublayers, and the norm behind them. */
function partsOf(model: Module) {
  const refuse = (what: string): never => {
    throw new UnsupportedError(`Cannot share positions over a tensor axis: ${what} is not implemented yet`);
  };
  if (!isStack(model)) {
    throw new ArgumentError(
      `Cannot share positions over a tensor axis: ${model.constructor.name} has no blocks and no norm behind them; give the whole model`,
    );
  }
  const { layers, parts: { tail: [last] } } = model;
  if (!isNorm(last)) return refuse("a model without a norm behind its blocks");
  const norms: (RMSNorm | LayerNorm)[] = [];
  const sublayers: Module[] = [];
  for (const layer of layers) {
    for (const [name, child] of layer.children()) {
      if (child instanceof Dropout) {
        if (child.p > 0) {
          throw new UnsupportedError(
            `Cannot share positions over a tensor axis: '${child.fqn}' applies dropout by position in a row, and a rank counts only its own; set its ` +
              "probability to 0, or cut without sequence_parallel",
          );
        }
      } else if (isNorm(child)) norms.push(child);
      else if (child instanceof Module) sublayers.push(child);
      else refuse(`'${layer.fqn}.${name}', which computes with a part of the positions,`);
    }
  }
  return { layers, last, norms, sublayers };
}

/**
 * True if a sublayer takes rows by layers that are cut by columns alone, and gives them by one that is cut by rows. Adapters take and give
 * whole rows that all ranks have alike.
 */
function sumsByItself(sublayer: Module, styles: ReadonlyMap<CutTarget, Style>): boolean {
  const kinds = [SelfAttention, FeedForward, GatedFeedForward];
  if (!kinds.some((kind) => sublayer instanceof kind)) return false;
  return [...sublayer.children()].every(([, child]) => {
    return !(child instanceof Linear) || (PARTIAL.includes(styles.get(child)) && !child.isAdapted);
  });
}

/**
 * The rows of a model of which each rank has its positions; undefined where a plan has no norm `sequence_parallel`.
 *
 * @param cuts members of modules that the plan names, with their styles
 * @throws {ArgumentError} for a plan that names some of the norms only, or others
 * @throws {UnsupportedError} for what is not implemented yet
 */
export function sharedRows(root: Module, cuts: readonly CutModule[]): SharedRows | undefined {
  const styles = new Map(cuts.flatMap(({ parts }) => [...parts]));
  const named = [...styles].flatMap(([target, style]) => style === "sequence_parallel" ? [target] : []);
  if (named.length === 0) return undefined;
  const { layers, last, norms, sublayers } = partsOf(root);
  const expected: readonly CutTarget[] = [...norms, last];
  const other = named.find((target) => !expected.includes(target));
  if (other !== undefined) {
    throw new ArgumentError(
      `Cannot cut '${other.fqn}' sequence_parallel: it is no norm of a block, nor the one behind them`,
    );
  }
  const missing = expected.filter((norm) => !named.includes(norm));
  if (missing.length > 0) {
    const names = missing.map(({ fqn }) => `'${fqn}'`).join(", ");
    throw new ArgumentError(
      `Cannot share positions over a tensor axis: the plan must say sequence_parallel of ${names} too`,
    );
  }
  const summed = new Map<Module, SummedRows>(
    sublayers.flatMap((one) => sumsByItself(one, styles) ? [[one, { isActive: false }]] : []),
  );
  return { summed, join: (group) => joinRows(layers, last, sublayers, summed, group) };
}

/** Hidden states that a block or a sublayer is given. */
interface GivenStates {
  readonly x: Tensor;
  /** Positions of each row, of which ranks have parts; undefined with a cache. */
  readonly seq: number | undefined;
  /** Arguments behind the hidden states. */
  readonly others: readonly unknown[];
}

function givenStates({ fqn }: Module, [x, ...others]: readonly unknown[]): GivenStates {
  const [context] = others;
  if (!(x instanceof Tensor) || typeof context !== "object" || context === null) {
    throw new InternalError(`'${fqn}' is given no hidden states with a context`);
  }
  const hasCache = "pastKeyValues" in context && context.pastKeyValues !== undefined;
  const seq = "seqLength" in context && typeof context.seqLength === "number" ? context.seqLength : undefined;
  return { x, seq: hasCache ? undefined : seq, others };
}

function joinRows(
  layers: readonly Module[],
  last: RMSNorm | LayerNorm,
  sublayers: readonly Module[],
  summed: ReadonlyMap<Module, SummedRows>,
  group: ProcessGroup,
): readonly HookHandle[] {
  // The norm behind the blocks is called right after them, and given no context.
  let seqOfLast: number | undefined;
  const joinBlock = (block: Module, isFirst: boolean, isLast: boolean): HookHandle =>
    block.setBody({
      compute(forward, args) {
        const { x, seq, others } = givenStates(block, args);
        const takes = isFirst && seq !== undefined;
        const output = forward(takes ? takePositions(x, { group, unit: nameOf(block) }) : x, ...others);
        if (isLast) seqOfLast = seq;
        return output;
      },
    });
  const joinLast = last.setBody({
    compute(forward, args) {
      const [own, seq] = [forward(...args), seqOfLast];
      seqOfLast = undefined;
      if (seq === undefined) return own;
      return gatherPositions(own, { group, unit: nameOf(last), seq, sumsGradients: false });
    },
  });
  return [
    ...sublayers.map((sublayer) => joinSublayer(sublayer, summed.get(sublayer), group)),
    ...layers.flatMap((block, place) => {
      const [isFirst, isLast] = [place === 0, place === layers.length - 1];
      return isFirst || isLast ? [joinBlock(block, isFirst, isLast)] : [];
    }),
    joinLast,
  ];
}

/** A module's FQN, or its class for a root, for messages. */
function nameOf(module: Module): string {
  return module.fqn ?? module.constructor.name;
}

/** Gathers the rows of a sublayer's input, and takes this rank's positions of its output. */
function joinSublayer(sublayer: Module, summed: SummedRows | undefined, group: ProcessGroup): HookHandle {
  const attrs = { group, unit: nameOf(sublayer) };
  return sublayer.setBody({
    compute(forward, args) {
      const { x, seq, others } = givenStates(sublayer, args);
      if (summed !== undefined) summed.isActive = seq !== undefined;
      if (seq === undefined) return forward(x, ...others);
      const output = forward(gatherPositions(x, { ...attrs, seq, sumsGradients: summed !== undefined }), ...others);
      if (summed !== undefined) return output;
      if (output instanceof Tensor) return takePositions(output, attrs);
      if (typeof output !== "object" || output === null || !("hidden" in output && output.hidden instanceof Tensor)) {
        throw new InternalError(`'${sublayer.fqn}' gives no hidden states`);
      }
      return { ...output, hidden: takePositions(output.hidden, attrs) };
    },
  });
}
