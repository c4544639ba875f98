/**
 * The choices from which `fullyshard init` makes a project.
 *
 * @module
 */

/** Kinds of projects, with their meaning. */
export const KINDS = {
  scratch: "train a small model from scratch, on text",
  "fine-tune": "adapt a downloaded model to chats, by LoRA",
  module: "train a module of your own, in a loop of your own",
} as const;

/** A kind of project. */
export type ProjectKind = keyof typeof KINDS;

/** Programs that install a project's packages and run its ranks. */
export const MANAGERS = ["npm", "deno"] as const;

/** A program that installs packages: with `npm`, Bun runs the ranks. */
export type Manager = typeof MANAGERS[number];

/** All choices of a project. */
export interface ProjectChoices {
  /** Name of the package. */
  readonly name: string;
  readonly kind: ProjectKind;
  readonly manager: Manager;
  /** Ranks that train. */
  readonly ranks: number;
  /** The model to fine-tune: a folder, or a name on the Hub. */
  readonly model: string;
  /** The version, file or address of this package that is installed. */
  readonly fullyshard: string;
}

/** A model of the Hub that is small enough for any machine. */
export const USUAL_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct";

export const USUAL_RANKS = 2;
