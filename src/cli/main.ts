/**
 * The command line: finds the command, runs it and turns its outcome into an exit code. A command is loaded when it is
 * asked for, so that none pays for the others.
 *
 * @module
 */
import process from "node:process";
import { wrapWords } from "../config/flags.ts";
import { ENV } from "../runtime/variables.ts";
import { scriptArguments } from "../runtime/processes.ts";
import { terminal } from "../runtime/terminal.ts";
import { VERSION } from "../version.ts";

/** The text before the variables, with the list of commands. */
const usage = (list: string): string =>
  `Usage: fullyshard [--runtime <bun|deno|auto>] <command> [flags]

${list}

  fullyshard <command> --help   the flags of a command
  fullyshard --version          the version

--runtime, before the command, chooses the runtime of the command and its
ranks; auto, the default: the present runtime, else Bun, else Deno.

Environment variables:`;

/** The variables that a user sets; `run` sets a rank's variables. */
const shownVariables = [
  "FULLYSHARD_LOG",
  "FULLYSHARD_RUNTIME",
  "FULLYSHARD_TIMEOUT_SECONDS",
  "FULLYSHARD_FLIGHT_DIRECTORY",
  "NO_COLOR",
] as const;

function help(): string {
  const column = 32;
  const lines = shownVariables.flatMap((name) => {
    const meaning = wrapWords(ENV[name].meaning, terminal("stdout").columns() - column);
    return meaning.map((text, line) => `  ${(line === 0 ? name : "").padEnd(column - 2)}${text}`);
  });
  const list = Object.entries(commands).map(([name, { does }]) => `  ${name.padEnd(12)}  ${does}`);
  return [usage(list.join("\n")), ...lines].join("\n");
}

/** A command. */
interface CliCommand {
  /** Its purpose, for the help text. */
  readonly does: string;
  /** Runs it with the arguments that follow its name; gives the exit code. */
  readonly run: (argv: readonly string[]) => Promise<number>;
}

const commands: Readonly<Record<string, CliCommand>> = {
  run: {
    does: "start a script on several ranks, with torchrun's flags",
    run: async (argv) => await (await import("./run.ts")).run(argv),
  },
  launch: {
    does: "start a script with Accelerate's settings (accelerate launch)",
    run: async (argv) => await (await import("./launch.ts")).launch(argv),
  },
  config: {
    does: "ask for the settings of such a file, and write it",
    run: async (argv) => await (await import("./config.ts")).config(argv),
  },
  estimate: {
    does: "show memory and time of a training step on any number of ranks",
    run: async (argv) => await (await import("./estimate.ts")).estimate(argv),
  },
  tokenizer: {
    does: "learn a tokenizer from text, without Python",
    run: async (argv) => await (await import("./tokenizer.ts")).tokenizer(argv),
  },
  pull: {
    does: "get a model of Hugging Face's Hub into its cache",
    run: async (argv) => await (await import("./pull.ts")).pull(argv),
  },
  trace: {
    does: "merge the traces of all ranks for Perfetto, and summarize them",
    run: async (argv) => await (await import("./trace.ts")).trace(argv),
  },
  inspect: {
    does: "show what a checkpoint holds, and check that it is complete",
    run: async (argv) => await (await import("./inspect.ts")).inspect(argv),
  },
  "inspect-data": {
    does: "show the tokens of chats, and which are trained on",
    run: async (argv) => await (await import("./inspect_data.ts")).inspectData(argv),
  },
  chat: {
    does: "talk with a model, by its chat template",
    run: async (argv) => await (await import("./chat.ts")).chat(argv),
  },
  diff: {
    does: "compare two checkpoints, tensor by tensor",
    run: async (argv) => await (await import("./diff.ts")).diff(argv),
  },
  merge: {
    does: "write a Hugging Face folder from a checkpoint, or merge LoRA",
    run: async (argv) => await (await import("./merge.ts")).merge(argv),
  },
  export: {
    does: "write a GGUF file for llama.cpp, or a folder in another dtype",
    run: async (argv) => await (await import("./export.ts")).exportModel(argv),
  },
  reshard: {
    does: "rewrite a checkpoint for another number of ranks",
    run: async (argv) => await (await import("./reshard.ts")).reshard(argv),
  },
  doctor: {
    does: "show what this machine has, and what is missing",
    run: async (argv) => {
      const { readFlags } = await import("../config/flags.ts");
      const { ConfigError } = await import("../errors.ts");
      const reading = readFlags([
        { name: "json", takes: "switch", description: "Print one JSON object" },
        { name: "help", short: "h", takes: "switch", description: "Show this text" },
      ], argv);
      if (reading.problems.length > 0) throw new ConfigError(reading.problems);
      if (reading.uses.has("help")) {
        process.stdout.write("Usage: fullyshard doctor [--json]\n");
        return 0;
      }
      const { doctor } = await import("./doctor.ts");
      const json = reading.uses.get("json")?.texts.at(-1) === "true";
      const out = terminal("stdout");
      return await doctor({ json, width: out.columns() }, out.write);
    },
  },
};

/** Runs a command line, given without the program; returns the exit code: 2 where the arguments are wrong. */
export async function main(argv: readonly string[]): Promise<number> {
  const [name, ...rest] = argv;
  if (name === undefined || name === "--help" || name === "-h" || name === "help") {
    (name === undefined ? process.stderr : process.stdout).write(`${help()}\n`);
    return name === undefined ? 2 : 0;
  }
  if (name === "--version" || name === "-V") {
    process.stdout.write(`${VERSION}\n`);
    return 0;
  }
  const command = Object.hasOwn(commands, name) ? commands[name] : undefined;
  if (command === undefined) {
    const { didYouMean } = await import("../config/nearest.ts");
    const hint = didYouMean(name, Object.keys(commands)) || ".";
    process.stderr.write(`fullyshard: there is no command '${name}'${hint} See 'fullyshard --help'\n`);
    return 2;
  }
  try {
    return await command.run(rest);
  } catch (error) {
    const { isOneOf, USAGE_ERRORS } = await import("../errors.ts");
    if (!isOneOf(error, USAGE_ERRORS)) throw error;
    process.stderr.write(`fullyshard ${name}: ${error.message}\n`);
    return 2;
  }
}

if (import.meta.main) process.exitCode = await main(scriptArguments());
