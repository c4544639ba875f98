/**
 * TensorBoard's event files: records of protobuf, each between checksums. From the formats of TensorFlow:
 * `tensorflow/core/lib/io/record_writer.h`, `tensorflow/core/util/event.proto` and `framework/summary.proto`.
 *
 * @module
 */
import { double, float, integer, message, string, type WireField } from "./protobuf.ts";

/** CRC-32C, whose polynomial differs from zlib's CRC-32, of each byte. Made when it is first needed. */
let table: Uint32Array | undefined;

function crcTable(): Uint32Array {
  return Uint32Array.from({ length: 256 }, (_, byte) => {
    let crc = byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
    return crc;
  });
}

/** CRC-32C of bytes, rotated and shifted, as a record's checksum is: it is stored beside bytes that are checked themselves. */
function maskedCrc(bytes: Uint8Array): number {
  table ??= crcTable();
  let crc = 0xffffffff;
  for (const byte of bytes) {
    const entry = table[(crc ^ byte) & 0xff];
    if (entry !== undefined) crc = entry ^ (crc >>> 8);
  }
  crc = ~crc >>> 0;
  return (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
}

/** A record: length, its checksum, the bytes, their checksum. */
function record(fields: readonly WireField[]): Uint8Array {
  const data = Uint8Array.from(fields.flat());
  const bytes = new Uint8Array(16 + data.byteLength);
  const view = new DataView(bytes.buffer);
  view.setBigUint64(0, BigInt(data.byteLength), true);
  view.setUint32(8, maskedCrc(bytes.subarray(0, 8)), true);
  bytes.set(data, 12);
  view.setUint32(12 + data.byteLength, maskedCrc(data), true);
  return bytes;
}

/** Fields that begin every event. @param seconds since the epoch */
function head(seconds: number, step: number): WireField[] {
  return [double(1, seconds), integer(2, step)];
}

/** The first record of a file. */
export function versionRecord(seconds: number): Uint8Array {
  return record([double(1, seconds), string(3, "brain.Event:2")]);
}

/** Says that a session goes on before `step`: TensorBoard drops what earlier files hold of `step` and of later ones. */
export function restartRecord(seconds: number, step: number): Uint8Array {
  const start = 1;
  return record([...head(seconds, step), message(7, integer(1, start))]);
}

/** The numbers of a step, each under its tag. */
export function scalarRecord(seconds: number, step: number, scalars: Readonly<Record<string, number>>): Uint8Array {
  const values = Object.entries(scalars).map(([tag, value]) => message(1, string(1, tag), float(2, value)));
  return record([...head(seconds, step), message(5, ...values)]);
}

/** A text in Markdown under a tag, at step 0, which protobuf leaves out. */
export function textRecord(seconds: number, tag: string, text: string): Uint8Array {
  const [stringType, oneElement] = [7, message(2, integer(1, 1))];
  const tensor = message(8, integer(1, stringType), message(2, oneElement), string(8, text));
  const metadata = message(9, message(1, string(1, "text")));
  return record([double(1, seconds), message(5, message(1, string(1, `${tag}/text_summary`), tensor, metadata))]);
}
