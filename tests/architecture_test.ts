/**
 * The tree keeps its own rules: layers, homes of foreign modules, and what no file may contain. Each rule is also shown
 * to find what it forbids.
 *
 * @module
 */

import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import {
  cardViolations,
  contentViolations,
  cycles,
  formViolations,
  layerViolations,
  missingPaths,
  needlessExports,
  repeatedTypes,
} from "./architecture/rules.ts";
import { readSource, type Source } from "./architecture/source.ts";

const root = fileURLToPath(new URL("..", import.meta.url));
const library = filesIn("mod.ts", "doors", "src", "wasm/mod.ts", "wasm/native.ts", "wasm/digests.ts");
const others = filesIn("tests", "scripts", "bench", "examples");

function filesIn(...paths: readonly string[]): readonly Source[] {
  return paths.filter((path) => existsSync(root + path)).flatMap((path) => {
    const names = statSync(root + path).isDirectory()
      ? readdirSync(root + path, { recursive: true, encoding: "utf8" }).map((name) => `${path}/${name}`)
      : [path];
    return names.filter((name) => name.endsWith(".ts")).sort()
      .map((name) => readSource(name, readFileSync(root + name, "utf8")));
  });
}

function pathsIn(folder: string): readonly string[] {
  return readdirSync(root + folder, { recursive: true, encoding: "utf8" }).map((name) => `${folder}/${name}`);
}

function none(violations: readonly string[]): void {
  assert.equal(violations.length, 0, `\n  ${violations.join("\n  ")}\n`);
}

test("layers: every value import goes down, and foreign modules are loaded at home", () => {
  assert.ok(library.length > 20);
  none([...library, ...others].flatMap(layerViolations));
});

test("layers: no file loads itself through others", () => none(cycles(library)));

test("layers: without CUDA and NCCL all else compiles, but for their registrations", () =>
  none(cardViolations(library)));

test("contents: no casts, no any, no hidden exits, no other thing that the house rules forbid", () => {
  none(library.flatMap(contentViolations));
});

test("form: every file says what it is, and is short enough to read", () => {
  none([...library, ...others].flatMap(formViolations));
});

test("names: a type's name is declared in one file of the library", () => none(repeatedTypes(library)));

test("names: every exported value is named in a second file", () =>
  none(needlessExports(library, [...library, ...others])));

test("names: every file that a comment of the library or a page names is there", () => {
  const tree = [
    "mod.ts",
    ...["bin", "doors", "src", "wasm", "tests", "scripts", "bench", "docs", "examples"].flatMap(pathsIn),
  ];
  const pages = ["README.md", "CONTRIBUTING.md", ...pathsIn("docs").filter((path) => path.endsWith(".md"))]
    .map((path) => ({ path, text: readFileSync(root + path, "utf8") }));
  // PyTorch's own file, which the rule cannot know.
  const foreign = ["aten/src/ATen/native/cuda/AmpKernels.cu"];
  none([...library, ...pages].flatMap((source) => missingPaths(source, [...tree, ...foreign])));
});

test("layerViolations() finds imports that go up, sideways or away from home", () => {
  const wrong: readonly (readonly [string, string])[] = [
    ["src/dtype.ts", 'import { a } from "./device/device.ts";'],
    ["src/config/a.ts", 'import { a } from "../ffi/mod.ts";'],
    ["src/device/a.ts", 'import { Tensor } from "../tensor/tensor.ts";'],
    ["src/device/a.ts", 'import { type Tensor } from "../tensor/tensor.ts";'],
    ["src/nn/a.ts", 'import "../comm/work.ts";'],
    ["src/nn/a.ts", 'import {\n  a,\n  b as c,\n} from "../optim/adamw.ts";'],
    ["src/tensor/a.ts", "import * as ffi from '../ffi/mod.ts';"],
    ["src/fsdp/a.ts", 'import { a } from "../ddp/bucket.ts";'],
    ["src/fsdp/a.ts", 'const a = await import("../ddp/bucket.ts");'],
    ["src/models/llama/a.ts", 'import { a } from "../../fsdp/unit.ts";'],
    ["src/models/llama/a.ts", 'export { a } from "../../comm/work.ts";'],
    ["src/tensor/a.ts", 'import a, { b } from "../../mod.ts";'],
    ["src/tensor/a.ts", 'import { readFile } from "node:fs";'],
    ["src/data/a.ts", 'import { parse } from "yaml";'],
    ["src/data/a.ts", 'import lodash from "lodash";'],
    ["src/device/a.ts", 'const ffi = await import("bun:ffi");'],
    ["src/device/a.ts", 'import { a } from "../../tests/support/a.ts";'],
    ["examples/a.ts", 'import { a } from "../src/tensor/tensor.ts";'],
  ];
  for (const [path, text] of wrong) assert.equal(layerViolations(readSource(path, text)).length, 1, `${path}: ${text}`);
});

test("layerViolations() lets types look up, and values down", () => {
  const right: readonly (readonly [string, string])[] = [
    ["src/ops/a.ts", 'import type { Tensor } from "../tensor/tensor.ts";'],
    [
      "src/device/a.ts",
      'import { a } from "../ffi/mod.ts";\nimport { b } from "./b.ts";\nimport { c } from "../dtype.ts";',
    ],
    ["src/runtime/a.ts", 'import { a } from "../errors.ts";\nimport fs from "node:fs";'],
    ["src/comm/a.ts", 'import { a } from "../ffi/mod.ts";'],
    ["src/models/llama/a.ts", 'import { a } from "../../nn/module.ts";\nimport { b } from "../../checkpoint/load.ts";'],
    ["src/nn/a.ts", '// import { a } from "../comm/work.ts";\nconst text = `import { a } from "../comm/work.ts"`;'],
    ["src/cli/a.ts", 'import { a } from "../train/trainer.ts";\nimport b from "../ffi/mod.ts";'],
    ["examples/a.ts", 'import { a } from "fullyshard";'],
  ];
  for (const [path, text] of right) assert.deepEqual(layerViolations(readSource(path, text)), [], `${path}: ${text}`);
});

test("cycles() finds files that load each other, but not by type or later", () => {
  const pair = (statement: string): readonly Source[] => [
    readSource("src/a.ts", 'import { b } from "./b.ts";'),
    readSource("src/b.ts", 'import { c } from "./nn/c.ts";'),
    readSource("src/nn/c.ts", statement),
  ];
  assert.deepEqual(cycles(pair('import { a } from "../a.ts";')), [
    "cycle: src/a.ts -> src/b.ts -> src/nn/c.ts -> src/a.ts",
  ]);
  assert.deepEqual(cycles(pair('import type { a } from "../a.ts";')), []);
  assert.deepEqual(cycles(pair('const { a } = await import("../a.ts");')), []);
});

test("cardViolations() finds imports of the cards, by type and later too, names for all files, and void entries", () => {
  const found = (path: string, text: string): readonly string[] =>
    cardViolations([...library.filter((source) => source.path !== path), readSource(path, text)]);
  const wrong: readonly (readonly [string, string])[] = [
    ["src/optim/a.ts", 'import { a } from "../device/cuda/graphs.ts";'],
    ["src/optim/a.ts", 'import type { A } from "../device/cuda/graphs.ts";'],
    ["src/comm/a.ts", 'const a = await import("./data/nccl/open.ts");'],
    ["src/comm/a.ts", 'type A = import("./data/nccl/open.ts").A;'],
    ["doors/a.ts", 'export type { A } from "../src/ffi/bindings/cudart.ts";'],
    ["src/device/cuda/a.ts", "declare global {\n  interface A {}\n}"],
    ["src/comm/registry.ts", 'import { a } from "./data/mpi/open.ts";'],
  ];
  for (const [path, text] of wrong) assert.equal(found(path, text).length, 1, `${path}: ${text}`);
  const nvml = library.filter(({ path }) => path !== "src/ffi/bindings/nvml.ts");
  assert.deepEqual(cardViolations(nvml), ["src/ffi/bindings/nvml.ts is not in the library"]);
});

test("contentViolations() finds each thing that is forbidden", () => {
  const wrong = [
    "const a: any = 1;",
    "const a: Promise<any> = b;",
    "function f(...a: any[]): void {}",
    "const a = b as Tensor;",
    "const a = (b as unknown) + 1;",
    "export default class {}",
    'export { a } from "./a.ts";',
    'export * from "./a.ts";',
    'export type { A } from "./a.ts";',
    "console.log(1);",
    "const a = process.env.HOME;",
    'const a = Deno.env.get("HOME");',
    "process.exit(1);",
    "const a = `${b as string}`;",
    "const a = Bun.version;",
    "enum A { b }",
    "using a = await this.#group.together(b, () => c());",
    "using a = group.agree(b, () => c());",
    "// deno-lint-ignore no-explicit-any",
    "const a = b / c; const d = e as F; // /",
  ];
  for (const text of wrong) {
    assert.ok(contentViolations(readSource("src/tensor/a.ts", text)).length >= 1, text);
    assert.ok(contentViolations(readSource("src/tensor/a.ts", `const x = 1;\n${text}\n`)).length >= 1, text);
  }
});

test("contentViolations() lets everything else be", () => {
  const right = [
    "const a = [1] as const;",
    'import * as path from "./path.ts";',
    'import { a as b, type C as D } from "./a.ts";',
    "export { a as b };",
    "type A<T> = { [K in keyof T as Upper<K>]: T[K] };",
    "const a = await Promise.any(b); const c = { any: 1 };",
    "// as Tensor, any, console.log, process.env",
    "/** `x as Tensor` */ const a = 'b as Tensor: any';",
    "const a = /as Tensor: any/; const b = `as any ${c} as any`;",
    "process.exitCode = 1;",
    "using a = new DisposableStack(); const b = await group.together(c, () => a.use(d()));",
    "const seed = environment.text;",
  ];
  for (const text of right) assert.deepEqual(contentViolations(readSource("src/tensor/a.ts", text)), [], text);
  assert.deepEqual(contentViolations(readSource("src/ffi/providers/bun.ts", "const a = b as C;")), []);
  assert.deepEqual(contentViolations(readSource("src/cli/a.ts", "console.log(1);")), []);
  assert.deepEqual(contentViolations(readSource("src/runtime/env.ts", "const a = process.env;")), []);
  assert.deepEqual(contentViolations(readSource("mod.ts", 'export { a } from "./src/a.ts";')), []);
});

test("formViolations() finds files without a statement of purpose, and long ones", () => {
  const head = "/**\n * What it is.\n *\n * @module\n */\n";
  assert.deepEqual(formViolations(readSource("a.ts", `${head}const a = 1;\n`)), []);
  assert.deepEqual(formViolations(readSource("a.ts", `#!/usr/bin/env bun\n${head}`)), []);
  assert.equal(formViolations(readSource("a.ts", "const a = 1;\n")).length, 1);
  assert.equal(formViolations(readSource("a.ts", "/** No tag. */\nconst a = 1;\n/** @module */\n")).length, 1);
  assert.equal(formViolations(readSource("a.ts", head + "a();\n".repeat(395))).length, 0);
  assert.equal(formViolations(readSource("a.ts", head + "a();\n".repeat(396))).length, 1);
});

test("missingPaths() finds names that no file has", () => {
  const found = (text: string): readonly string[] =>
    missingPaths({ path: "src/a.ts", text }, ["src/nn/b.ts", "mod.ts"]);
  assert.deepEqual(found("/** See `b.ts`, `nn/b.ts`, `src/nn/b.ts`, `./mod.ts` and `c` and c.ts. */"), []);
  assert.deepEqual(found("/** One.\n See `nn/c.ts`. */"), ["src/a.ts:2 names nn/c.ts, which is not in the tree"]);
  assert.equal(found("/** `src/b.ts`, `n/b.ts`, `bb.ts` */").length, 3);
});

test("repeatedTypes() finds names that two files declare, and no others", () => {
  const found = (...texts: readonly string[]): readonly string[] =>
    repeatedTypes(texts.map((text, index) => readSource(`src/${index}.ts`, text)));
  assert.deepEqual(found("type A = 1;\n", "export interface A<T> {}\n"), ["A is declared in src/0.ts, src/1.ts"]);
  assert.equal(found("class A {}\n", "export abstract class A {}\n").length, 1);
  assert.equal(found("export type A<T> =\n  T;\n", "enum A {}\n", "interface A {}\n").length, 1);
  assert.deepEqual(found("type A = 1;\ntype B = A;\n", "type C = 1;\n"), []);
  assert.deepEqual(found("type A = 1;\n", 'import type { A } from "./0.ts";\n/** type A = 2 */\n'), []);
  assert.deepEqual(found("export class A {}\n", 'export { type A } from "./0.ts";\nf({ class: 1, type: 2 });\n'), []);
});

test("needlessExports() finds values that no other file names", () => {
  const found = (...texts: readonly string[]): readonly string[] => {
    const sources = texts.map((text, index) => readSource(`src/${index}.ts`, text));
    return needlessExports(sources.slice(0, 1), sources);
  };
  assert.deepEqual(found("export const a = 1;\nconst b = a;\n"), ["src/0.ts exports a, which no other file names"]);
  assert.equal(found("export async function a() {}\nexport abstract class B {}\n", "// a and B\n").length, 2);
  assert.deepEqual(found("export class A {}\n", 'import { A } from "./0.ts";\n'), []);
  assert.deepEqual(found("export interface A {}\nconst b = 1;\n"), []);
});
