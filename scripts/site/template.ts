/**
 * The frame of every page: navigation by subject, search, its headings, and the pages before and after it.
 *
 * @module
 */
import { type Html, type HtmlValue, safe } from "../../src/report/html.ts";
import { addressFrom } from "./links.ts";
import type { Heading } from "./markdown.ts";
import { PAGES, type SitePage, SUBJECTS } from "./subjects.ts";

/** Parts of a page. */
export interface PageParts {
  readonly path: string;
  readonly title: string;
  readonly markup: Html;
  readonly headings: readonly Heading[];
  /** Above the title: where the page is. */
  readonly crumbs?: HtmlValue;
  /** Modules that the page loads. @default none but the site's own */
  readonly scripts?: readonly string[];
}

/** A page may load files of the site, and nothing else. */
const POLICY = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; worker-src 'self'; " +
  "connect-src 'self'; img-src 'self' data:; frame-src 'self'; base-uri 'none'; form-action 'none'";

/** A whole page. */
export function pageOf({ path, title, markup, headings, crumbs, scripts = [] }: PageParts): string {
  const to = (file: string): string => addressFrom(path, file);
  const name = path === "index.html" ? title : `${title} – fullyshard`;
  return safe`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="${POLICY}">
<title>${name}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="${to("site.css")}">
<script src="${to("theme.js")}"></script>
<script type="module" src="${to("site.js")}"></script>
${scripts.map((script) => safe`<script type="module" src="${to(script)}"></script>\n`)}</head>
<body data-root="${to("index.html").replace(/index\.html$/, "")}">
<a class="skip" href="#content">Skip to the text</a>
<header class="bar">
<button type="button" id="menu" class="menu" aria-expanded="false" aria-controls="subjects">Menu</button>
<a class="home" href="${to("index.html")}">fullyshard</a>
<button type="button" id="open-search" class="find" aria-haspopup="dialog"><span>Search</span> <kbd>/</kbd></button>
<button type="button" id="theme" class="theme"><span class="hidden">Colors: </span><span id="theme-name">auto</span></button>
</header>
<div class="frame">
<nav class="subjects" id="subjects" aria-label="Subjects">
${
    SUBJECTS.map((subject) =>
      safe`<section><h2>${subject.title}</h2><ul>
${subject.pages.map((page) => entry(page, path))}</ul></section>
`
    )
  }</nav>
<main id="content" tabindex="-1">
${crumbs === undefined ? "" : safe`<p class="crumbs">${crumbs}</p>\n`}<h1>${title}</h1>
${narrowContents(headings)}${markup}${neighbours(path)}</main>
${contents(headings)}</div>
<dialog id="search" aria-label="Search"><form method="dialog"><input id="query" type="search" aria-label="Words to find" autocomplete="off" spellcheck="false" placeholder="Words to find"><button>Close</button></form>
<ul id="found"></ul><p id="found-count" role="status"></p></dialog>
</body>
</html>
`.text;
}

function entry({ path, label }: SitePage, here: string): Html {
  const isHere = path === here || (path === "api.html" && here.startsWith("api/"));
  const current = isHere ? safe` aria-current="page"` : "";
  return safe`<li><a href="${addressFrom(here, path)}"${current}>${label}</a></li>
`;
}

/** The page's headings, beside it; nothing for pages of one part. */
function contents(headings: readonly Heading[]): HtmlValue {
  const list = listOf(headings);
  return list && safe`<nav class="contents" aria-labelledby="on-page"><h2 id="on-page">On this page</h2>${list}</nav>
`;
}

/** The same for windows that have no room beside the text. */
function narrowContents(headings: readonly Heading[]): HtmlValue {
  const list = listOf(headings);
  return list && safe`<details class="narrow-contents"><summary>On this page</summary>${list}</details>
`;
}

function listOf(headings: readonly Heading[]): HtmlValue {
  const shown = headings.filter(({ depth }) => depth <= 3);
  if (shown.length < 2) return undefined;
  return safe`<ul>
${shown.map(({ depth, id, text }) => safe`<li class="d${depth}"><a href="#${id}">${text}</a></li>\n`)}</ul>`;
}

function neighbours(path: string): HtmlValue {
  const place = PAGES.findIndex((page) => page.path === path);
  if (place < 0) return undefined;
  const link = (page: SitePage | undefined, rel: string, word: string): HtmlValue =>
    page && safe`<a rel="${rel}" href="${addressFrom(path, page.path)}"><small>${word}</small> ${page.label}</a>\n`;
  return safe`<nav class="neighbours" aria-label="Before and after">
${link(PAGES[place - 1], "prev", "Before")}${link(PAGES[place + 1], "next", "Next")}</nav>
`;
}
