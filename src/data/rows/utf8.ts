/**
 * Bytes as text, or where they are no UTF-8.
 *
 * @module
 */

/** Text of bytes without a byte order mark, or the first byte that no UTF-8 text has there; at the end, it is undefined. */
export type Decoded = { readonly text: string } | { readonly at: number; readonly byte: number | undefined };

/** Decodes UTF-8. */
export function decodeUtf8(bytes: Uint8Array): Decoded {
  try {
    return { text: new TextDecoder("utf-8", { fatal: true }).decode(bytes) };
  } catch (cause) {
    if (!(cause instanceof TypeError)) throw cause;
    const at = validLength(bytes);
    return { at, byte: bytes[at] };
  }
}

/** Describes the bytes that were found in place of UTF-8 text, and the remedy. */
export function notUtf8({ at, byte }: { readonly at: number; readonly byte: number | undefined }): string {
  const remedy = "; text of another encoding is converted by, e.g., 'iconv -f LATIN1 -t UTF-8'";
  return byte === undefined
    ? `the end inside a character at byte ${at}`
    : `byte 0x${byte.toString(16).padStart(2, "0")} at byte ${at}${remedy}`;
}

/** Bytes of complete valid characters before the first that are not: by halving, as validity of a prefix is monotonic. */
function validLength(bytes: Uint8Array): number {
  let valid = 0;
  let invalid = bytes.length + 1;
  while (invalid - valid > 1) {
    const middle = Math.floor((valid + invalid) / 2);
    try {
      new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(0, middle), { stream: true });
      valid = middle;
    } catch {
      invalid = middle;
    }
  }
  // The byte that broke a character is `valid`; report that one, or the end if the character was cut off.
  return valid;
}
