/**
 * Everything that the pages name exists: the files that they link to and mention, headings, npm scripts, and the glossary's terms.
 *
 * @module
 */
import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));
const read = (file: string): string => readFileSync(join(root, file), "utf8");
const documents = readdirSync(join(root, "docs")).filter((name) => name.endsWith(".md")).map((name) => `docs/${name}`);
const pages = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", ...documents];
/** Pages that say where things are in a checkout. */
const maps = ["CONTRIBUTING.md", "docs/adding.md", "docs/architecture.md"];
/** Files that do not come from this repository, or exist only after a build. */
const MADE = /^(?:\.cache|\.tools|runs|node_modules)\b/;

/** The name by which a heading is linked to, as GitHub makes it. */
function anchorOf(heading: string): string {
  return heading.toLowerCase().replace(/[^\w\- ]/g, "").replaceAll(" ", "-");
}

function anchorsOf(page: string): readonly string[] {
  return [...read(page).matchAll(/^#+ (.+)$/gm)].map(([, heading = ""]) => anchorOf(heading));
}

/** Targets of links, each with what stands before and behind its `#`. */
function linksOf(page: string): readonly (readonly [file: string, anchor: string | undefined])[] {
  return [...read(page).matchAll(/\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)/g)]
    .map(([, target = "", anchor]) => [target === "" ? page : join(dirname(page), target), anchor] as const);
}

/** The paths in a page's code, up to what stands for a name of the reader's choice. */
function pathsOf(page: string): readonly string[] {
  return [...read(page).matchAll(/`([^`\n]+)`/g)].flatMap(([, code = ""]) => code.split(" "))
    .filter((word) => /^[\w.-]+\/[\w./<>*-]*$/.test(word) && !MADE.test(word))
    .map((word) => /[<*]/.test(word) ? dirname(word.replace(/[<*].*$/, "_")) : word);
}

describe("pages", () => {
  it("link to files and headings that exist", () => {
    for (const page of pages) {
      for (const [file, anchor] of linksOf(page)) {
        assert.ok(existsSync(join(root, file)), `${page} links to ${file}`);
        if (anchor !== undefined) assert.ok(anchorsOf(file).includes(anchor), `${page} links to ${file}#${anchor}`);
      }
    }
  });

  it("name npm scripts that exist", () => {
    const { scripts }: { scripts: Record<string, string> } = JSON.parse(read("package.json"));
    for (const page of pages) {
      for (const [, name = ""] of read(page).matchAll(/npm run ([\w:]+)/g)) {
        assert.ok(name in scripts, `${page}: ${name}`);
      }
    }
  });

  for (const page of maps) {
    it(`${page} names files and folders that exist`, () => {
      const paths = pathsOf(page);
      assert.ok(paths.length > 10, `${paths.length} paths`);
      // A folder's page may name a file of it alone.
      const near = ["", "src/", "src/comm/"];
      for (const path of paths) assert.ok(near.some((folder) => existsSync(join(root, folder, path))), path);
    });
  }

  it("are all linked from the README or a page that is", () => {
    const found = new Set(["README.md"]);
    for (const page of found) {
      for (const [file] of linksOf(page)) if (pages.includes(file)) found.add(file);
    }
    assert.deepEqual(pages.filter((page) => !found.has(page)), []);
  });
});

describe("docs/glossary.md", () => {
  const glossary = read("docs/glossary.md");
  const entries = [...glossary.matchAll(/^## (.+)\n\n([^#]+)/gm)].map(([, term = "", text = ""]) => ({ term, text }));

  it("says each term in a sentence, in alphabetic order", () => {
    const terms = entries.map(({ term }) => term);
    assert.ok(terms.length > 25);
    assert.deepEqual(terms, terms.toSorted((a, b) => a.localeCompare(b, "en", { sensitivity: "base" })));
    assert.equal(new Set(terms).size, terms.length);
    for (const { term, text } of entries) assert.match(text.trim(), /^[A-Z][^.]*(?:\.\w[^.]*)*\.$/s, term);
  });

  it("has terms that other pages or the code use", () => {
    const folders = ["src", "docs"].flatMap((folder) =>
      readdirSync(join(root, folder), { recursive: true, encoding: "utf8" }).map((name) => `${folder}/${name}`)
    );
    const texts = folders.filter((name) => /\.(?:ts|md)$/.test(name) && name !== "docs/glossary.md").map(read).join(
      "\n",
    );
    for (const { term } of entries) {
      assert.match(texts, new RegExp(`\\b${term.replace(/[- ]/g, "[- ]")}s?\\b`, "i"), term);
    }
  });

  it("is linked to by the terms themselves", () => {
    let links = 0;
    for (const page of pages) {
      for (const [, text = "", anchor = ""] of read(page).matchAll(/\[([^\]]+)\]\([^)]*glossary\.md#([^)]+)\)/g)) {
        links++;
        const plain = anchorOf(text.replace(/[`*()]/g, ""));
        assert.ok(
          [anchor, `${anchor}s`, `${anchor.replace(/y$/, "ie")}s`, `${anchor}es`].includes(plain),
          `${page}: ${text}`,
        );
      }
    }
    assert.ok(links > 15, `${links} links`);
  });
});
