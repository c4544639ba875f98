/**
 * Makes the smallest ELF shared library that the dynamic linker refuses for what it needs: headers, one dynamic section,
 * one string table, no code.
 *
 * @module
 */

import { platform } from "../../src/runtime/processes.ts";

const EM_X86_64 = 62;
const EM_AARCH64 = 183;
const ET_DYN = 3;

/** The bytes of such a library for this machine. @param needed names of libraries, the first not there is refused */
export function elfFile(needed: readonly string[]): Uint8Array {
  const strings: number[] = [0];
  const place = (text: string): bigint => {
    const at = strings.length;
    strings.push(...new TextEncoder().encode(text), 0);
    return BigInt(at);
  };
  const tags: [bigint, bigint][] = needed.map((name) => [1n, place(name)]);
  const dynamicAt = 64 + 2 * 56;
  const stringsAt = dynamicAt + (tags.length + 3) * 16;
  const base = 0x1000n; // the file is loaded there, so that addresses and file offsets differ
  tags.push([5n, base + BigInt(stringsAt)], [10n, BigInt(strings.length)], [0n, 0n]);

  const bytes = new Uint8Array(stringsAt + strings.length);
  const view = new DataView(bytes.buffer);
  bytes.set([0x7f, 0x45, 0x4c, 0x46, 2, 1, 1]);
  view.setUint16(16, ET_DYN, true);
  view.setUint16(18, platform().arch === "arm64" ? EM_AARCH64 : EM_X86_64, true);
  view.setUint32(20, 1, true);
  view.setBigUint64(32, 64n, true);
  view.setUint16(52, 64, true);
  view.setUint16(54, 56, true);
  view.setUint16(56, 2, true);
  const segment = (at: number, kind: number, offset: number, size: number): void => {
    view.setUint32(at, kind, true);
    view.setUint32(at + 4, 6, true);
    view.setBigUint64(at + 8, BigInt(offset), true);
    view.setBigUint64(at + 16, base + BigInt(offset), true);
    view.setBigUint64(at + 24, base + BigInt(offset), true);
    view.setBigUint64(at + 32, BigInt(size), true);
    view.setBigUint64(at + 40, BigInt(size), true);
    view.setBigUint64(at + 48, 0x1000n, true);
  };
  segment(64, 1, 0, bytes.byteLength);
  segment(120, 2, dynamicAt, tags.length * 16);
  tags.forEach(([tag, value], index) => {
    view.setBigUint64(dynamicAt + index * 16, tag, true);
    view.setBigUint64(dynamicAt + index * 16 + 8, value, true);
  });
  bytes.set(strings, stringsAt);
  return bytes;
}
