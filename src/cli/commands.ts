/**
 * The commands of the command line. A command's file is loaded when the command runs, so that no command pays for the others.
 *
 * @module
 */
import type { Flag } from "../config/flags.ts";

/** A command. */
export interface CliCommand {
  /** Its purpose, for the help text. */
  readonly does: string;
  readonly load: () => Promise<LoadedCommand>;
}

/** A command whose file is loaded. */
interface LoadedCommand {
  /** Runs it with the arguments that follow its name; returns the exit code. */
  readonly run: (argv: readonly string[]) => Promise<number>;
  readonly flags: () => Promise<readonly Flag[]>;
}

/** All commands by their names, in the order of the help text. */
export const COMMANDS: Readonly<Record<string, CliCommand>> = {
  run: {
    does: "start a script on several ranks, with torchrun's flags",
    load: async () => {
      const { run, commandFlags: flags } = await import("./run.ts");
      return { run, flags };
    },
  },
  train: {
    does: "train on several ranks by flags alone, without a script",
    load: async () => {
      const { train: run, commandFlags: flags } = await import("./train.ts");
      return { run, flags };
    },
  },
  launch: {
    does: "start a script with Accelerate's settings (accelerate launch)",
    load: async () => {
      const { launch: run, commandFlags: flags } = await import("./launch.ts");
      return { run, flags };
    },
  },
  config: {
    does: "write an Accelerate settings file, question by question",
    load: async () => {
      const { config: run, commandFlags: flags } = await import("./config.ts");
      return { run, flags };
    },
  },
  init: {
    does: "make a project of your own: its files, ready to train",
    load: async () => {
      const { init: run, commandFlags: flags } = await import("./init.ts");
      return { run, flags };
    },
  },
  estimate: {
    does: "show memory and time of a training step on any number of ranks",
    load: async () => {
      const { estimate: run, commandFlags: flags } = await import("./estimate.ts");
      return { run, flags };
    },
  },
  tokenizer: {
    does: "learn a tokenizer from text, without Python",
    load: async () => {
      const { tokenizer: run, commandFlags: flags } = await import("./tokenizer.ts");
      return { run, flags };
    },
  },
  pull: {
    does: "get a model of Hugging Face's Hub into its cache",
    load: async () => {
      const { pull: run, commandFlags: flags } = await import("./pull.ts");
      return { run, flags };
    },
  },
  trace: {
    does: "merge the traces of all ranks for Perfetto, and summarize them",
    load: async () => {
      const { trace: run, commandFlags: flags } = await import("./trace.ts");
      return { run, flags };
    },
  },
  report: {
    does: "make a page of a run's numbers, or of several runs together",
    load: async () => {
      const { report: run, commandFlags: flags } = await import("./report.ts");
      return { run, flags };
    },
  },
  watch: {
    does: "show a run in the terminal while it trains, from its folder",
    load: async () => {
      const { watch: run, commandFlags: flags } = await import("./watch.ts");
      return { run, flags };
    },
  },
  demo: {
    does: "show FSDP at work in a page of your browser",
    load: async () => {
      const { demo: run, commandFlags: flags } = await import("./demo.ts");
      return { run, flags };
    },
  },
  inspect: {
    does: "show what a checkpoint holds, and check that it is complete",
    load: async () => {
      const { inspect: run, commandFlags: flags } = await import("./inspect.ts");
      return { run, flags };
    },
  },
  "inspect-data": {
    does: "show the tokens of chats, and which are trained on",
    load: async () => {
      const { inspectData: run, commandFlags: flags } = await import("./inspect_data.ts");
      return { run, flags };
    },
  },
  eval: {
    does: "measure a model: loss of texts and chats, multiple choice",
    load: async () => {
      const { evalModel: run, commandFlags: flags } = await import("./eval.ts");
      return { run, flags };
    },
  },
  chat: {
    does: "talk with a model, by its chat template",
    load: async () => {
      const { chat: run, commandFlags: flags } = await import("./chat.ts");
      return { run, flags };
    },
  },
  generate: {
    does: "continue texts with a model",
    load: async () => {
      const { generate: run, commandFlags: flags } = await import("./generate.ts");
      return { run, flags };
    },
  },
  diff: {
    does: "compare two checkpoints, tensor by tensor",
    load: async () => {
      const { diff: run, commandFlags: flags } = await import("./diff.ts");
      return { run, flags };
    },
  },
  merge: {
    does: "write a Hugging Face folder from a checkpoint, or merge LoRA",
    load: async () => {
      const { merge: run, commandFlags: flags } = await import("./merge.ts");
      return { run, flags };
    },
  },
  export: {
    does: "write a GGUF file for llama.cpp, or a folder in another dtype",
    load: async () => {
      const { exportModel: run, commandFlags: flags } = await import("./export.ts");
      return { run, flags };
    },
  },
  reshard: {
    does: "rewrite a checkpoint for another number of ranks",
    load: async () => {
      const { reshard: run, commandFlags: flags } = await import("./reshard.ts");
      return { run, flags };
    },
  },
  doctor: {
    does: "show what this machine has, and what is missing",
    load: async () => {
      const { runDoctor: run, commandFlags: flags } = await import("./doctor_command.ts");
      return { run, flags };
    },
  },
  completions: {
    does: "print the completions of a shell: bash, zsh or fish",
    load: async () => {
      const { completions: run, commandFlags: flags } = await import("./completions.ts");
      return { run, flags };
    },
  },
};
