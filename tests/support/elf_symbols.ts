/**
 * The dynamic symbols of a shared library of 64 bits: what it gives and what it wants, and how many libraries it needs.
 *
 * @module
 */
import assert from "node:assert/strict";

const SHT_DYNAMIC = 6;
const SHT_DYNSYM = 11;
const DT_NEEDED = 1;
const TAG_BYTES = 16;
const SECTION_BYTES = 64;
const SYMBOL_BYTES = 24;

/** Names of symbols, sorted. */
export interface Symbols {
  readonly defined: readonly string[];
  readonly undefined: readonly string[];
  /** Libraries that it is linked to. */
  readonly needed: number;
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
  const all = Array.from({ length: count }, (_, i) => section(i));
  const [table, dynamic] = [SHT_DYNSYM, SHT_DYNAMIC].map((wanted) => all.find(({ type }) => type === wanted));
  assert.ok(table !== undefined && dynamic !== undefined, "no dynamic symbols");
  const { begin: strings } = section(table.link);
  const found: { defined: string[]; undefined: string[] } = { defined: [], undefined: [] };
  for (let at = table.begin + SYMBOL_BYTES; at < table.begin + table.byteLength; at += SYMBOL_BYTES) {
    const start = strings + view.getUint32(at, true);
    const name = new TextDecoder().decode(bytes.subarray(start, bytes.indexOf(0, start)));
    found[view.getUint16(at + 6, true) === 0 ? "undefined" : "defined"].push(name);
  }
  const tags = Array.from({ length: dynamic.byteLength / TAG_BYTES }, (_, i) => word(dynamic.begin + i * TAG_BYTES));
  const needed = tags.filter((tag) => tag === DT_NEEDED).length;
  return { defined: found.defined.sort(), undefined: found.undefined.sort(), needed };
}
