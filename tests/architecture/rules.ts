/**
 * The rules of the tree: which layer may load which, and what no file may contain. Each rule gives the lines that break
 * it, so that one run shows them all.
 *
 * @module
 */

import type { Import, Source } from "./source.ts";

/** A folder or file with its layer. */
interface Place {
  /** Path, or a folder with a slash at its end. */
  readonly path: string;
  /** A layer loads lower ones only. */
  readonly layer: number;
  /** Lower folders that it must not load all the same. */
  readonly never?: readonly string[];
}

const belowModels = ["src/optim/", "src/comm/", "src/data/", "src/ddp/", "src/fsdp/", "src/axes/"];
const foreign = ["src/ffi/"];

/** The layers, lowest first. A file belongs to the first place that holds it. */
const places: readonly Place[] = [
  { path: "src/runtime/", layer: 0 },
  { path: "src/ffi/", layer: 1 },
  { path: "wasm/", layer: 1 },
  { path: "src/config/", layer: 1 },
  { path: "src/locks/", layer: 2 },
  { path: "src/device/", layer: 2 },
  { path: "src/accelerate/", layer: 2, never: foreign },
  { path: "src/autograd/", layer: 3, never: foreign },
  { path: "src/ops/", layer: 3, never: foreign },
  { path: "src/tensor/", layer: 4, never: foreign },
  { path: "src/nn/", layer: 5, never: foreign },
  { path: "src/optim/", layer: 5, never: foreign },
  { path: "src/comm/", layer: 5 },
  { path: "src/data/", layer: 5, never: foreign },
  { path: "src/parallel/", layer: 6, never: foreign },
  { path: "src/checkpoint/format/", layer: 6.1, never: [...foreign, "src/parallel/"] },
  { path: "src/checkpoint/state_dict/", layer: 6.2, never: foreign },
  { path: "src/checkpoint/hugging_face/", layer: 6.3, never: foreign },
  { path: "src/checkpoint/sharded/", layer: 6.4, never: foreign },
  { path: "src/checkpoint/offline/", layer: 6.5, never: foreign },
  { path: "src/checkpoint/gguf/", layer: 6.55, never: foreign },
  { path: "src/checkpoint/", layer: 6.6, never: foreign },
  { path: "src/axes/", layer: 7, never: foreign },
  { path: "src/ddp/", layer: 7, never: foreign },
  { path: "src/fsdp/", layer: 7, never: foreign },
  { path: "src/models/", layer: 8, never: [...foreign, ...belowModels] },
  { path: "src/trackers/", layer: 9, never: foreign },
  { path: "src/plans/", layer: 9, never: foreign },
  { path: "src/adapters/", layer: 9, never: foreign },
  { path: "src/report/", layer: 9.5, never: [...foreign, "src/models/", "src/tensor/", "src/comm/"] },
  { path: "src/train/", layer: 10, never: foreign },
  { path: "src/launch/", layer: 10, never: foreign },
  { path: "src/demo/", layer: 10.5, never: foreign },
  { path: "src/cli/", layer: 11 },
  { path: "mod.ts", layer: 11 },
  { path: "doors/", layer: 11 },
  { path: "src/", layer: 0 },
];

/** Modules of the host or of another project, each with the folders and files that may load it. */
const homes: readonly (readonly [RegExp, readonly string[]])[] = [
  [/^bun:/, ["src/ffi/providers/bun.ts"]],
  [/^node:util$/, ["src/config/flags.ts", "src/runtime/", "src/cli/"]],
  [/^node:/, ["src/runtime/", "src/launch/", "src/cli/", "src/ffi/providers/"]],
  [/^zod$/, ["src/"]],
  [/^yaml$/, ["src/config/"]],
  [/^@huggingface\/jinja$/, ["src/data/chat/"]],
  [/^uplot\//, ["src/report/page/assets.ts"]],
  [/^hyparquet(?:-compressors|\/src\/column\.js)?$/, ["src/data/rows/parquet.ts"]],
];

/**
 * Checks the imports of a file.
 *
 * @param source the file
 * @returns one line for each import that may not be
 */
export function layerViolations(source: Source): readonly string[] {
  if (source.path.startsWith("examples/")) return exampleViolations(source);
  const own = placeOf(source.path);
  if (own === undefined) return [];
  return source.imports.flatMap((one) => {
    if (one.kind === "type") return [];
    if (!one.specifier.startsWith(".")) return homeViolations(source.path, one);
    const target = resolve(source.path, one.specifier);
    const place = placeOf(target);
    if (place === undefined) return [`${source.path} loads ${target}, which is in no layer`];
    const isDown = place.layer < own.layer || place.path === own.path || (place.layer === 0 && own.layer === 0);
    const isForbidden = own.never?.some((folder) => target.startsWith(folder)) ?? false;
    if ((isDown && !isForbidden) || own.layer === 11) return [];
    return [`${source.path} (${own.path}, layer ${own.layer}) loads ${target} (${place.path}, layer ${place.layer})`];
  });
}

function homeViolations(path: string, { specifier }: Import): readonly string[] {
  const home = homes.find(([pattern]) => pattern.test(specifier));
  if (home === undefined) return [`${path} loads '${specifier}', which has no home`];
  return home[1].some((place) => path.startsWith(place))
    ? []
    : [`${path} loads '${specifier}', whose home is ${home[1]}`];
}

function exampleViolations(source: Source): readonly string[] {
  return source.imports
    .filter(({ specifier }) => !/^(fullyshard(\/.*)?|node:.*|zod|(\.\.\/)+mod\.ts|\.\/.*)$/.test(specifier))
    .map(({ specifier }) => `${source.path} loads '${specifier}': an example loads the public entry only`);
}

/**
 * Finds cycles among the files that are loaded at once.
 *
 * @param sources all files
 * @returns one line for each cycle found
 */
export function cycles(sources: readonly Source[]): readonly string[] {
  const graph = new Map(sources.map((source) => [
    source.path,
    source.imports.filter(({ kind, specifier }) => (kind === "value" || kind === "export") && specifier.startsWith("."))
      .map(({ specifier }) => resolve(source.path, specifier)),
  ]));
  const done = new Set<string>();
  const found: string[] = [];
  const visit = (path: string, trail: readonly string[]): void => {
    const start = trail.indexOf(path);
    if (start >= 0) found.push(`cycle: ${[...trail.slice(start), path].join(" -> ")}`);
    if (start >= 0 || done.has(path)) return;
    for (const next of graph.get(path) ?? []) visit(next, [...trail, path]);
    done.add(path);
  };
  for (const path of graph.keys()) visit(path, []);
  return found;
}

/** Folders of NVIDIA's cards and declarations of their libraries. */
const cards: readonly string[] = [
  "src/device/cuda/",
  "src/comm/data/nccl/",
  ...["cublaslt", "cuda", "cudart", "cudnn", "nccl", "nvml", "nvrtc"].map((name) => `src/ffi/bindings/${name}.ts`),
];

/** Files that may name the cards: the list of devices, the list of backends, and the command that lists the machine's libraries. */
const registrations: readonly string[] = [
  "src/cli/doctor.ts",
  "src/cli/doctor_cuda.ts",
  "src/comm/registry.ts",
  "src/device/registry.ts",
];

/**
 * Checks that the library does not depend on NVIDIA's cards. A tree that compiles also compiles without some of its files, but for the
 * files that import from them, types too, as long as none of them declares a name for all files.
 *
 * @param sources all files of the library
 * @returns one line for each import of the cards outside of their registrations, and for each entry of the two lists that is void
 */
export function cardViolations(sources: readonly Source[]): readonly string[] {
  const isOfCards = (path: string): boolean => cards.some((place) => path.startsWith(place));
  const targets = (source: Source): readonly string[] =>
    source.imports.filter(({ specifier }) => specifier.startsWith(".")).map(({ specifier }) =>
      resolve(source.path, specifier)
    ).filter(isOfCards);
  const [inside, outside] = [true, false].map((is) => sources.filter(({ path }) => isOfCards(path) === is));
  const users = outside?.filter((source) => targets(source).length > 0) ?? [];
  return [
    ...users.filter(({ path }) => !registrations.includes(path))
      .map((source) => `${source.path} names ${targets(source)}, and does not compile without the cards`),
    ...registrations.filter((path) => users.every((user) => user.path !== path))
      .map((path) => `${path} names nothing of the cards, so it registers none`),
    ...cards.filter((place) => inside?.every(({ path }) => !path.startsWith(place)))
      .map((place) => `${place} is not in the library`),
    ...inside?.filter(({ code }) => /(?<![.\w$])declare\s+(?:global|module)\b/.test(code))
      .map(({ path }) => `${path} declares a name for all files`) ?? [],
  ];
}

/** Patterns that no file of the library may contain, each with its name and the places where it is allowed all the same. */
const forbidden: readonly (readonly [RegExp, string, readonly string[]])[] = [
  [/(?<![.\w$])any\b(?!\s*[(:?])/, "the type any", ["src/ffi/providers/"]],
  [/\bas\s+(?!const\b)/, "a cast", ["src/ffi/providers/"]],
  [/(?<![.\w$])export\s+default\b/, "a default export", []],
  [/(?<![.\w$])console\s*\./, "console", ["src/cli/"]],
  [/\b(process|Deno|Bun)\s*\.\s*env\b/, "environment variables (see src/runtime/env.ts)", ["src/runtime/env.ts"]],
  [/\b(process|Deno)\s*\.\s*(exit|abort)\s*\(/, "an exit of the process", []],
  [/(?<![.\w$])(Deno|Bun)\s*\./, "a runtime's own name", ["src/ffi/providers/", "src/runtime/"]],
  [/(?<![.\w$])(enum|namespace)\s+\w+\s*\{/, "an enum or namespace", []],
  // Where another rank fails, the call throws, and what this rank's action took is lost. The action puts it on a stack of its caller.
  [
    /(?<![.\w$])using\s+\w+\s*=\s*(await\s+)?[\w.#]+\.(together|agree)\s*\(/,
    "a resource that a rank keeps where another rank fails",
    [],
  ],
];

/**
 * Checks the contents of a file of the library.
 *
 * @param source the file
 * @returns one line for each line of code that may not be
 */
export function contentViolations(source: Source): readonly string[] {
  const found: string[] = [];
  const code = withoutRenames(source.code);
  for (const [pattern, what, allowed] of forbidden) {
    if (allowed.some((place) => source.path.startsWith(place))) continue;
    for (const match of code.matchAll(new RegExp(pattern, "g"))) {
      found.push(`${source.path}:${lineOf(code, match.index)} has ${what}`);
    }
  }
  if (source.path !== "mod.ts" && !source.path.startsWith("doors/")) {
    for (const { specifier } of source.imports.filter(({ kind }) => kind === "export")) {
      found.push(`${source.path} re-exports '${specifier}', which only doors may do`);
    }
  }
  if (!source.path.startsWith("src/ffi/providers/")) {
    for (const match of source.text.matchAll(/@ts-(ignore|expect-error|nocheck)|deno-lint-ignore/g)) {
      found.push(`${source.path}:${lineOf(source.text, match.index)} silences a check`);
    }
  }
  return found;
}

/**
 * Checks the form of any file.
 *
 * @param source the file
 * @returns one line for each fault
 */
export function formViolations({ path, text }: Source): readonly string[] {
  const found: string[] = [];
  const body = text.replace(/^#!.*\n/, "");
  const head = /^\/\*\*[^]*?\*\//.exec(body)?.[0];
  if (head === undefined || !head.includes("@module")) found.push(`${path} does not begin with /** … @module */`);
  const numLines = text.trimEnd().split("\n").length;
  if (numLines > 400) found.push(`${path} has ${numLines} lines, more than 400`);
  return found;
}

/**
 * Finds the TypeScript and Rust files that comments or pages name and the tree does not have.
 *
 * @param source the file that names others between backticks: `a.ts`, `src/nn/a.ts`
 * @param tree the paths of all files
 * @returns one line for each name that ends no path
 */
export function missingPaths(
  { path, text }: Pick<Source, "path" | "text">,
  tree: readonly string[],
): readonly string[] {
  return [...text.matchAll(/`(?:\.\/)?([\w./-]+\.(?:ts|mjs|rs|cu))`/g)].flatMap(({ 1: named = "", index }) =>
    tree.some((file) => file === named || file.endsWith(`/${named}`))
      ? []
      : [`${path}:${lineOf(text, index)} names ${named}, which is not in the tree`]
  );
}

/**
 * Finds types that share a name: a reader who searches for a name finds one declaration.
 *
 * @param sources all files of the library
 * @returns one line for each name that several files declare as a type, interface, class or enum
 */
export function repeatedTypes(sources: readonly Source[]): readonly string[] {
  const files = new Map<string, Set<string>>();
  for (const { path, code } of sources) {
    for (const [, name = ""] of code.matchAll(declaration)) {
      files.set(name, (files.get(name) ?? new Set()).add(path));
    }
  }
  return [...files].filter(([, paths]) => paths.size > 1)
    .map(([name, paths]) => `${name} is declared in ${[...paths].join(", ")}`);
}

const declaration =
  /^\s*(?:export\s+)?(?:declare\s+)?(?:abstract\s+)?(?:(?:const\s+)?enum|interface|class|type(?=\s+\w+\s*[<=]))\s+(\w+)/gm;

/** Takes out the `as` that renames: in lists of imports and exports, and in mapped types. */
function withoutRenames(code: string): string {
  const spaces = (text: string): string => text.replace(/[^\n]/g, " ");
  return code
    .replace(/(?<![.\w$])(?:import|export)\s+(?:type\s+)?(?:\w+\s*,\s*)?(?:\{[^}]*\}|\*\s*as\s+\w+)/g, spaces)
    .replace(/\[\s*\w+\s+in\b[^\]]*\]/g, spaces);
}

function placeOf(path: string): Place | undefined {
  return places.find((place) => place.path.endsWith("/") ? path.startsWith(place.path) : path === place.path);
}

function resolve(from: string, specifier: string): string {
  return new URL(specifier, `file:///${from}`).pathname.slice(1);
}

function lineOf(text: string, index: number): number {
  return text.slice(0, index).split("\n").length;
}

const exportedValue = /^export (?:declare |async |abstract )*(?:const|function\*?|class) (\w+)/gm;

/**
 * Gives the values that a file of the library exports and no other file names.
 *
 * @param users all files, those of the library too
 */
export function needlessExports(sources: readonly Source[], users: readonly Source[]): readonly string[] {
  const files = new Map<string, number>();
  for (const { code } of users) {
    for (const word of new Set(code.match(/\w+/g))) files.set(word, (files.get(word) ?? 0) + 1);
  }
  return sources.flatMap(({ path, code }) =>
    [...code.matchAll(exportedValue)].filter(([, name = ""]) => files.get(name) === 1)
      .map(([, name]) => `${path} exports ${name}, which no other file names`)
  );
}
