/**
 * Addresses between pages, and the check that each leads to a page and an anchor that are there.
 *
 * @module
 */
import { posix } from "node:path";

/** The address of a file of the site as a page of it writes it. @param to may end with an anchor */
export function addressFrom(page: string, to: string): string {
  const [file = "", ...anchor] = to.split(/(?=#)/);
  if (file === page && anchor.length > 0) return anchor.join("");
  return posix.relative(posix.dirname(page), file) + anchor.join("");
}

/** True for an address outside the site. */
export function isForeign(href: string): boolean {
  return /^[a-z]+:/i.test(href);
}

/** The links of a site's pages that lead nowhere, a line each. @param files of the site; texts of pages, by path */
export function brokenLinks(files: ReadonlyMap<string, string | Uint8Array>): readonly string[] {
  const anchors = new Map<string, ReadonlySet<string>>();
  for (const [path, text] of files) {
    if (typeof text !== "string" || !path.endsWith(".html")) continue;
    const ids = Array.from(text.matchAll(/ id="([^"]*)"/g), ([, id = ""]) => id);
    anchors.set(path, new Set(ids));
  }
  const broken: string[] = [];
  for (const path of anchors.keys()) {
    const text = String(files.get(path));
    for (const [, address = ""] of text.matchAll(/ (?:href|src)="([^"]*)"/g)) {
      if (isForeign(address)) continue;
      const [file = "", anchor] = address.split("#");
      const target = file === "" ? path : posix.join(posix.dirname(path), file);
      if (!files.has(target)) broken.push(`${path}: '${address}' is no file of the site`);
      else if (anchor !== undefined && anchors.get(target)?.has(decodeURIComponent(anchor)) !== true) {
        broken.push(`${path}: '${address}' has no such anchor`);
      }
    }
  }
  return broken;
}
