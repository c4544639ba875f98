/**
 * Checks that a library's file is complete. The dynamic linker maps the bytes that the header declares; if the file ends before,
 * as after a download that was cut off, SIGBUS kills the process without an error. On a pipe it would wait without end.
 *
 * @module
 */
import { FileError } from "../errors.ts";
import { openReadable, pathKind } from "../runtime/files.ts";

/** Bytes of the header of a 64-bit ELF file, and of an entry of its table of segments. */
const [HEADER_BYTES, ENTRY_BYTES] = [64, 56];
/** A segment that is mapped. */
const PT_LOAD = 1;

/**
 * The reason that a file cannot be loaded: it is cut off, or no file. Undefined where it is complete, is not a 64-bit library, or
 * cannot be read.
 */
export function cutOff(path: string): string | undefined {
  try {
    if (!path.startsWith("/")) return undefined;
    const kind = pathKind(path);
    if (kind === "other") return "it is a pipe, a socket or a device, not a file";
    if (kind !== "file") return undefined;
    using file = openReadable(path);
    const header = viewOf(file, 0, HEADER_BYTES);
    // 64-bit and little-endian, as all that this library runs on.
    if (header === undefined || header.getUint32(0) !== 0x7f454c46 || header.getUint16(4) !== 0x0201) return undefined;
    const [offset, size, count] = [Number(header.getBigUint64(32, true)), ENTRY_BYTES, header.getUint16(56, true)];
    let end = offset + size * count;
    const table = viewOf(file, offset, size * count);
    for (let i = 0; table !== undefined && i < count; i++) {
      if (table.getUint32(i * size, true) !== PT_LOAD) continue;
      const at = (field: number): number => Number(table.getBigUint64(i * size + field, true));
      end = Math.max(end, at(8) + at(32));
    }
    return end <= file.byteLength ? undefined : `it is cut off: it has ${file.byteLength} bytes, and needs ${end}`;
  } catch (error) {
    if (error instanceof FileError) return undefined;
    throw error;
  }
}

/** Some bytes of a file; undefined where it ends before. */
function viewOf(
  { byteLength, read }: ReturnType<typeof openReadable>,
  offset: number,
  length: number,
): DataView | undefined {
  if (offset + length > byteLength) return undefined;
  const bytes = new Uint8Array(length);
  read(offset, bytes);
  return new DataView(bytes.buffer);
}
