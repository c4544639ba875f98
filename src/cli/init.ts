/**
 * `fullyshard init`: makes a project of one's own, after four questions at most. Its files are few and meant to be changed.
 *
 * @module
 */
import { describeFlags, type Flag, type FlagUse, readFlags } from "../config/flags.ts";
import { ConfigError } from "../errors.ts";
import { makeDirectory, pathExists, replaceFile } from "../runtime/files.ts";
import { workingDirectory } from "../runtime/processes.ts";
import { shellWord } from "../runtime/shell_word.ts";
import { terminal } from "../runtime/terminal.ts";
import { countOf, shownName } from "../words.ts";
import { type Ask, type AskedQuestion, asker, usualAnswers } from "./answers.ts";
import {
  KINDS,
  type Manager,
  MANAGERS,
  type ProjectChoices,
  type ProjectKind,
  USUAL_MODEL,
  USUAL_RANKS,
} from "./project/choices.ts";
import { nextCommands, OWN_VERSION, projectFiles } from "./project/files.ts";

const flags: readonly Flag[] = [
  {
    name: "folder",
    takes: "many",
    placeholder: "<folder>",
    description: "Folder of the project, as an argument or by --folder; default: this one",
  },
  { name: "kind", takes: "one", placeholder: `<${Object.keys(KINDS).join("|")}>`, description: describeKinds() },
  {
    name: "manager",
    takes: "one",
    placeholder: `<${MANAGERS.join("|")}>`,
    description: "Package manager; npm runs ranks under Bun, deno under Deno",
  },
  {
    name: "model",
    takes: "one",
    placeholder: "<folder|name>",
    description: `Model to fine-tune, a folder or a name on the Hub, such as ${USUAL_MODEL}`,
  },
  { name: "ranks", takes: "one", placeholder: "<n>", description: "Ranks that train" },
  {
    name: "package",
    takes: "one",
    placeholder: "<version|file>",
    description: "Version or packed file of fullyshard to install",
    default: OWN_VERSION,
  },
  { name: "defaults", takes: "switch", description: "Ask nothing: the usual answer to each question" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

function describeKinds(): string {
  return Object.entries(KINDS).map(([kind, does]) => `${kind}: ${does}`).join("; ");
}

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => Promise.resolve(flags);

/**
 * Asks for what no flag gives, and writes the project's files.
 *
 * @param argv the arguments after `init`
 * @returns the exit code
 * @throws {ConfigError} for arguments and answers that are wrong, and for files that are there already
 * @throws {FileError} if a file cannot be written
 */
export async function init(argv: readonly string[]): Promise<number> {
  const { uses, problems } = readFlags(flags, argv, { positional: "folder" });
  const out = terminal("stdout");
  if (uses.has("help")) {
    out.write(`Usage: fullyshard init [folder] [flags]\n\n${describeFlags(flags, out.columns())}\n`);
    return 0;
  }
  const [folder = ".", ...others] = uses.get("folder")?.texts ?? [];
  const tooMany = others.map((text) => ({ path: "folder", expected: "one folder", got: `'${text}' too` }));
  if (problems.length + tooMany.length > 0) throw new ConfigError([...problems, ...tooMany]);
  const path = folder.startsWith("/") ? folder : `${workingDirectory()}/${folder}`;
  using input = new DisposableStack();
  const isQuiet = uses.get("defaults")?.texts.at(-1) === "true";
  const choices = await choose(uses, nameOf(path), isQuiet ? usualAnswers : asker(input, out.write));
  const files = projectFiles(choices);
  const present = [...files.keys()].filter((name) => pathExists(`${path}/${name}`));
  if (present.length > 0) {
    const got = `'${folder}', which has ${present.join(", ")}`;
    throw new ConfigError([{ path: "folder", expected: "a folder without the project's files", got }]);
  }
  for (const [name, text] of files) {
    const parent = name.includes("/") ? `/${name.slice(0, name.lastIndexOf("/"))}` : "";
    makeDirectory(`${path}${parent}`);
    replaceFile(`${path}/${name}`, text);
  }
  const enter = folder === "." ? [] : [`cd ${shellWord(shownName(folder))}`];
  const commands = [...enter, ...nextCommands(choices)].map((command) => `  ${command}`);
  out.write(`Wrote ${countOf(files.size, "file")} in '${shownName(folder)}'. Next:\n${commands.join("\n")}\n`);
  return 0;
}

/** A name for a package, from a folder's. */
function nameOf(path: string): string {
  const last = path.replace(/[/.]+$/, "").split("/").at(-1) ?? "";
  const name = last.toLowerCase().replace(/[^a-z0-9-]+/g, "-").replace(/^-+|-+$/g, "");
  return name === "" || name === "fullyshard" ? "training" : name;
}

/** The project's choices: flags, and answers to questions for the others. */
async function choose(uses: ReadonlyMap<string, FlagUse>, name: string, ask: Ask): Promise<ProjectChoices> {
  const given = (flag: string): string | undefined => uses.get(flag)?.texts.at(-1);
  const answer = async (flag: string, question: AskedQuestion): Promise<string> => given(flag) ?? await ask(question);
  const kinds = Object.keys(KINDS).join(", ");
  const kind = await answer("kind", {
    text: `What will you do? ${describeKinds()}.\nKind`,
    shown: kinds,
    usual: "scratch",
  });
  if (!isKind(kind)) throw wrong("--kind", `one of ${kinds}`, kind);
  const manager = await answer("manager", { text: "Installed by", shown: MANAGERS.join(", "), usual: "npm" });
  if (!isManager(manager)) throw wrong("--manager", `one of ${MANAGERS.join(", ")}`, manager);
  const model = kind !== "fine-tune"
    ? USUAL_MODEL
    : await answer("model", { text: "Model", shown: "a folder, or a name on the Hub", usual: USUAL_MODEL });
  const ranks = await answer("ranks", { text: "Ranks", shown: "a whole number from 1", usual: String(USUAL_RANKS) });
  if (!/^[1-9]\d{0,4}$/.test(ranks)) throw wrong("--ranks", "a whole number from 1", ranks);
  if (kind !== "fine-tune" && given("model") !== undefined) {
    throw wrong("--model", `a model with the kind 'fine-tune' only`, `a model with '${kind}'`);
  }
  return { name, kind, manager, model, ranks: Number(ranks), fullyshard: given("package") ?? OWN_VERSION };
}

function isKind(text: string): text is ProjectKind {
  return Object.hasOwn(KINDS, text);
}

function isManager(text: string): text is Manager {
  return MANAGERS.some((manager) => manager === text);
}

function wrong(path: string, expected: string, got: string): ConfigError {
  return new ConfigError([{ path, expected, got: `'${got}'` }]);
}
