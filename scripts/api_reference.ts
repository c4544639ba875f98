/**
 * The reference of the public API, from the doc comments of its names: an overview of each door in `docs/api.md`, and pages with
 * every signature, parameter and example in `.cache/api`, which are not committed.
 *
 * Usage: npm run docs                 (writes both)
 *        npm run docs -- --check      (fails if `docs/api.md` is not what the doc comments say)
 *
 * @module
 */
import { execFileSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";
import * as z from "zod";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const PAGE = `${ROOT}docs/api.md`;
const PAGES = ".cache/api";

const jsDoc = z.looseObject({ doc: z.string().optional() });

/** A parameter as `deno doc --json` tells it. */
interface Parameter {
  readonly kind: string;
  readonly name?: string | undefined;
  readonly optional?: boolean | undefined;
  readonly left?: Parameter | undefined;
  readonly arg?: Parameter | undefined;
  readonly tsType?: ParameterType | undefined;
}

/** The type of a parameter; of `Pick<Run, …>` also what it picks from. */
interface ParameterType {
  readonly repr?: string | undefined;
  readonly value?: unknown;
}

const parameterType = z.looseObject({ repr: z.string().optional(), value: z.unknown() });
/** Of `Pick<Run, …>`, its first argument; of an intersection, its members. */
const typeParams = z.looseObject({ typeParams: z.array(parameterType).min(1) });
const members = z.array(parameterType).min(1);

const parameter: z.ZodType<Parameter> = z.lazy(() =>
  z.looseObject({
    kind: z.string(),
    name: z.string().optional(),
    optional: z.boolean().optional(),
    left: parameter.optional(),
    arg: parameter.optional(),
    tsType: parameterType.optional(),
  })
);

const declaration = z.looseObject({
  kind: z.string(),
  jsDoc: jsDoc.optional(),
  def: z.looseObject({ params: z.array(parameter).optional() }).optional(),
});
const symbol = z.object({ name: z.string(), declarations: z.array(declaration).min(1) });
const output = z.object({
  nodes: z.record(z.string(), z.looseObject({ module_doc: jsDoc, symbols: z.array(symbol) })),
});

/** Headings of a door, each with the kinds of declarations below it. */
const HEADINGS: Readonly<Record<string, readonly string[]>> = {
  Functions: ["function"],
  Classes: ["class"],
  Values: ["variable"],
  Types: ["interface", "typeAlias"],
};

/** The modules that a program imports from, each with the name by which it does. */
function doors(): ReadonlyMap<string, string> {
  const { exports }: { exports: Record<string, string> } = JSON.parse(readFileSync(`${ROOT}deno.json`, "utf8"));
  const importable = Object.entries(exports).filter(([name]) => name !== "./cli");
  return new Map(importable.map(([name, file]) => [file.slice(2), `fullyshard${name.slice(1)}`]));
}

function deno(args: readonly string[], input?: string): string {
  return execFileSync("node", ["scripts/runtime.mjs", "deno", ...args], {
    cwd: ROOT,
    encoding: "utf8",
    env: { ...process.env, NO_COLOR: "1" },
    maxBuffer: 2 ** 26,
    ...input === undefined ? {} : { input },
  });
}

/** A text without links to other names, on one line. */
function plain(text: string): string {
  return text.replace(/\{@link ([^}]+)\}/g, "`$1`").replaceAll(/\s+/g, " ").trim();
}

/** The first sentence of a doc comment. */
function sentenceOf(name: string, doc: string | undefined): string {
  const text = plain(doc ?? "").replace(/ ?@default.*$/, "");
  if (text === "") throw new Error(`'${name}' has no doc comment`);
  const [sentence = text] = /^.*?[.:](?= [A-Z{`])/.exec(text) ?? [];
  return `${sentence.replace(/[.:]$/, "")}.`;
}

/** The name of a destructured parameter, by its type or the first of an intersection: `run` for `Pick<Run, …>`, else `options`. */
function nameOf({ repr = "", value }: ParameterType): string {
  const first = members.safeParse(value).data?.[0];
  if (first !== undefined) return nameOf(first);
  const type = typeParams.safeParse(value).data?.typeParams[0]?.repr ?? repr;
  return /^[A-Z]\w+$/.test(type) && !type.endsWith("Options") ? `${type[0]?.toLowerCase()}${type.slice(1)}` : "options";
}

/** A parameter as a caller thinks of it. */
function shown({ kind, tsType = {}, name = nameOf(tsType), optional = false, left, arg }: Parameter): string {
  if (kind === "assign" && left !== undefined) return `${shown(left).replace(/\?$/, "")}?`;
  if (kind === "rest" && arg !== undefined) return `...${shown(arg)}`;
  return `${name}${optional ? "?" : ""}`;
}

function lineOf({ name, declarations }: z.infer<typeof symbol>): string {
  const [first, ...others] = declarations;
  const { kind, jsDoc: comment, def } = [first, ...others].find((one) => one?.jsDoc?.doc !== undefined) ?? {};
  const list = kind === "function" ? `(${(def?.params ?? []).map(shown).join(", ")})` : "";
  return `- \`${name}${list}\`: ${sentenceOf(name, comment?.doc)}`;
}

/** The overview as Markdown. */
function overview(): string {
  const names = doors();
  const { nodes } = output.parse(JSON.parse(deno(["doc", "--quiet", "--json", ...names.keys()])));
  const parts = [...names].map(([file, door]) => {
    const found = Object.entries(nodes).find(([url]) => url.endsWith(`/${file}`))?.[1];
    if (found === undefined) throw new Error(`deno doc says nothing of ${file}`);
    const kinds = Object.entries(HEADINGS).map(([heading, kinds]) => {
      const of = found.symbols.filter(({ declarations }) => kinds.includes(declarations[0]?.kind ?? ""));
      const lines = of.toSorted((a, b) => a.name < b.name ? -1 : 1).map(lineOf);
      return lines.length === 0 ? "" : `**${heading}**\n\n${lines.join("\n")}\n`;
    });
    return `## ${door}\n\n${sentenceOf(door, found.module_doc.doc)}\n\n${
      kinds.filter((kind) => kind !== "").join("\n")
    }`;
  });
  const head =
    "# API\n\nEvery public name, by the door that it is imported from. `npm run docs` in a checkout writes this " +
    "page from the doc comments, and pages with signatures, parameters, errors and examples into `.cache/api`; an editor " +
    "shows the same beside the code. All that a tensor does is in [Tensors](tensor.md).\n";
  return deno(["fmt", "--ext", "md", "-"], [head, ...parts].join("\n"));
}

const text = overview();
if (process.argv.includes("--check")) {
  const isCurrent = readFileSync(PAGE, "utf8") === text;
  process.stdout.write(
    isCurrent ? "docs/api.md is current\n" : "docs/api.md is not what doc comments say: npm run docs\n",
  );
  process.exitCode = isCurrent ? 0 : 1;
} else {
  writeFileSync(PAGE, text);
  mkdirSync(ROOT + PAGES, { recursive: true });
  deno(["doc", "--quiet", "--html", "--name=fullyshard", `--output=${PAGES}`, ...doors().keys()]);
  const count = readdirSync(ROOT + PAGES).length;
  process.stdout.write(`docs/api.md, and ${PAGES}/index.html with the pages of ${count} modules\n`);
}
