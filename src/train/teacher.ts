/**
 * The teacher of a run: a second model, frozen, and divided over the axes of the ranks as the one that learns.
 *
 * @module
 */
import { parallelizeContext } from "../axes/context.ts";
import type { Tokenizer } from "../data/tokenizer.ts";
import { ConfigError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import type { StepConfig } from "./config.ts";
import { distillationOf } from "./distillation_config.ts";
import type { Distillation } from "./distillation_step.ts";
import { openModel } from "./open_model.ts";
import { parallelize } from "./parallelize.ts";
import { frozenDtypeOf } from "./parts.ts";
import type { Run } from "./run.ts";
import { requireTeacherTokens } from "./teacher_tokens.ts";

/** Settings of activations that are kept for a backward, which a teacher has none of. */
const NO_BACKWARD = { activationCheckpointing: "none", gradientCheckpointing: false } as const;

/** The run's text, for the comparison of its tokens with the teacher's. */
export interface TaughtText {
  /** The tokenizer of the run's samples. */
  readonly tokenizer: Tokenizer;
  /** Hears that the teacher has no tokenizer, so that nothing was compared. */
  readonly note: (text: string) => void;
}

/**
 * Opens the teacher that a run names; undefined for none. Every rank must call it.
 *
 * @param text undefined in a dry run, which reads no text
 * @throws {ConfigError} if it has another number of tokens than the model, other tokens than the text, or fewer positions than a sample
 * has
 */
export async function openTeacher(
  run: Run,
  model: CausalLm,
  config: StepConfig & { readonly broadcastFromRank0?: boolean },
  text?: TaughtText,
): Promise<Distillation | undefined> {
  const settings = distillationOf(config);
  if (settings === undefined || config.teacher === undefined) return undefined;
  const { broadcastFromRank0 = false, teacher: path } = config;
  const teacher = await openModel(run, config.teacher, { frozenDtype: frozenDtypeOf(config), broadcastFromRank0 });
  if (teacher.vocabSize !== model.vocabSize) {
    const expected = `a model of ${model.vocabSize} tokens, as the one that learns from it`;
    const got = `${teacher.vocabSize} in '${config.teacher}': both need one tokenizer`;
    throw new ConfigError([{ path: "teacher", expected, got }]);
  }
  if (text !== undefined) {
    const compare = (): Promise<string | undefined> => requireTeacherTokens(teacher, path, text.tokenizer);
    const line = await run.group.together("compare the teacher's tokenizer", compare);
    if (line !== undefined) text.note(line);
  }
  if (teacher.maxPositions < config.sequenceLength) {
    const expected = `at least ${config.sequenceLength} positions, as sequenceLength has`;
    throw new ConfigError([{ path: "teacher", expected, got: `${teacher.maxPositions} in '${config.teacher}'` }]);
  }
  for (const parameter of teacher.parameters()) parameter.requiresGrad = false;
  if (config.strategy === "fsdp") {
    const forwardAlone = { ...NO_BACKWARD, neftuneNoiseAlpha: undefined, offloadStates: undefined };
    // A plan of the run's own is by the names of the model that learns.
    const tpPlan = config.tpPlan && "auto";
    parallelize(teacher, run, { ...config, ...forwardAlone, tpPlan });
  } else if (run.mesh.axes.includes("context")) {
    // Each rank of replicas holds all of it, and nothing of it is reduced.
    parallelizeContext(teacher, run.mesh.get("context"));
  }
  await teacher.load();
  teacher.eval();
  return { teacher, settings };
}
