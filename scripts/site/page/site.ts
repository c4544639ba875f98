/**
 * The script of every page: menu, colors, search, and focus for parts that scroll sideways.
 *
 * @module
 */
/// <reference lib="dom" />
import { at } from "../../../src/at.ts";
import { byId } from "../../demo/page/elements.ts";
import { startSearch } from "./search.ts";
import { keepTheme, readTheme, setTheme, THEMES } from "./themes.ts";

/** Pixels below which a heading has not been reached: the bar, and some of the text. */
const BEGIN_OF_TEXT = 120;

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
    const next = at(THEMES, (THEMES.indexOf(readTheme()) + 1) % THEMES.length, "theme");
    keepTheme(next);
    setTheme(next);
    name.textContent = next;
  });
}

/** Marks the part of the page that is read, in the list beside it. */
function startContents(): void {
  const parts = [...document.querySelectorAll<HTMLAnchorElement>(".contents a")].flatMap((link) => {
    const heading = document.getElementById(link.hash.slice(1));
    return heading === null ? [] : [{ link, heading }];
  });
  if (parts.length === 0) return;
  const mark = (): void => {
    const passed = parts.filter(({ heading }) => heading.getBoundingClientRect().top < BEGIN_OF_TEXT);
    for (const { link } of parts) link.removeAttribute("aria-current");
    passed.at(-1)?.link.setAttribute("aria-current", "true");
  };
  addEventListener("scroll", mark, { passive: true });
  mark();
}

/** Parts that are wider than the page are scrolled with the keyboard, so they can have the focus. */
function focusWide(): void {
  for (const one of document.querySelectorAll(".wide, pre")) {
    const isWide = one.scrollWidth > one.clientWidth;
    if (isWide) one.setAttribute("tabindex", "0");
    else one.removeAttribute("tabindex");
  }
}
