/**
 * An archive of files: their number and an index as JSON, then their contents, one behind the other.
 *
 * @module
 */

/** A file of an archive. */
export interface ArchivedFile {
  /** Path in the archive, with slashes. */
  readonly path: string;
  readonly content: Uint8Array;
}

const HEAD_BYTES = 8;

/** The bytes of an archive. */
export function pack(files: readonly ArchivedFile[]): Uint8Array {
  const index = new TextEncoder().encode(JSON.stringify(files.map(({ path, content }) => [path, content.length])));
  const length = files.reduce((sum, { content }) => sum + content.length, HEAD_BYTES + index.length);
  const bytes = new Uint8Array(length);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(index.length), true);
  bytes.set(index, HEAD_BYTES);
  let end = HEAD_BYTES + index.length;
  for (const { content } of files) {
    bytes.set(content, end);
    end += content.length;
  }
  return bytes;
}

/** The files of an archive. */
export function unpack(bytes: Uint8Array): readonly ArchivedFile[] {
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  const text = new TextDecoder().decode(bytes.subarray(HEAD_BYTES, HEAD_BYTES + length));
  const index: readonly (readonly [string, number])[] = JSON.parse(text);
  let begin = HEAD_BYTES + length;
  return index.map(([path, size]) => {
    const content = bytes.subarray(begin, begin + size);
    begin += size;
    return { path, content };
  });
}
