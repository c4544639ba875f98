/**
 * Checksums of byte streams, by the runtime's native code: CRC-32 against damage, at memory speed; SHA-256 to identify contents;
 * HMAC to prove knowledge of a secret.
 *
 * @module
 */
import { createHash, createHmac, timingSafeEqual } from "node:crypto";
import { crc32 as zlibCrc32 } from "node:zlib";

/** CRC-32 (zlib's) of bytes that follow others, whose CRC-32 is `before`. */
export function crc32(bytes: Uint8Array, before: number = 0): number {
  return zlibCrc32(bytes, before);
}

/** A CRC-32 as eight hexadecimal digits. */
export function crc32Text(checksum: number): string {
  return checksum.toString(16).padStart(8, "0");
}

/** A hash of bytes that arrive in pieces. */
export interface ByteHash {
  update(piece: string | Uint8Array): void;
  /** The hash in lower-case hexadecimal digits; nothing can be added after. */
  finish(): string;
}

/** Begins a hash; `sha1` is for names that other programs make with it. */
export function byteHash(algorithm: "sha256" | "sha1"): ByteHash {
  const hash = createHash(algorithm);
  return { update: (piece) => void hash.update(piece), finish: () => hash.digest("hex") };
}

/** SHA-256 of consecutive pieces, as 64 lower-case hexadecimal digits; text counts as UTF-8. */
export function sha256(pieces: Iterable<string | Uint8Array>): string {
  const hash = byteHash("sha256");
  for (const piece of pieces) hash.update(piece);
  return hash.finish();
}

export function hmacSha256(secret: string, pieces: Iterable<Uint8Array>): Uint8Array {
  const mac = createHmac("sha256", secret);
  for (const piece of pieces) mac.update(piece);
  return new Uint8Array(mac.digest());
}

/** True if two codes are equal; takes the same time for all contents. */
export function equalCodes(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && timingSafeEqual(a, b);
}
