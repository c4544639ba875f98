/**
 * Elements of the page by their ids, and new ones.
 *
 * @module
 */
/// <reference lib="dom" />

/** The element of an id. @throws {Error} if there is none of that kind */
export function byId<Kind extends Element>(id: string, kind: new () => Kind): Kind {
  const found = document.getElementById(id);
  if (found instanceof kind) return found;
  throw new Error(`The page has no '${id}' of kind ${kind.name}`);
}

/** A new element with a class and a text. */
export function made<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  className: string = "",
  text: string = "",
): HTMLElementTagNameMap[Tag] {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  return element;
}

/** A new element of SVG. */
export function drawn(tag: string, attributes: Readonly<Record<string, string | number>>): SVGElement {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

/** Fills a list with colors and what they mean. */
export function legend(id: string, entries: readonly (readonly [className: string, text: string])[]): void {
  const items = entries.map(([className, text]) => {
    const item = made("li");
    item.append(made("span", `swatch ${className}`), text);
    return item;
  });
  byId(id, HTMLUListElement).replaceChildren(...items);
}

/** Bytes as people read them. */
export function bytesText(bytes: number): string {
  return bytes >= 2 ** 20 ? `${(bytes / 2 ** 20).toFixed(1)} MiB` : `${Math.round(bytes / 2 ** 10)} KiB`;
}
