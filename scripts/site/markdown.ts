/**
 * A document as markup: its headings with anchors as GitHub makes them, colored code, and links that lead to pages.
 *
 * @module
 */
import { Marked, type Token, type Tokens } from "marked";
import { escaped, Html, safe } from "../../src/report/html.ts";
import { highlight } from "./highlight.ts";

/** A heading of a page. */
export interface Heading {
  readonly depth: number;
  readonly id: string;
  readonly markup: Html;
  readonly text: string;
}

/** The part of a page from a heading to the next one, as text for the search. */
export interface PagePart {
  /** Undefined before the first heading below the title. */
  readonly heading: Heading | undefined;
  readonly text: string;
}

/** A document as markup. */
export interface RenderedPage {
  readonly title: string;
  /** The text below the title. */
  readonly markup: Html;
  /** Without the title. */
  readonly headings: readonly Heading[];
  readonly parts: readonly PagePart[];
}

/** The site around a page, as far as the page needs it. */
export interface Surroundings {
  /** The address for a link of the document. @throws {Error} if it leads nowhere */
  readonly addressOf: (href: string) => string;
  /** The address of the page of a name in code, if it has one. @param heading the last one of depth 2 */
  readonly nameIn?: (code: string, heading: string) => string | undefined;
  /** Markup in place of a comment of HTML. */
  readonly inPlaceOf?: (comment: string) => Html | undefined;
}

/** The anchor of a heading. */
export function anchorOf(text: string): string {
  return text.toLowerCase().replace(/[^\w\- ]/g, "").replaceAll(" ", "-");
}

/** Renders a document. @throws {Error} if it has no title, markup of its own, or a link that leads nowhere */
export function renderMarkdown(source: string, surroundings: Surroundings): RenderedPage {
  const { tokens, markup, headings } = render(source, surroundings);
  const [title, ...below] = headings;
  if (title?.depth !== 1) throw new Error("expected a title first");
  return { title: title.text, markup, headings: below, parts: partsOf(tokens, below) };
}

/** Renders a text without a title, as a doc comment is. */
export function renderFragment(source: string, surroundings: Surroundings): Html {
  return render(source, surroundings).markup;
}

function render(source: string, { addressOf, nameIn, inPlaceOf }: Surroundings): {
  readonly tokens: readonly Token[];
  readonly markup: Html;
  readonly headings: readonly Heading[];
} {
  const headings: Heading[] = [];
  const linked = new Set<string>();
  let isLinked = false;
  let section = "";
  const marked = new Marked({
    gfm: true,
    renderer: {
      heading({ tokens, depth, text }) {
        const plain = textOf(tokens);
        const id = anchorOf(text);
        if (headings.some((heading) => heading.id === id)) throw new Error(`the heading '${plain}' is there twice`);
        const markup = new Html(this.parser.parseInline(tokens));
        headings.push({ depth, id, markup, text: plain });
        if (depth === 1) return "";
        if (depth === 2) section = plain;
        return `<h${depth} id="${id}">${markup.text}<a class="anchor" href="#${id}" aria-label="Link to “${
          escaped(plain)
        }”">#</a></h${depth}>\n`;
      },
      code({ text, lang = "" }) {
        const [language = "", word = ""] = lang.split(" ");
        return codeBlock(text, language, /\./.test(word) ? word : "").text;
      },
      codespan({ text }) {
        const code = safe`<code>${text}</code>`.text;
        const address = isLinked || linked.has(text) ? undefined : nameIn?.(text, section);
        if (address === undefined) return code;
        linked.add(text);
        return `<a class="name" href="${escaped(address)}">${code}</a>`;
      },
      link({ href, tokens }) {
        isLinked = true;
        const inside = this.parser.parseInline(tokens);
        isLinked = false;
        return `<a href="${escaped(addressOf(href))}">${inside}</a>`;
      },
      image({ href, text }) {
        return `<img src="${escaped(addressOf(href))}" alt="${escaped(text)}" loading="lazy">`;
      },
      table(token) {
        const cells = (tag: string, row: readonly Tokens.TableCell[]): string =>
          row.map(({ tokens, align, text }) => {
            const of = text === "" ? "td" : tag; // a column of names may have no heading
            return `<${of}${of === "th" ? ' scope="col"' : ""}${align === null ? "" : ` class="${align}"`}>${
              this.parser.parseInline(tokens)
            }</${of}>`;
          }).join("");
        const rows = token.rows.map((row) => `<tr>${cells("td", row)}</tr>`).join("\n");
        return `<div class="wide"><table><thead><tr>${
          cells("th", token.header)
        }</tr></thead>\n<tbody>${rows}</tbody></table></div>\n`;
      },
      html({ text }) {
        if (!/^<!--.*-->\s*$/s.test(text)) throw new Error(`expected no markup, got '${text.trim()}'`);
        return inPlaceOf?.(text.trim().slice(4, -3).trim())?.text ?? "";
      },
    },
  });
  const tokens = marked.lexer(source);
  return { tokens, markup: new Html(marked.parser(tokens)), headings };
}

/** A block of code. @param name of the file that it is, or empty */
export function codeBlock(text: string, language: string, name: string = ""): Html {
  const caption = name === "" ? "" : safe`<figcaption>${name}</figcaption>`;
  return safe`<figure class="code">${caption}<pre><code>${highlight(text, language)}</code></pre></figure>
`;
}

/** The texts between headings. */
function partsOf(tokens: readonly Token[], headings: readonly Heading[]): readonly PagePart[] {
  const parts: { heading: Heading | undefined; text: string }[] = [{ heading: undefined, text: "" }];
  let next = 0;
  for (const token of tokens) {
    if (token.type === "heading" && token["depth"] > 1) parts.push({ heading: headings[next++], text: "" });
    else if (token.type !== "heading") {
      const last = parts.at(-1);
      if (last !== undefined) last.text += ` ${textOf([token])}`;
    }
  }
  return parts.map(({ heading, text }) => ({ heading, text: text.replaceAll(/\s+/g, " ").trim() }));
}

/** The words of tokens, without markup; of code its text. */
function textOf(tokens: readonly Token[]): string {
  return tokens.map((token) => {
    if (token.type === "html" || token.type === "space") return "";
    if (token.type === "table") {
      const rows: readonly Tokens.TableCell[][] = [token["header"], ...token["rows"]];
      return rows.map((row) => row.map((cell) => textOf(cell.tokens)).join(" ")).join(" ");
    }
    if (token.type === "list") {
      const items: readonly Tokens.ListItem[] = token["items"];
      return items.map((item) => textOf(item.tokens)).join(" ");
    }
    if ("tokens" in token && token.tokens !== undefined) return textOf(token.tokens);
    return "text" in token && typeof token["text"] === "string" ? token["text"] : "";
  }).join("");
}
