/**
 * What the header of a Parquet page says of its sizes. `hyparquet` reads the header.
 *
 * @module
 */
import type { parquetHeader } from "hyparquet/src/column.js";

/** Reads a header with `hyparquet`, and puts `offset` behind it. */
export type ReadHeader = typeof parquetHeader;

/** What a page's header says. */
export interface PageHeader {
  /** Bytes of the header itself. */
  readonly headerBytes: number;
  readonly packedBytes: number;
  readonly unpackedBytes: number;
  /** Values of the page, missing ones included. @default the page holds a dictionary or an index, and no values */
  readonly values: number | undefined;
  /** Rows of the page, which begins with a row then. @default the header does not say */
  readonly rows: number | undefined;
}

/**
 * The header at the beginning of bytes.
 *
 * @throws {Error} if they are no header, or end before it does
 */
export function pageHeaderOf(bytes: Uint8Array<ArrayBuffer>, read: ReadHeader): PageHeader {
  const reader = { view: new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), offset: 0 };
  const header = read(reader);
  const { data_page_header: first, data_page_header_v2: second } = header;
  const page = {
    ...{ headerBytes: reader.offset, packedBytes: header.compressed_page_size },
    ...{ unpackedBytes: header.uncompressed_page_size, values: undefined, rows: undefined },
    ...header.type === "DATA_PAGE" && { values: requireSize(first?.num_values) },
    ...header.type === "DATA_PAGE_V2" &&
      { values: requireSize(second?.num_values), rows: requireSize(second?.num_rows) },
  };
  if (header.type === undefined) throw new Error("a page without a header is there");
  requireSize(page.packedBytes);
  requireSize(page.unpackedBytes);
  return page;
}

/** @throws {Error} if a damaged header has no such number, or one below 0 */
function requireSize(size: number | undefined): number {
  if (size === undefined || size < 0) throw new Error("a page without a header is there");
  return size;
}
