/**
 * What every page does: menu, colors, search, and focus for parts that scroll sideways.
 *
 * @module
 */
/// <reference lib="dom" />
import { byId } from "../../demo/page/elements.ts";
import { startSearch } from "./search.ts";
import { keepTheme, readTheme, setTheme, THEMES } from "./themes.ts";

startMenu();
startThemes();
startSearch();
startContents();
focusWide();
addEventListener("resize", focusWide);

function startMenu(): void {
  const button = byId("menu", HTMLButtonElement);
  const subjects = byId("subjects", HTMLElement);
  button.addEventListener("click", () => {
    const isOpen = subjects.classList.toggle("open");
    button.setAttribute("aria-expanded", String(isOpen));
  });
  const here = subjects.querySelector("[aria-current]");
  // A long list begins at the page that is open.
  if (here instanceof HTMLElement) subjects.scrollTop = Math.max(0, here.offsetTop - subjects.clientHeight / 2);
}

function startThemes(): void {
  const name = byId("theme-name", HTMLElement);
  name.textContent = readTheme();
  byId("theme", HTMLButtonElement).addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(readTheme()) + 1) % THEMES.length] ?? "auto";
    keepTheme(next);
    setTheme(next);
    name.textContent = next;
  });
}

/** Marks the part of the page that is read, in the list beside it. */
function startContents(): void {
  const links = new Map(
    Array.from(document.querySelectorAll<HTMLAnchorElement>(".contents a"), (link) => [link.hash.slice(1), link]),
  );
  if (links.size === 0) return;
  const mark = (): void => {
    const passed = [...links.keys()].filter((id) =>
      (document.getElementById(id)?.getBoundingClientRect().top ?? 0) < 120
    );
    for (const link of links.values()) link.removeAttribute("aria-current");
    links.get(passed.at(-1) ?? "")?.setAttribute("aria-current", "true");
  };
  addEventListener("scroll", mark, { passive: true });
  mark();
}

/** What is wider than the page can be scrolled with the keyboard, so it can have the focus. */
function focusWide(): void {
  for (const one of document.querySelectorAll(".wide, pre")) {
    const isWide = one.scrollWidth > one.clientWidth;
    if (isWide) one.setAttribute("tabindex", "0");
    else one.removeAttribute("tabindex");
  }
}
