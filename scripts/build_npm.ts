/**
 * Makes `dist/`, what the npm package holds: each source file as JavaScript with its declarations, and the WASM
 * kernels. Deno does not read TypeScript below `node_modules`, so the package cannot be the sources themselves. One
 * file stays one file: stack traces and the addresses of kernels and workers keep their meaning.
 *
 * `dist/node/` is what plain Node imports in their place: modules with the same names, which say in one sentence that the
 * library runs on Bun or Deno. `package.json` leads there by the condition `node-addons`, which Node has and bundlers lack.
 *
 * `dist/demo/` is the page of `fullyshard demo`.
 *
 * `dist/deno/`, which is not in that package, is what Deno imports by URL: the sources, with packages named as `npm:` ones.
 *
 * @module
 */

import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { type Node, type SourceFile, SyntaxKind } from "typescript/unstable/ast";
import {
  isCallExpression,
  isExportDeclaration,
  isIdentifier,
  isImportDeclaration,
  isImportTypeNode,
  isNewExpression,
  isStringLiteral,
} from "typescript/unstable/ast/is";
import { API } from "typescript/unstable/async";
import { fileSchema } from "../src/config/json_schema.ts";
import { TRAIN_SECTIONS } from "../src/train/config.ts";
import { buildDemo } from "./demo/build.ts";

process.chdir(fileURLToPath(new URL("..", import.meta.url)));

/** The sources on their way to the compiler. */
const staged = "dist/sources";
const project = "scripts/tsconfig.package.json";

rmSync("dist", { recursive: true, force: true });
const kernels = ["wasm/mod.ts", "wasm/native.ts", "wasm/digests.ts"];
const sources = ["mod.ts", ...kernels, ...filesIn("doors"), ...filesIn("src")];
for (const file of sources) write(`${staged}/${file}`, readFileSync(file, "utf8"));
const deno: { imports: Record<string, string> } = JSON.parse(readFileSync("deno.json", "utf8"));
for (const [file, tree] of await parse(sources)) {
  const addresses = addressesIn(tree);
  write(`dist/deno/${file}`, readdress(tree.text, addresses, packageAddress));
  write(`${staged}/${file}`, readdress(tree.text, addresses, compiledAddress));
}
execFileSync("node", ["node_modules/typescript/bin/tsc", "--project", project], { stdio: "inherit" });
rmSync(staged, { recursive: true });
for (const folder of ["dist", "dist/deno"]) {
  for (const copied of ["wasm/pkg", "src/device/cuda/kernels"]) {
    cpSync(copied, `${folder}/${copied}`, { recursive: true });
  }
  for (const text of ["live.js", "page.css", "page.js"]) {
    cpSync(`src/report/page/${text}`, `${folder}/src/report/page/${text}`);
  }
}
await buildDemo("dist/demo");
const schema = await fileSchema("Configuration of a training by fullyshard", TRAIN_SECTIONS);
write("dist/config.schema.json", `${JSON.stringify(schema, undefined, 2)}\n`);
const { version }: { version: string } = JSON.parse(readFileSync("package.json", "utf8"));
write("dist/package.json", `${JSON.stringify({ version, type: "module" })}\n`);

write("dist/node/refuse.js", readFileSync("bin/refuse_node.mjs", "utf8"));
for (const door of ["mod.js", ...filesIn("doors").map((file) => file.replace(/\.ts$/, ".js"))]) {
  const names = Object.keys(await import(`${process.cwd()}/dist/${door}`));
  // Names are linked before any module runs, so what lacks one would be told in place of the sentence.
  const lines = ['import "./refuse.js";', ...names.map((name) => `export const ${name} = undefined;`)];
  write(`dist/node/${door.replace("doors/", "")}`, `${lines.join("\n")}\n`);
}

/** The syntax trees of files as they are staged. */
async function parse(files: readonly string[]): Promise<ReadonlyMap<string, SourceFile>> {
  const compiler = new API({ cwd: process.cwd() });
  try {
    const { program } = (await compiler.updateSnapshot({ openProjects: [project] })).getProjects()[0] ?? fail(project);
    const trees = await Promise.all(files.map((file) => program.getSourceFile(`${process.cwd()}/${staged}/${file}`)));
    return new Map(files.map((file, i) => [file, trees[i] ?? fail(file)]));
  } finally {
    await compiler.close();
  }
}

/** Texts that name a module: where it is imported, exported or the type of something, and in `new URL("./worker.ts", …)`. */
function addressesIn(tree: SourceFile): readonly { readonly text: string; readonly start: number }[] {
  const found: { text: string; start: number }[] = [];
  const visit = (node: Node): void => {
    // A literal ends with its quote; a comment may come before it.
    if (isStringLiteral(node) && namesModule(node)) {
      found.push({ text: node.text, start: node.end - 1 - node.text.length });
    }
    node.forEachChild(visit);
  };
  visit(tree);
  return found;
}

function namesModule(literal: Node): boolean {
  const { parent } = literal;
  if (isCallExpression(parent)) return parent.expression.kind === SyntaxKind.ImportKeyword;
  if (isNewExpression(parent)) return isIdentifier(parent.expression) && parent.expression.text === "URL";
  return isImportDeclaration(parent) || isExportDeclaration(parent) || isImportTypeNode(parent.parent);
}

/** A file's text with other addresses. */
function readdress(
  text: string,
  addresses: ReturnType<typeof addressesIn>,
  change: (address: string) => string,
): string {
  let [result, done] = ["", 0];
  for (const { text: address, start } of addresses) {
    const end = start + address.length;
    if (text.slice(start, end) !== address) throw new Error(`expected '${address}', got '${text.slice(start, end)}'`);
    result += text.slice(done, start) + change(address);
    done = end;
  }
  return result + text.slice(done);
}

/** The address of a sibling as the compiler names it. */
function compiledAddress(address: string): string {
  return address.startsWith(".") && address.endsWith(".ts") ? `${address.slice(0, -".ts".length)}.js` : address;
}

/** The address of a package in Deno without an import map. */
function packageAddress(address: string): string {
  if (address.startsWith(".") || address.includes(":")) return address;
  return deno.imports[address] ?? fail(`the import '${address}' in deno.json`);
}

function filesIn(folder: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: "utf8" })
    .map((name) => `${folder}/${name}`)
    .filter((name) => name.endsWith(".ts") && statSync(name).isFile());
}

function write(file: string, text: string): void {
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
}

function fail(missing: string): never {
  throw new Error(`There is no ${missing}`);
}
