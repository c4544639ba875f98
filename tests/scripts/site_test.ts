/** The site's pages: links that lead nowhere are named, markup of documents and doc comments is what it should be. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { estimateInput } from "../../src/cli/estimate_of.ts";
import { declarationOf } from "../../scripts/site/api/declaration.ts";
import { addressFrom, brokenLinks } from "../../scripts/site/links.ts";
import { renderMarkdown } from "../../scripts/site/markdown.ts";
import { CANDIDATES, flagsOf, keysOf } from "../../scripts/site/page/estimate_settings.ts";
import { wordsOf } from "../../scripts/site/page/search_options.ts";

const addressOf = (href: string): string => href;

test("brokenLinks() names addresses without a file or an anchor", () => {
  const files = new Map([
    ["index.html", '<h2 id="one">1</h2><a href="#one"></a><a href="api/a.html#b"></a><a href="https://x.org/y"></a>'],
    ["api/a.html", '<i id="b"></i><a href="../index.html#two"></a><img src="../p.svg"><a href="b.html"></a>'],
    ["p.svg", ""],
  ]);
  assert.deepEqual(brokenLinks(files), [
    "api/a.html: '../index.html#two' has no such anchor",
    "api/a.html: 'b.html' is no file of the site",
  ]);
});

test("addressFrom() leads from a page to another one", () => {
  assert.equal(addressFrom("api/nn/Linear.html", "fsdp.html#memory"), "../../fsdp.html#memory");
  assert.equal(addressFrom("fsdp.html", "fsdp.html#memory"), "#memory");
});

test("renderMarkdown() colors code, names files and refuses markup", () => {
  const source =
    "# Title\n\nText of `fullyShard`, again `fullyShard`.\n\n## A *part*\n\n```ts train.ts\nconst a = 1 < 2;\n```\n";
  const nameIn = (code: string): string => `api/${code}.html`;
  const { title, markup, headings, parts } = renderMarkdown(source, { addressOf, nameIn });
  assert.equal(title, "Title");
  assert.deepEqual(headings.map(({ id, text }) => [id, text]), [["a-part", "A part"]]);
  assert.match(markup.text, /<figcaption>train\.ts<\/figcaption>.*<span class="hljs-keyword">const<\/span>.* &lt; /s);
  assert.equal(markup.text.split('href="api/fullyShard.html"').length, 2, "the first of a page is a link");
  assert.deepEqual(parts.map(({ heading, text }) => [heading?.text, text]), [
    [undefined, "Text of fullyShard, again fullyShard."],
    ["A part", "const a = 1 < 2;"],
  ]);
  assert.throws(() => renderMarkdown("# A\n\n<script>1</script>\n", { addressOf }), /expected no markup/);
  assert.throws(() => renderMarkdown("no title\n", { addressOf }), /expected a title/);
  assert.throws(() => renderMarkdown("# A\n\n```cobol\n```\n", { addressOf }), /expected a language/);
});

test("declarationOf() writes signatures as TypeScript", () => {
  const number = { kind: "keyword", repr: "number", value: "number" };
  const list = { kind: "typeOperator", value: { operator: "readonly", tsType: { kind: "array", value: number } } };
  const params = [{ kind: "identifier", name: "sizes", tsType: list }, {
    kind: "assign",
    left: { kind: "identifier", name: "most", tsType: number },
  }];
  const [found] = declarationOf("sum", { kind: "function", def: { params, returnType: number } });
  assert.equal(found?.signature, "function sum(sizes: readonly number[], most?: number): number");
  const unknown = { kind: "function", def: { params: [], returnType: { kind: "riddle" } } };
  assert.throws(() => declarationOf("sum", unknown), /no type of kind 'riddle'/);
});

test("wordsOf() finds parts of names", () => {
  assert.deepEqual(wordsOf("reshardAfterForward, all_gather"), [
    ...["reshardAfterForward", "reshard", "After", "Forward", "all_gather", "all", "gather"],
  ]);
});

test("flagsOf() are the flags of the keys that the page of settings estimates", () => {
  const choices = { ranks: 4, device: "cuda", precision: "bfloat16", seq: 64, batch: 2, memory: 8 } as const;
  for (const candidate of CANDIDATES) estimateInput(keysOf(choices, candidate, "config.json"));
  assert.deepEqual(flagsOf({ nproc: 4, reshardAfterForward: false, cpuOffload: true }), [
    ...["--nproc", "4", "--no-reshard-after-forward", "--cpu-offload"],
  ]);
  assert.throws(() => estimateInput({ model: "m", nproc: 2, ranks: 2 }), /ranks: expected no such key/);
  assert.throws(() => estimateInput({ model: "m", nproc: -2 }), /nproc/);
});
