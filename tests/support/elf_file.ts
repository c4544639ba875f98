/**
 * Makes the smallest ELF shared libraries that a reader can be tested with: headers, one dynamic section, one string
 * table, no code.
 *
 * @module
 */

/** What the library shall say of itself. */
export interface ElfDescription {
  readonly soname?: string;
  readonly needed?: readonly string[];
  readonly runPath?: string;
  /** `e_machine`: 62 is x86-64, 183 arm64. */
  readonly machine: number;
  /** `e_type`: 3 is a shared object. */
  readonly type?: number;
}

/** The bytes of such a library. */
export function elfFile({ soname, needed = [], runPath, machine, type = 3 }: ElfDescription): Uint8Array {
  const strings: number[] = [0];
  const place = (text: string): bigint => {
    const at = strings.length;
    strings.push(...new TextEncoder().encode(text), 0);
    return BigInt(at);
  };
  const tags: [bigint, bigint][] = needed.map((name) => [1n, place(name)]);
  if (soname !== undefined) tags.push([14n, place(soname)]);
  if (runPath !== undefined) tags.push([29n, place(runPath)]);
  const dynamicAt = 64 + 2 * 56;
  const stringsAt = dynamicAt + (tags.length + 3) * 16;
  const base = 0x1000n; // the file is loaded there, so that addresses and file offsets differ
  tags.push([5n, base + BigInt(stringsAt)], [10n, BigInt(strings.length)], [0n, 0n]);

  const bytes = new Uint8Array(stringsAt + strings.length);
  const view = new DataView(bytes.buffer);
  bytes.set([0x7f, 0x45, 0x4c, 0x46, 2, 1, 1]);
  view.setUint16(16, type, true);
  view.setUint16(18, machine, true);
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
