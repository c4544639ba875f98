/**
 * Reads the head of an ELF file: enough to say whether it is a shared library for this machine, what it is called and
 * what it needs. Treats the file as hostile: every offset is checked. Loads nothing and runs nothing.
 *
 * Permission on Deno: `--allow-read` of the file.
 *
 * @module
 */
import { FileError } from "../src/errors.ts";
import { openReadable, pathKind, type ReadableFile } from "../src/runtime/files.ts";
import { platform } from "../src/runtime/processes.ts";

/** What the dynamic section of a shared library says. */
export interface ElfFacts {
  /** Its own name (DT_SONAME). */
  readonly soname: string | undefined;
  /** The libraries it needs (DT_NEEDED). */
  readonly needed: readonly string[];
  /** Directories it searches for them (DT_RUNPATH, or else DT_RPATH), `$ORIGIN` not yet replaced. */
  readonly runPath: readonly string[];
}

// Names as in <elf.h>.
const ET_DYN = 3;
const EM_X86_64 = 62;
const EM_AARCH64 = 183;
const PT_LOAD = 1;
const PT_DYNAMIC = 2;
const DT_NEEDED = 1;
const DT_STRTAB = 5;
const DT_STRSZ = 10;
const DT_SONAME = 14;
const DT_RPATH = 15;
const DT_RUNPATH = 29;

const MAX_DYNAMIC_BYTES = 1 << 20;
const MAX_STRING_BYTES = 64 << 20;

/**
 * Reads a shared library's facts.
 *
 * @param path the file
 * @returns the facts, or the reason why it is no shared library for this machine
 * @throws {FileError} if the file cannot be read
 */
export function readElf(path: string): ElfFacts | string {
  using file = openReadable(path);
  const header = read(file, 0, 64);
  if (header === undefined) return `not a shared library: it has only ${file.byteLength} bytes`;
  if (header.getUint32(0) !== 0x7f454c46) return "not a shared library: it does not begin with an ELF header";
  if (header.getUint8(4) !== 2 || header.getUint8(5) !== 1) return "not a 64-bit little-endian library";
  const machine = header.getUint16(18, true);
  const expected = platform().arch === "arm64" ? EM_AARCH64 : EM_X86_64;
  if (machine !== expected) return `made for another machine (ELF machine ${machine}, expected ${expected})`;
  if (header.getUint16(16, true) !== ET_DYN) return "an ELF file, but not a shared library";

  const segments = readSegments(file, header);
  if (segments === undefined) return "truncated: its program headers lie beyond its end";
  const dynamic = segments.find(({ type }) => type === PT_DYNAMIC);
  if (dynamic === undefined) return "a shared library without a dynamic section";
  const entries = dynamic.size > MAX_DYNAMIC_BYTES ? undefined : read(file, dynamic.offset, dynamic.size);
  if (entries === undefined) return "truncated: its dynamic section lies beyond its end";
  return readDynamic(file, segments, entries) ?? "truncated: its string table lies beyond its end";
}

interface Segment {
  readonly type: number;
  readonly offset: number;
  readonly address: number;
  readonly size: number;
}

function readSegments(file: ReadableFile, header: DataView): Segment[] | undefined {
  const start = Number(header.getBigUint64(32, true));
  const entrySize = header.getUint16(54, true);
  const count = header.getUint16(56, true);
  if (entrySize < 56) return undefined;
  const table = read(file, start, entrySize * count);
  if (table === undefined) return undefined;
  return Array.from({ length: count }, (_, index) => {
    const at = index * entrySize;
    return {
      type: table.getUint32(at, true),
      offset: Number(table.getBigUint64(at + 8, true)),
      address: Number(table.getBigUint64(at + 16, true)),
      size: Number(table.getBigUint64(at + 32, true)),
    };
  });
}

function readDynamic(file: ReadableFile, segments: readonly Segment[], entries: DataView): ElfFacts | undefined {
  const tags: (readonly [tag: number, value: number])[] = [];
  for (let at = 0; at + 16 <= entries.byteLength; at += 16) {
    tags.push([Number(entries.getBigInt64(at, true)), Number(entries.getBigUint64(at + 8, true))]);
  }
  const first = (wanted: number): number | undefined => tags.find(([tag]) => tag === wanted)?.[1];
  const address = first(DT_STRTAB);
  const size = first(DT_STRSZ);
  if (address === undefined || size === undefined || size > MAX_STRING_BYTES) return undefined;
  // The string table is given by its address in memory; the segment that is loaded there tells its place in the file.
  const home = segments.find((s) => s.type === PT_LOAD && address >= s.address && address < s.address + s.size);
  if (home === undefined) return undefined;
  const strings = read(file, home.offset + address - home.address, size);
  if (strings === undefined) return undefined;
  const text = (offset: number): string => {
    let end = offset;
    while (end < size && strings.getUint8(end) !== 0) end++;
    if (offset >= size) return "";
    return new TextDecoder().decode(new Uint8Array(strings.buffer, strings.byteOffset + offset, end - offset));
  };
  const soname = first(DT_SONAME);
  const runPath = first(DT_RUNPATH) ?? first(DT_RPATH);
  return {
    soname: soname === undefined ? undefined : text(soname),
    needed: tags.filter(([tag]) => tag === DT_NEEDED).map(([, value]) => text(value)),
    runPath: runPath === undefined ? [] : text(runPath).split(":").filter((part) => part !== ""),
  };
}

function read(file: ReadableFile, offset: number, byteLength: number): DataView | undefined {
  if (!Number.isSafeInteger(offset) || offset < 0 || offset + byteLength > file.byteLength) return undefined;
  const bytes = new Uint8Array(byteLength);
  file.read(offset, bytes);
  return new DataView(bytes.buffer);
}

/**
 * The libraries that a library needs and that are in none of the directories where the dynamic linker would look: its
 * own run path, then the system's. Its dependencies' dependencies are followed.
 *
 * @param path the library
 * @param elf its facts
 * @param systemDirectories where the dynamic linker looks besides
 * @returns names, each once, with the library that needs it where that is not the first
 */
export function unresolvedDependencies(path: string, elf: ElfFacts, systemDirectories: readonly string[]): string[] {
  const unresolved = new Set<string>();
  const seen = new Set<string>();
  const visit = (owner: string, facts: ElfFacts, depth: number): void => {
    const origin = owner.slice(0, owner.lastIndexOf("/"));
    const own = facts.runPath.map((part) => part.replaceAll("$ORIGIN", origin).replaceAll("${ORIGIN}", origin));
    for (const name of facts.needed) {
      if (seen.has(name)) continue;
      seen.add(name);
      const found = [...own, ...systemDirectories].map((directory) => `${directory}/${name}`).find(isFile);
      if (found === undefined) {
        unresolved.add(depth === 0 ? name : `${name} (for ${owner.slice(owner.lastIndexOf("/") + 1)})`);
        continue;
      }
      const next = readElf(found);
      if (typeof next !== "string") visit(found, next, depth + 1);
    }
  };
  visit(path, elf, 0);
  return [...unresolved];
}

function isFile(path: string): boolean {
  try {
    return pathKind(path) === "file";
  } catch (error) {
    if (error instanceof FileError) return false;
    throw error;
  }
}
