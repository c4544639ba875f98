/**
 * Just enough of protobuf's wire format to write TensorBoard's events: https://protobuf.dev/programming-guides/encoding
 *
 * @module
 */

/** A field of a message: its number, and bytes that say their own type and length. */
export type WireField = readonly number[];

const VARINT = 0;
const FIXED_64 = 1;
const BYTES = 2;
const FIXED_32 = 5;

/** An unsigned integer of at most 53 bits, 7 bits a byte, lowest first. */
function varint(value: number): number[] {
  const bytes: number[] = [];
  let rest = value;
  for (; rest >= 128; rest = Math.floor(rest / 128)) bytes.push(rest % 128 + 128);
  bytes.push(rest);
  return bytes;
}

/** `int64`, `enum` or `bool` field of a non-negative integer. */
export function integer(field: number, value: number): WireField {
  return [...varint(field * 8 + VARINT), ...varint(value)];
}

/** `double` field. */
export function double(field: number, value: number): WireField {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setFloat64(0, value, true);
  return [...varint(field * 8 + FIXED_64), ...bytes];
}

/** `float` field. */
export function float(field: number, value: number): WireField {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setFloat32(0, value, true);
  return [...varint(field * 8 + FIXED_32), ...bytes];
}

/** `string` field. */
export function string(field: number, text: string): WireField {
  return message(field, [...new TextEncoder().encode(text)]);
}

/** WireField of a message, of the bytes of its own fields in a row. */
export function message(field: number, ...fields: readonly WireField[]): WireField {
  const bytes = fields.flat();
  return [...varint(field * 8 + BYTES), ...varint(bytes.length), ...bytes];
}
