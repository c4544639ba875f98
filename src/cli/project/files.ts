/**
 * The files of a new project, by its kind. Each project trains at once: from scratch on the pages of this package, by LoRA on a few
 * chats that stand for one's own, or on numbers that its script draws.
 *
 * @module
 */
import { VERSION } from "../../version.ts";
import type { ProjectChoices, ProjectKind } from "./choices.ts";
import { CHATS, MODULE_SCRIPT, SCRATCH_SCRIPT, TUNE_SCRIPT } from "./texts.ts";

/** Version of Bun in a project's `package.json`, by which its ranks run. */
const BUN = "^1.4.5";
const SCHEMA = "# yaml-language-server: $schema=./node_modules/fullyshard/dist/config.schema.json";

const SCRIPTS: Readonly<Record<ProjectKind, string>> = {
  scratch: SCRATCH_SCRIPT,
  "fine-tune": TUNE_SCRIPT,
  module: MODULE_SCRIPT,
};

/** Texts by their paths in the project's folder. */
export function projectFiles(choices: ProjectChoices): ReadonlyMap<string, string> {
  const { kind, manager } = choices;
  return new Map([
    ["package.json", packageText(choices)],
    ...manager === "deno" ? [["deno.json", denoText(choices)] as const] : [],
    ["train.ts", SCRIPTS[kind]],
    ...kind === "module" ? [] : [["train.yaml", configText(choices)] as const],
    ...kind === "fine-tune" ? [["data/chats.jsonl", CHATS] as const] : [],
    [".gitignore", "node_modules/\nruns/\n.cache/\n"],
  ]);
}

/** The commands that train, in order. */
export function nextCommands({ kind, manager, model }: ProjectChoices): readonly string[] {
  const run = manager === "npm" ? "npm run" : "deno task";
  const isOnHub = kind === "fine-tune" && isHubName(model);
  return [`${manager} install`, ...isOnHub ? [`${run} pull`] : [], `${run} train`];
}

/** True for `owner/name`, as the Hub names a model; a folder begins with `.` or `/`, or has another depth. */
function isHubName(model: string): boolean {
  return /^[\w-][\w.-]*\/[\w.-]+$/.test(model);
}

/** The package's scripts: commands by their names. */
function tasksOf({ kind, ranks, model }: ProjectChoices): Readonly<Record<string, string>> {
  const config = kind === "module" ? "" : " --config train.yaml";
  return {
    ...kind === "fine-tune" && isHubName(model) ? { pull: `fullyshard pull ${model}` } : {},
    train: `fullyshard run --nproc-per-node ${ranks} train.ts${config}`,
    ...kind === "fine-tune" ? { "inspect-data": `fullyshard inspect-data data/chats.jsonl --model ${model}` } : {},
  };
}

function packageText(choices: ProjectChoices): string {
  const { name, manager, fullyshard } = choices;
  const isNpm = manager === "npm";
  const content = {
    name,
    version: "0.1.0",
    private: true,
    type: "module",
    ...isNpm ? { scripts: tasksOf(choices) } : {},
    dependencies: { fullyshard },
    ...isNpm ? { devDependencies: { bun: BUN } } : {},
  };
  return jsonText(content);
}

function denoText(choices: ProjectChoices): string {
  const tasks = Object.entries(tasksOf(choices)).map(([task, command]) => [
    task,
    command.replace("fullyshard ", "deno run -A npm:fullyshard/fullyshard "),
  ]);
  return jsonText({ nodeModulesDir: "auto", tasks: Object.fromEntries(tasks) });
}

function configText({ kind, model }: ProjectChoices): string {
  const keys = kind === "scratch"
    ? [
      "# Files, folders or quoted patterns of your own, instead of the pages of this package:",
      '# data: ["texts/**/*.md"]',
      "sequenceLength: 128",
      "globalBatch: 8",
      "steps: 100",
      "learningRate: 2.0e-3",
      "saveEvery: 50",
      "out: runs/scratch",
    ]
    : [
      `model: ${JSON.stringify(model)}`,
      "data: [data/chats.jsonl]",
      "lossOn: assistant",
      "packing: bfd",
      "sequenceLength: 512",
      "loraR: 16",
      "loraAlpha: 32",
      "loraTargetModules: [all-linear]",
      "precision: bfloat16",
      "globalBatch: 4",
      "steps: 20",
      "learningRate: 2.0e-4",
      "weightDecay: 0",
      "out: runs/tuned",
    ];
  return [
    SCHEMA,
    "# Keys of the training; 'fullyshard run train.ts --help' lists all. Flags win over this file.",
    ...keys,
    "",
  ].join("\n");
}

/** The version of this package that projects ask for. */
export const OWN_VERSION: string = `^${VERSION}`;

function jsonText(content: object): string {
  return `${JSON.stringify(content, undefined, 2)}\n`;
}
