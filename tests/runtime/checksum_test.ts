/**
 * Checksums against published values, whole and in pieces.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { crc32, sha256 } from "../../src/runtime/checksum.ts";

const encode = (text: string): Uint8Array => new TextEncoder().encode(text);

test("crc32() gives the check value of CRC-32 and continues", () => {
  assert.equal(crc32(encode("123456789")), 0xcbf43926);
  assert.equal(crc32(encode("6789"), crc32(encode("12345"))), 0xcbf43926);
  assert.equal(crc32(new Uint8Array(0)), 0);
});

test("sha256() gives FIPS 180's example, whole and in pieces", () => {
  const expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  assert.equal(sha256(["abc"]), expected);
  assert.equal(sha256([encode("a"), "b", encode("c")]), expected);
});
