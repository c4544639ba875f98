/**
 * The dynamic symbols of a shared library for x86-64: what it gives and what it wants.
 *
 * @module
 */
import assert from "node:assert/strict";

const SHT_DYNSYM = 11;
const SECTION_BYTES = 64;
const SYMBOL_BYTES = 24;

/** Names of symbols, sorted. */
export interface Symbols {
  readonly defined: readonly string[];
  readonly undefined: readonly string[];
}

/** Reads them from a library's bytes. */
export function dynamicSymbols(bytes: Uint8Array): Symbols {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const word = (at: number): number => Number(view.getBigUint64(at, true));
  const [sections, count] = [word(40), view.getUint16(60, true)];
  const section = (index: number) => {
    const at = sections + index * SECTION_BYTES;
    const [type, link] = [view.getUint32(at + 4, true), view.getUint32(at + 40, true)];
    return { type, begin: word(at + 24), byteLength: word(at + 32), link };
  };
  const table = Array.from({ length: count }, (_, i) => section(i)).find(({ type }) => type === SHT_DYNSYM);
  assert.ok(table !== undefined, "no dynamic symbols");
  const { begin: strings } = section(table.link);
  const found: { defined: string[]; undefined: string[] } = { defined: [], undefined: [] };
  for (let at = table.begin + SYMBOL_BYTES; at < table.begin + table.byteLength; at += SYMBOL_BYTES) {
    const start = strings + view.getUint32(at, true);
    const name = new TextDecoder().decode(bytes.subarray(start, bytes.indexOf(0, start)));
    found[view.getUint16(at + 6, true) === 0 ? "undefined" : "defined"].push(name);
  }
  return { defined: found.defined.sort(), undefined: found.undefined.sort() };
}
