/**
 * `fullyshard config`: asks what a file of Accelerate should say, question by question, and writes it (`accelerate config`).
 * The tables of keys have the questions and the possible answers.
 *
 * @module
 */
import { CLUSTER_KEYS } from "../accelerate/cluster_keys.ts";
import { FSDP_KEYS } from "../accelerate/fsdp_keys.ts";
import { bool, type ForeignKey, KeyTranslation } from "../accelerate/key.ts";
import { describeFlags, type Flag, readFlags } from "../config/flags.ts";
import { ConfigError } from "../errors.ts";
import { pathExists, replaceFile } from "../runtime/files.ts";
import { terminal } from "../runtime/terminal.ts";
import { type Ask, asker, usualAnswers } from "./answers.ts";

/** The file that is written, and that `fullyshard launch` reads, where none is named. */
export const CONFIG_FILE = "default_config.yaml";

const flags: readonly Flag[] = [
  { name: "config-file", takes: "one", placeholder: "<file>", description: "File to write", default: CONFIG_FILE },
  { name: "defaults", takes: "switch", description: "Ask nothing: the usual answer to each question" },
  { name: "overwrite", takes: "switch", description: "Replace the file if it is there" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => Promise.resolve(flags);

/** A value of the file. */
type Answer = string | number | boolean;

/**
 * Asks and writes.
 *
 * @returns the exit code
 * @throws {ConfigError} for arguments that are wrong, answers that end too early, and a file that is there already
 * @throws {FileError} if the file cannot be written
 */
export async function config(argv: readonly string[]): Promise<number> {
  const { uses, problems } = readFlags(flags, argv);
  const out = terminal("stdout");
  if (uses.has("help")) {
    out.write(`Usage: fullyshard config [flags]\n\n${describeFlags(flags, out.columns())}\n`);
    return 0;
  }
  if (problems.length > 0) throw new ConfigError(problems);
  const file = uses.get("config-file")?.texts.at(-1) ?? CONFIG_FILE;
  const isOn = (name: string): boolean => uses.get(name)?.texts.at(-1) === "true";
  if (pathExists(file) && !isOn("overwrite")) {
    const got = `'${file}', which is there. Replace it with '--overwrite'`;
    throw new ConfigError([{ path: "--config-file", expected: "a new file", got }]);
  }
  using lines = new DisposableStack();
  const ask = isOn("defaults") ? usualAnswers : asker(lines, out.write);
  const cluster = await answersOf(CLUSTER_KEYS, ask);
  const fsdp = await answersOf(FSDP_KEYS.filter(({ name }) => !cluster.has(name)), ask);
  const text = [
    "compute_environment: LOCAL_MACHINE",
    "distributed_type: FSDP",
    "num_machines: 1",
    ...Array.from(cluster, ([name, value]) => `${name}: ${yamlOf(value)}`),
    "fsdp_config:",
    ...Array.from(fsdp, ([name, value]) => `  fsdp_${name}: ${yamlOf(value)}`),
  ];
  replaceFile(file, `${text.join("\n")}\n`);
  out.write(`Wrote '${file}'. Start a script with it: fullyshard launch --config ${file} train.ts\n`);
  return 0;
}

/** Asks for each key that has a question, again where the answer cannot be. */
async function answersOf(keys: readonly ForeignKey[], ask: Ask): Promise<ReadonlyMap<string, Answer>> {
  const answers = new Map<string, Answer>();
  for (const key of keys) {
    if (key.question === undefined || !counts(key, answers)) continue;
    for (let isOpen = true; isOpen;) {
      const given = answerOf(key, await ask({ ...key.question, shown: key.shown }));
      const to = new KeyTranslation();
      key.read(given, to);
      isOpen = to.problems.length > 0;
      for (const { expected, got } of to.problems) terminal("stderr").write(`Expected ${expected}, got ${got}\n`);
      if (!isOpen && given !== "") answers.set(key.name, given);
    }
  }
  return answers;
}

/** True if a key has an effect beside the policy that was chosen. */
function counts({ name }: ForeignKey, answers: ReadonlyMap<string, Answer>): boolean {
  const policy = String(answers.get("auto_wrap_policy")).toUpperCase();
  if (name === "transformer_layer_cls_to_wrap") return policy === "TRANSFORMER_BASED_WRAP";
  return name !== "min_num_params" || policy === "SIZE_BASED_WRAP";
}

/** An answer as the file holds it. */
function answerOf({ shown }: ForeignKey, text: string): Answer {
  if (/^\d+$/.test(text)) return Number(text);
  const yes = /^(?:true|yes|y)$/i.test(text);
  const isSwitch = /^(?:true|false)$/i.test(text) || (shown === bool.shown && (yes || /^(?:no|n)$/i.test(text)));
  return isSwitch ? yes : text;
}

/** A value in YAML; words that YAML would read as something else are quoted. */
function yamlOf(value: Answer): string {
  const isPlain = typeof value !== "string" ||
    (/^[A-Za-z]\w*$/.test(value) && !/^(?:yes|no|on|off|y|n|null)$/i.test(value));
  return isPlain ? String(value) : JSON.stringify(value);
}
