/**
 * The search: a dialog that asks an index, which is loaded when the dialog first opens.
 *
 * @module
 */
/// <reference lib="dom" />
import MiniSearch, { type SearchResult } from "minisearch";
import { byId } from "../../demo/page/elements.ts";
import { type IndexedPart, SEARCH_OPTIONS } from "./search_options.ts";

/** Most results that are shown. */
const MOST = 12;

/** Lets the button and the key `/` open the search. */
export function startSearch(): void {
  const dialog = byId("search", HTMLDialogElement);
  const query = byId("query", HTMLInputElement);
  const found = byId("found", HTMLUListElement);
  const count = byId("found-count", HTMLParagraphElement);
  const root = document.body.dataset["root"] ?? "";
  let index: Promise<MiniSearch<IndexedPart>> | undefined;

  const open = (): void => {
    index ??= loadIndex(root);
    dialog.showModal();
    query.select();
  };
  byId("open-search", HTMLButtonElement).addEventListener("click", open);
  document.addEventListener("keydown", (event) => {
    const isTyped = event.target instanceof Element && event.target.closest("input, textarea, select") !== null;
    const isAsked = (event.key === "/" && !isTyped) || (event.key === "k" && (event.metaKey || event.ctrlKey));
    if (!isAsked || dialog.open) return;
    event.preventDefault();
    open();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  query.addEventListener("input", () => void show());
  query.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault(); // the form would close the dialog
    found.querySelector("a")?.click();
  });
  dialog.addEventListener("keydown", (event) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step === 0) return;
    event.preventDefault();
    const places: readonly HTMLElement[] = [query, ...found.querySelectorAll("a")];
    const here = places.findIndex((one) => one === document.activeElement);
    places[(here + step + places.length) % places.length]?.focus();
  });
  found.addEventListener("click", () => dialog.close());

  async function show(): Promise<void> {
    const text = query.value.trim();
    const ready = await (index ??= loadIndex(root));
    if (text !== query.value.trim()) return; // more was typed while the index was loaded
    const results = text === "" ? [] : ready.search(text).slice(0, MOST);
    found.replaceChildren(...results.map(entry));
    count.textContent = text === "" ? "" : results.length === 0 ? `Nothing has “${text}”.` : `${results.length} found`;
  }

  function entry(result: SearchResult): HTMLLIElement {
    const [item, link, where, begin] = [
      document.createElement("li"),
      document.createElement("a"),
      document.createElement("strong"),
      document.createElement("small"),
    ];
    link.href = root + String(result["address"]);
    const [page, heading] = [String(result["page"]), String(result["heading"])];
    where.textContent = heading === "" ? page : `${page} › ${heading}`;
    begin.textContent = String(result["begin"]);
    link.append(where, begin);
    item.append(link);
    return item;
  }
}

async function loadIndex(root: string): Promise<MiniSearch<IndexedPart>> {
  const answer = await fetch(`${root}search.json`);
  if (!answer.ok) throw new Error(`search.json: expected the index of the search, got status ${answer.status}`);
  return MiniSearch.loadJSON<IndexedPart>(await answer.text(), SEARCH_OPTIONS);
}
