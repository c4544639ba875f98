/**
 * The pages of the public names: signature, doc comment, parameters, errors, examples and members of each.
 *
 * @module
 */
import { escaped, Html, type HtmlValue, safe } from "../../../src/report/html.ts";
import { highlight } from "../highlight.ts";
import { addressFrom, isForeign } from "../links.ts";
import { type Heading, renderFragment } from "../markdown.ts";
import type { SearchPart } from "../search_index.ts";
import { pageOf } from "../template.ts";
import type { Declaration, DocTag, Documented } from "./declaration.ts";
import type { ApiName, Door } from "./read.ts";

/** The page that lists all names. */
const OVERVIEW = "api.html";

/** Pages of the API, and where names are. */
export class ApiPages {
  readonly #doors: readonly Door[];

  constructor(doors: readonly Door[]) {
    this.#doors = doors;
  }

  /**
   * The page of a name, if it is public.
   *
   * @param code a name, or a call of it: `fullyShard(module, options)`
   * @param door where it is looked for first: `fullyshard/nn`
   */
  pathOf(code: string, door: string = "fullyshard"): string | undefined {
    const name = /^([A-Za-z]\w*)(?:\(.*\))?$/s.exec(code)?.[1];
    if (name === undefined) return undefined;
    const first = this.#doors.filter((one) => one.door === door);
    for (const { names } of [...first, ...this.#doors]) {
      const found = names.find((one) => one.name === name);
      if (found !== undefined) return found.path;
    }
    return undefined;
  }

  /** All pages by their paths, and what the search finds in them. */
  pages(parts: SearchPart[]): ReadonlyMap<string, string> {
    return new Map(
      this.#doors.flatMap(({ door, names }) =>
        names.map((name) => {
          const text = name.declarations.map(({ doc }) => doc.replace(/\{@link ([^}]+)\}/g, "$1").replaceAll("`", ""))
            .join(" ");
          parts.push({ address: name.path, page: name.name, heading: door, text: text.replaceAll(/\s+/g, " ").trim() });
          return [name.path, this.#page(door, name)] as const;
        })
      ),
    );
  }

  #page(door: string, { name, path, declarations }: ApiName): string {
    const here = { door, path };
    const members = declarations.flatMap((one) => one.members);
    const ids = new Set<string>();
    const headings: Heading[] = [];
    const listed = members.map((member) => {
      const isFirst = !ids.has(member.name);
      ids.add(member.name);
      if (isFirst) headings.push(headingOf(member.name));
      const title = isFirst ? safe`<h3 id="${member.name}"><code>${member.name}</code></h3>\n` : "";
      return safe`${title}${this.#body(member, here)}`;
    });
    const markup = safe`${codeOf(`import { ${name} } from "${door}";`)}
${declarations.map((one) => this.#body(one, here))}${
      members.length === 0 ? "" : safe`<h2 id="members">Members</h2>\n`
    }${listed}`;
    const crumbs = safe`<a href="${addressFrom(path, OVERVIEW)}">API</a> › ${door} › ${kindsOf(declarations)}`;
    return pageOf({ path, title: name, markup, headings, crumbs });
  }

  #body({ signature, doc, tags }: Documented, here: Place): Html {
    const of = (kind: string): readonly DocTag[] => tags.filter((tag) => tag.kind === kind);
    const [params, returns, throws, examples] = [of("param"), of("return"), of("throws"), of("example")];
    return safe`<pre class="signature"><code>${this.#linked(signature, here)}</code></pre>
${this.#text(doc, here)}${
      this.#list("Parameters", params.map(({ name = "", doc }) => [safe`<code>${name}</code>`, doc]), here)
    }${this.#list("Returns", returns.map(({ doc }) => ["", doc]), here)}${
      this.#list("Throws", throws.map(({ type = "", doc }) => [this.#text(`{@link ${type}}`, here), doc]), here)
    }${examples.map(({ doc = "" }) => safe`<p class="label">Example</p>\n${this.#text(doc, here)}`)}`;
  }

  #list(
    title: string,
    rows: readonly (readonly [term: HtmlValue, doc: string | undefined])[],
    here: Place,
  ): HtmlValue {
    if (rows.length === 0) return undefined;
    const items = rows.map(([term, doc = ""]) => safe`<li>${term} ${this.#text(doc, here)}</li>\n`);
    return safe`<p class="label">${title}</p><ul class="facts">${items}</ul>\n`;
  }

  /** A signature in which public names lead to their pages. */
  #linked(signature: string, { door, path }: Place): Html {
    const markup = highlight(broken(signature), "ts").text.replace(/(?<![\w."&#])[A-Z]\w+(?![^<]*>)/g, (name) => {
      const page = this.pathOf(name, door);
      return page === undefined || page === path ? name : `<a href="${escaped(addressFrom(path, page))}">${name}</a>`;
    });
    return new Html(markup);
  }

  #text(doc: string, { door, path }: Place): Html {
    const source = doc.replace(/\{@link ([^}]+)\}/g, (_, name: string) => {
      const page = this.pathOf(name, door);
      return page === undefined ? `\`${name}\`` : `[\`${name}\`](${page})`;
    }).replace(/@default ([^]*)$/, "Default: $1").replace(/@see /g, "See ");
    return renderFragment(source, { addressOf: (href) => isForeign(href) ? href : addressFrom(path, href) });
  }
}

/** The page of a text, and the door of its names. */
interface Place {
  readonly door: string;
  readonly path: string;
}

function headingOf(name: string): Heading {
  return { depth: 3, id: name, text: name, markup: new Html(escaped(name)) };
}

function kindsOf(declarations: readonly Declaration[]): string {
  const names: Readonly<Record<string, string>> = { typeAlias: "type", variable: "value" };
  return [...new Set(declarations.map(({ kind }) => names[kind] ?? kind))].join(", ");
}

function codeOf(text: string): Html {
  return safe`<figure class="code"><pre><code>${highlight(text, "ts")}</code></pre></figure>`;
}

/** A long call with a parameter a line. */
function broken(signature: string): string {
  if (signature.length < 72) return signature;
  const open = signature.indexOf("(");
  if (open < 0) return signature.replaceAll(" | ", "\n  | ");
  let depth = 0;
  let result = signature.slice(0, open);
  for (const letter of signature.slice(open)) {
    if (letter === ")" && --depth === 0) result += ",\n";
    result += letter;
    if (letter === "(" && ++depth === 1) result += "\n  ";
    if ("[{<".includes(letter)) depth += 1;
    if ("]}".includes(letter) || (letter === ">" && !result.endsWith("=>"))) depth -= 1;
    if (letter === "," && depth === 1) result += "\n ";
  }
  return result.replace("(\n  ,\n)", "()");
}
