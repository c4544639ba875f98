/**
 * Where the pages of a Parquet column begin, found by their headers, for row groups of which the file has no index of pages (pyarrow writes
 * none by default). So a group of any size is decoded some pages at a time.
 *
 * @module
 */
import type { AsyncBuffer, ColumnMetaData, Compressors, FileMetaData, RowGroup, SchemaTree } from "hyparquet";
import { at } from "../../at.ts";
import { FileError } from "../../errors.ts";
import type { ReadableFile } from "../../runtime/files.ts";
import { formatBytes } from "../../words.ts";
import { type PageHeader, pageHeaderOf, type ReadHeader } from "./parquet_header.ts";

/** Largest page that is decoded, unpacked: its texts take three times as much. */
const MOST_PAGE_BYTES = 2 ** 30;
/** Bytes in which a header is looked for first, and at most: it may hold the least and the largest value of its page. */
const HEADER_BYTES = [2 ** 12, 2 ** 22] as const;
/** Behind the end of any file: where indexes lie that no file has. */
const BEHIND_FILES = 2 ** 50;

/** Pages that follow each other, of which the first one begins with a row. */
interface PageLocation {
  readonly offset: number;
  byteLength: number;
  /** Rows of the group before it. */
  readonly firstRow: number;
}

/** What is read, and how. */
interface PageSource {
  readonly reader: ReadableFile;
  readonly compressors: Compressors;
  readonly readHeader: ReadHeader;
  /** The row group, as messages name it. */
  readonly where: string;
}

/** The pages of one column of a row group, as far as they were looked for. */
class ColumnPages {
  readonly #source: PageSource;
  readonly #column: ColumnMetaData;
  /** Most repeated fields, one in the other, that a value lies in. */
  readonly #depth: number;
  readonly #end: number;
  readonly #pages: PageLocation[] = [];
  #next: number;
  #rows = 0;

  constructor(source: PageSource, column: ColumnMetaData, depth: number) {
    this.#source = source;
    this.#column = column;
    this.#depth = depth;
    const { dictionary_page_offset: dictionary, data_page_offset: data, total_compressed_size: size } = column;
    // Some writers name a dictionary at 0, where there is none.
    this.#next = Number(dictionary === undefined || dictionary === 0n ? data : dictionary);
    this.#end = this.#next + Number(size);
  }

  /** All pages up to the first one that begins with a row from `row` on. */
  until(row: number): readonly PageLocation[] {
    while (this.#next < this.#end && (this.#pages.at(-1)?.firstRow ?? -1) < row) this.#findNext();
    return this.#pages;
  }

  #findNext(): void {
    const begin = this.#next;
    const header = this.#headerAt(begin);
    if (header.unpackedBytes > MOST_PAGE_BYTES) {
      const name = JSON.stringify(this.#column.path_in_schema.join("."));
      throw new FileError(
        this.#source.reader.path,
        "read",
        `${this.#source.where}: expected pages of at most ${
          formatBytes(MOST_PAGE_BYTES)
        }, as one is decoded as a whole, got ` +
          `one of ${
            formatBytes(header.unpackedBytes)
          } in the column ${name}: write the file with a smaller 'row_group_size', ` +
          "or a smaller 'data_page_size' and 'write_batch_size'",
      );
    }
    const data = begin + header.headerBytes;
    this.#next = data + header.packedBytes;
    if (this.#next > this.#end) throw new Error(`a page ends at byte ${this.#next}, its column at ${this.#end}`);
    if (header.values === undefined) return; // a dictionary
    const { rows, continues } = this.#rowsOf(header, data);
    const before = this.#pages.at(-1);
    if (continues && before !== undefined) before.byteLength = this.#next - before.offset;
    else this.#pages.push({ offset: begin, byteLength: this.#next - begin, firstRow: this.#rows });
    this.#rows += rows;
  }

  #headerAt(offset: number): PageHeader {
    const [first, most] = HEADER_BYTES;
    for (let size: number = first;; size *= 8) {
      const bytes = new Uint8Array(Math.min(size, this.#end - offset));
      this.#source.reader.read(offset, bytes);
      try {
        return pageHeaderOf(bytes, this.#source.readHeader);
      } catch (cause) {
        // A header that is longer than these bytes is read again from more of them.
        const isLast = bytes.length < size || size >= most;
        if (isLast) throw new Error(`the page at byte ${offset} has no header that can be read`, { cause });
      }
    }
  }

  /** The rows that begin in a page, and whether it begins inside of one. */
  #rowsOf({ values = 0, rows, packedBytes, unpackedBytes }: PageHeader, offset: number) {
    // Pages of the second version begin with a row; so does every page of values that are not repeated.
    if (rows !== undefined) return { rows, continues: false };
    if (this.#depth === 0) return { rows: values, continues: false };
    const packed = new Uint8Array(packedBytes);
    this.#source.reader.read(offset, packed);
    const { codec } = this.#column;
    const unpack = this.#source.compressors[codec];
    if (codec !== "UNCOMPRESSED" && unpack === undefined) throw new Error(`its pages are packed by ${codec}`);
    return beginnings(unpack === undefined ? packed : unpack(packed, unpackedBytes), values, this.#depth);
  }
}

/** Counts the repetition levels of 0, where rows begin: they lie at the beginning of a page of the first version. */
function beginnings(page: Uint8Array, values: number, depth: number) {
  const width = 32 - Math.clz32(depth);
  let place = 4; // behind the number of bytes
  let [seen, rows] = [0, 0];
  let continues = false;
  const take = (level: number, count: number): void => {
    if (seen === 0) continues = level !== 0;
    if (level === 0) rows += count;
    seen += count;
  };
  while (seen < values) {
    let header = 0;
    for (let shift = 0;; shift += 7) {
      const byte = at(page, place++, "byte of repetition levels");
      header |= (byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    if ((header & 1) === 0) {
      take(at(page, place++, "byte of repetition levels"), Math.min(header >>> 1, values - seen)); // a level repeated
      continue;
    }
    const count = (header >>> 1) * 8;
    for (let i = 0; i < count && seen < values; i++) {
      let level = 0;
      for (let bit = 0; bit < width; bit++) {
        const index = i * width + bit;
        level |= (at(page, place + (index >>> 3), "byte of repetition levels") >>> (index & 7) & 1) << bit;
      }
      take(level, 1);
    }
    place += (header >>> 1) * width;
  }
  return { rows, continues };
}

/** A row group, whose index of pages is made for the rows that are asked for. */
export class PagedGroup {
  readonly #columns: ReadonlyMap<string, ColumnPages>;

  /**
   * @param wanted the columns of the table that are read
   * @param schema the file's schema as a tree
   */
  constructor(source: PageSource, group: RowGroup, wanted: readonly string[], schema: SchemaTree) {
    const columns = new Map<string, ColumnPages>();
    for (const { meta_data: column } of group.columns) {
      if (column === undefined || !wanted.includes(at(column.path_in_schema, 0, "name of a column"))) continue;
      columns.set(keyOf(column), new ColumnPages(source, column, depthOf(schema, column.path_in_schema)));
    }
    this.#columns = columns;
  }

  /**
   * The file's metadata and bytes, with an index of this group's pages up to a row of it.
   *
   * @throws {FileError} if a page is too large to be decoded
   * @throws {Error} if a page cannot be read
   */
  upTo(
    row: number,
    { metadata, number, buffer }: {
      readonly metadata: FileMetaData;
      readonly number: number;
      readonly buffer: AsyncBuffer;
    },
  ): { readonly metadata: FileMetaData; readonly buffer: AsyncBuffer } {
    const indexes: Uint8Array<ArrayBuffer>[] = [];
    // Indexes lie so far from each other that no two are read at once.
    const placeOf = (index: number): number => BEHIND_FILES + index * 2 ** 32;
    const groups = metadata.row_groups.map((group, i) =>
      i !== number ? group : {
        ...group,
        columns: group.columns.map((chunk) => {
          const pages = chunk.meta_data === undefined ? undefined : this.#columns.get(keyOf(chunk.meta_data));
          if (pages === undefined) return chunk;
          const index = indexOf(pages.until(row));
          const place = placeOf(indexes.push(index) - 1);
          return { ...chunk, offset_index_offset: BigInt(place), offset_index_length: index.length };
        }),
      }
    );
    const slice: AsyncBuffer["slice"] = (start, end) => {
      if (start < BEHIND_FILES) return buffer.slice(start, end);
      const place = Math.floor((start - BEHIND_FILES) / 2 ** 32);
      const begin = start - placeOf(place);
      return at(indexes, place, "index of pages").slice(begin, end === undefined ? undefined : begin + end - start)
        .buffer;
    };
    return { metadata: { ...metadata, row_groups: groups }, buffer: { byteLength: buffer.byteLength, slice } };
  }
}

function keyOf({ path_in_schema: path }: ColumnMetaData): string {
  return path.join("\0");
}

/** The repeated fields that a column's values lie in. */
function depthOf(schema: SchemaTree, path: readonly string[]): number {
  let depth = 0;
  let tree = schema;
  for (const name of path) {
    const child = tree.children.find(({ element }) => element.name === name);
    if (child === undefined) throw new Error(`the schema has no '${path.join(".")}'`);
    if (child.element.repetition_type === "REPEATED") depth++;
    tree = child;
  }
  return depth;
}

/** Places of pages as Parquet's `OffsetIndex`: Thrift's compact protocol of a list of structures, each an i64, an i32 and an i64. */
function indexOf(pages: readonly PageLocation[]): Uint8Array<ArrayBuffer> {
  const bytes: number[] = [0x19, 0xfc]; // field 1, a list; its size follows, of structures
  const write = (value: number): void => {
    let rest = value;
    for (; rest >= 0x80; rest = Math.floor(rest / 0x80)) bytes.push(rest % 0x80 + 0x80);
    bytes.push(rest);
  };
  write(pages.length);
  for (const { offset, byteLength, firstRow } of pages) {
    for (const [type, value] of [[0x16, offset], [0x15, byteLength], [0x16, firstRow]] as const) {
      bytes.push(type);
      write(value * 2); // zigzag
    }
    bytes.push(0);
  }
  bytes.push(0);
  return Uint8Array.from(bytes);
}
