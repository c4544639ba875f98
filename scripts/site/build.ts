/**
 * Makes the site: a page for each document and each public name, an index for the search, and the demo; a folder that any web
 * server can serve.
 *
 * @module
 */
import { build } from "esbuild";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { dirname, extname, posix } from "node:path";
import { fileURLToPath } from "node:url";
import { absent, buildDemo } from "../demo/build.ts";
import { ApiPages } from "./api/pages.ts";
import { readApi } from "./api/read.ts";
import { addressFrom, brokenLinks, isForeign } from "./links.ts";
import { codeBlock, type RenderedPage, renderMarkdown, type Surroundings } from "./markdown.ts";
import { searchIndex, type SearchPart } from "./search_index.ts";
import { PLACES } from "./places.ts";
import { PAGES, type SitePage } from "./subjects.ts";
import { pageOf } from "./template.ts";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
/** Documents of the project that lie outside `docs`. */
const OUTSIDE = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"];

/** A site that was built. */
export interface BuiltSite {
  readonly pages: number;
  readonly bytes: number;
}

/** Files of a site that is being built. */
type Files = Map<string, string | Uint8Array>;

/** Builds the site anew into a folder. @throws {Error} if a document is in no subject, or links lead nowhere */
export async function buildSite(folder: string): Promise<BuiltSite> {
  requireAllPages();
  const files: Files = new Map();
  const parts: SearchPart[] = [];
  const api = new ApiPages(readApi());
  for (const page of PAGES) addDocument(page, { files, parts, api });
  for (const [path, text] of api.pages(parts)) files.set(path, text);
  files.set("search.json", searchIndex(parts));
  for (const [path, bytes] of await assets()) files.set(path, bytes);
  const demo = `${folder}/demo`;
  rmSync(folder, { recursive: true, force: true });
  await buildDemo(demo);
  const built = readdirSync(demo, { recursive: true, encoding: "utf8" });
  for (const name of built.filter((name) => statSync(`${demo}/${name}`).isFile())) {
    files.set(`demo/${name}`, readFileSync(`${demo}/${name}`));
  }
  const headers = files.get("demo/_headers");
  if (headers !== undefined) files.set("_headers", headers);
  const broken = brokenLinks(files);
  if (broken.length > 0) throw new Error(`${broken.length} links lead nowhere:\n${broken.join("\n")}`);
  let bytes = 0;
  for (const [path, content] of files) {
    mkdirSync(dirname(`${folder}/${path}`), { recursive: true });
    writeFileSync(`${folder}/${path}`, content);
    bytes += statSync(`${folder}/${path}`).size;
  }
  return { pages: [...files.keys()].filter((path) => path.endsWith(".html")).length, bytes };
}

function requireAllPages(): void {
  const named = new Set(PAGES.map(({ source }) => source));
  const there = readdirSync(`${ROOT}docs`).filter((name) => name.endsWith(".md")).map((name) => `docs/${name}`);
  const lacking = [...OUTSIDE, ...there].filter((source) => !named.has(source));
  if (lacking.length > 0) throw new Error(`scripts/site/subjects.ts has no subject for ${lacking.join(", ")}`);
}

/** A site that is being built. */
interface Site {
  readonly files: Files;
  readonly parts: SearchPart[];
  readonly api: ApiPages;
}

function addDocument({ source, path, label }: SitePage, { files, parts, api }: Site): void {
  const scripts: string[] = [];
  const surroundings: Surroundings = {
    addressOf: (href) => isForeign(href) ? href : addressFrom(path, targetOf(href, source, files)),
    nameIn: (code, heading) => {
      const page = api.pathOf(code, heading);
      return page === undefined ? undefined : addressFrom(path, page);
    },
    inPlaceOf: (comment) => {
      const place = Object.hasOwn(PLACES, comment) ? PLACES[comment] : undefined;
      scripts.push(...place?.scripts ?? []);
      return place?.markup;
    },
  };
  const { title, markup, headings, parts: own } = rendered(source, surroundings);
  files.set(path, pageOf({ path, title, markup, headings, scripts }));
  for (const { heading, text } of own) {
    if (path === "api.html") continue; // each name is found by its own page
    const address = heading === undefined ? path : `${path}#${heading.id}`;
    parts.push({ address, page: label, heading: heading?.text ?? "", text });
  }
}

function rendered(source: string, surroundings: Surroundings): RenderedPage {
  try {
    return renderMarkdown(readFileSync(ROOT + source, "utf8"), surroundings);
  } catch (error) {
    throw new Error(`${source}: ${error instanceof Error ? error.message : String(error)}`, { cause: error });
  }
}

/** The file of the site for a link of a document: its page, a picture, or a page that shows a file of the project. */
function targetOf(href: string, source: string, files: Files): string {
  const [file = "", anchor] = href.split("#");
  const target = file === "" ? source : posix.join(posix.dirname(source), file);
  const end = anchor === undefined ? "" : `#${anchor}`;
  const page = PAGES.find((one) => one.source === target);
  if (page !== undefined) return page.path + end;
  if (!existsSync(ROOT + target) || !statSync(ROOT + target).isFile()) {
    throw new Error(`'${href}' leads to '${target}', which is no file of the project`);
  }
  if (/\.(?:svg|jpe?g|png)$/.test(target)) {
    const path = posix.join("pictures", posix.basename(target));
    files.set(path, readFileSync(ROOT + target));
    return path;
  }
  const path = `source/${target}.html`;
  const markup = codeBlock(readFileSync(ROOT + target, "utf8"), extname(target).slice(1));
  files.set(path, pageOf({ path, title: target, markup, headings: [], crumbs: "A file of the project" }));
  return path + end;
}

/** Style, scripts and what they load. */
async function assets(): Promise<Files> {
  const entries = ["site", "theme", "estimate", "estimate_worker"];
  const { outputFiles, metafile } = await build({
    absWorkingDir: ROOT,
    entryPoints: entries.map((name) => `scripts/site/page/${name}.ts`),
    outdir: ".",
    bundle: true,
    minify: true,
    keepNames: true, // an estimate calls a unit by its class
    write: false,
    metafile: true,
    format: "esm",
    platform: "browser",
    target: "esnext",
    // What opens native libraries and cards, which an estimate does not.
    external: ["*/native/device.ts", "*/cuda/device.ts", "*/cuda/libraries.ts", "*/file_pool.ts"],
    plugins: [absent],
    legalComments: "none",
    logLevel: "warning",
  });
  const files: Files = new Map(outputFiles.map(({ path, contents }) => [posix.basename(path), contents]));
  files.set("site.css", readFileSync(`${ROOT}scripts/site/page/site.css`));
  files.set("licences.txt", licencesOf(Object.keys(metafile.inputs)));
  files.set("pkg/strict.wasm", readFileSync(`${ROOT}wasm/pkg/strict.wasm`));
  return files;
}

/** The licences of packages among the files that scripts are made of. */
function licencesOf(inputs: readonly string[]): string {
  const names = new Set(inputs.flatMap((input) => /(?:^|\/)node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(input)?.[1] ?? []));
  return [...names].toSorted().map((name) => {
    const folder = `${ROOT}node_modules/${name}`;
    const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
    if (file === undefined) throw new Error(`'${name}' has no licence in its package`);
    return `# ${name}\n\n${readFileSync(`${folder}/${file}`, "utf8").trim()}\n`;
  }).join("\n");
}
