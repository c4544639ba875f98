/**
 * Recognition of wrong files: irregular files, and files that a failed download left.
 *
 * @module
 */
import type { Stats } from "node:fs";

/** Number of first bytes that {@link foreignContent} needs. */
export const FOREIGN_BYTES = 512;

/** Names a path that is not a regular file, with the remedy; undefined for a regular file. */
export function irregular(status: Stats): string | undefined {
  if (status.isFile()) return undefined;
  if (status.isDirectory()) return "it is a directory, not a regular file";
  const kind = status.isFIFO()
    ? "a named pipe (FIFO)"
    : status.isSocket()
    ? "a socket"
    : status.isCharacterDevice() || status.isBlockDevice()
    ? "a device"
    : "something else";
  return `it is ${kind}, not a regular file; write what it gives into a file, or remove it`;
}

/** First bytes of file formats other than JSON and safetensors. */
const MAGIC: readonly (readonly [bytes: readonly number[], kind: string])[] = [
  [[0x1f, 0x8b], "gzip data: unpack it by 'gunzip'"],
  [[0x28, 0xb5, 0x2f, 0xfd], "zstd data: unpack it by 'unzstd'"],
  [[0x42, 0x5a, 0x68], "bzip2 data: unpack it by 'bunzip2'"],
  [[0xfd, 0x37, 0x7a, 0x58, 0x5a], "xz data: unpack it by 'unxz'"],
  [[0x50, 0x4b, 0x03, 0x04], "a zip archive, such as torch.save writes: unpack it, or convert it by save_pretrained"],
  [[0x80, 0x02], "a Python pickle, such as torch.save writes: convert it by save_pretrained"],
  [[0x47, 0x47, 0x55, 0x46], "a GGUF file: get the model's safetensors"],
  [[0x89, 0x48, 0x44, 0x46], "an HDF5 file: get the model's safetensors"],
  [[0x89, 0x50, 0x4e, 0x47], "a PNG picture: download the file again"],
  [[0x25, 0x50, 0x44, 0x46], "a PDF: download the file again"],
];

/**
 * Recognizes wrong contents that often replace a JSON or safetensors file: a Git LFS pointer, an error page of a server, a
 * compressed file, nothing.
 *
 * @param start the first {@link FOREIGN_BYTES} bytes of the file, or all of a shorter one
 * @returns the kind and the remedy, to follow "it is "; undefined if it is not recognized
 */
export function foreignContent(start: Uint8Array): string | undefined {
  if (start.length === 0) return "empty: download the file again";
  const magic = MAGIC.find(([bytes]) => bytes.every((byte, i) => start[i] === byte));
  if (magic !== undefined) return magic[1];
  if (start.length >= 64 && start.every((byte) => byte === 0)) return "zeros only: download the file again";
  const text = new TextDecoder().decode(start.subarray(0, FOREIGN_BYTES)).trimStart();
  if (text === "") return "blank: download the file again";
  if (/^version https?:\/\/(git-lfs|hawser)\b/.test(text)) {
    const size = /^size (\d+)$/m.exec(text)?.[1];
    const of = size === undefined ? "" : `, of a file of ${size} bytes that is not here`;
    return `a pointer of Git LFS${of}: run 'git lfs pull' in its folder, or download the file again`;
  }
  if (/^<(!doctype|html|head|body|\?xml|!--|error|svg)\b/i.test(text)) {
    return "an HTML or XML page, such as a server sends that refuses: download the file again, by its raw address";
  }
  const message = errorIn(text);
  if (message !== undefined) return `a server's refusal ${JSON.stringify(message)}: download the file again`;
  if (/^(entry not found|repository not found|invalid (rev id|username)|access to model|not found|404)/i.test(text)) {
    const [line = ""] = text.split("\n");
    return `a server's refusal ${JSON.stringify(line.slice(0, 80))}: download the file again`;
  }
  return undefined;
}

/** The message of a JSON object that only reports an error. */
function errorIn(text: string): string | undefined {
  return /^\{\s*"(?:error|message|detail|errors)"\s*:\s*(?:\[\s*)?"([^"]{1,80})/.exec(text)?.[1];
}
