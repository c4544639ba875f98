/**
 * Sets the colors that the reader chose, before the page is drawn.
 *
 * @module
 */
/// <reference lib="dom" />
import { readTheme, setTheme } from "./themes.ts";

setTheme(readTheme());
