/**
 * The colors that a reader may choose: those of the system, light or dark ones.
 *
 * @module
 */
/// <reference lib="dom" />

/** Choices, in the order of the button. */
export const THEMES = ["auto", "light", "dark"] as const;
/** Name of a choice. */
export type Theme = typeof THEMES[number];

const KEY = "fullyshard-theme";

/** The reader's choice. A browser that keeps nothing has the system's. */
export function readTheme(): Theme {
  try {
    const kept = localStorage.getItem(KEY);
    return THEMES.find((theme) => theme === kept) ?? "auto";
  } catch {
    return "auto"; // pages of this browser may keep nothing
  }
}

/** Keeps a choice for the other pages. */
export function keepTheme(theme: Theme): void {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // this page has the colors, the next one has the system's
  }
}

/** Colors the page. */
export function setTheme(theme: Theme): void {
  if (theme === "auto") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
}
