/**
 * The header of a Parquet page: a structure in Thrift's compact protocol, of which sizes alone are read.
 *
 * @module
 */

/** What a page's header says. */
export interface PageHeader {
  readonly packedBytes: number;
  readonly unpackedBytes: number;
  /** Values of the page, missing ones included. @default the page holds a dictionary or an index, and no values */
  readonly values: number | undefined;
  /** Rows of the page, which begins with a row then. @default the header does not say */
  readonly rows: number | undefined;
}

/** Kinds of pages with values. */
const [DATA_PAGE, DATA_PAGE_V2] = [0, 3] as const;

/** Thrift's types in the compact protocol. */
const TYPE = {
  true: 1,
  false: 2,
  byte: 3,
  i16: 4,
  i32: 5,
  i64: 6,
  double: 7,
  binary: 8,
  list: 9,
  set: 10,
  struct: 12,
} as const;

/** The bytes end before the header does. */
class Short extends Error {}

/**
 * The header at the beginning of bytes, and its size; undefined if it goes on behind them.
 *
 * @throws {Error} if they are no header
 */
export function pageHeaderOf(
  bytes: Uint8Array,
): { readonly header: PageHeader; readonly byteLength: number } | undefined {
  const walk = new Walk(bytes);
  try {
    const numbers = walk.struct();
    const [kind, unpackedBytes, packedBytes] = ["1", "2", "3"].map((field) => numbers.get(field));
    const isData = kind === DATA_PAGE || kind === DATA_PAGE_V2;
    const [values, rows] = kind === DATA_PAGE
      ? [numbers.get("5.1"), undefined]
      : [numbers.get("8.1"), numbers.get("8.3")];
    const isWhole = kind !== undefined && isSize(unpackedBytes) && isSize(packedBytes) &&
      (!isData || isSize(values)) && (kind !== DATA_PAGE_V2 || isSize(rows));
    if (!isWhole) throw new Error("a page without a header is there");
    return {
      header: { packedBytes, unpackedBytes, ...isData ? { values, rows } : { values: undefined, rows: undefined } },
      byteLength: walk.place,
    };
  } catch (error) {
    if (error instanceof Short) return undefined;
    throw error;
  }
}

function isSize(value: number | undefined): value is number {
  return value !== undefined && value >= 0;
}

/** Reads a structure from its beginning. */
class Walk {
  readonly #bytes: Uint8Array;
  place = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  /** The integers of a structure by their fields' numbers, behind a point those of a structure inside. */
  struct(before = "", numbers: Map<string, number> = new Map()): ReadonlyMap<string, number> {
    let field = 0;
    for (;;) {
      const byte = this.#byte();
      const type = byte & 0x0f;
      if (type === 0) return numbers;
      field = byte >> 4 === 0 ? this.#integer() : field + (byte >> 4);
      this.#value(type, `${before}${field}`, numbers);
    }
  }

  #value(type: number, name: string, numbers: Map<string, number>): void {
    if (type === TYPE.true || type === TYPE.false) return;
    else if (type === TYPE.byte) this.#skip(1);
    else if (type === TYPE.double) this.#skip(8);
    else if (type === TYPE.binary) this.#skip(this.#varint());
    else if (type === TYPE.struct) this.struct(`${name}.`, numbers);
    else if (type === TYPE.list || type === TYPE.set) this.#list(name);
    else if (type === TYPE.i16 || type === TYPE.i32 || type === TYPE.i64) numbers.set(name, this.#integer());
    else throw new Error(`a page's header has a field of an unknown type ${type}`);
  }

  #list(name: string): void {
    const byte = this.#byte();
    const [type, short] = [byte & 0x0f, byte >> 4];
    const count = short === 15 ? this.#varint() : short;
    const isFlag = type === TYPE.true || type === TYPE.false;
    for (let i = 0; i < count; i++) {
      if (isFlag) this.#skip(1);
      else this.#value(type, name, new Map());
    }
  }

  #byte(): number {
    const byte = this.#bytes[this.place++];
    if (byte === undefined) throw new Short();
    return byte;
  }

  #skip(count: number): void {
    this.place += count;
    if (this.place > this.#bytes.length) throw new Short();
  }

  /** Multiplies in place of shifting: i64 has more than 32 bits. */
  #varint(): number {
    let [value, scale] = [0, 1];
    for (;;) {
      const byte = this.#byte();
      value += (byte & 0x7f) * scale;
      if (byte < 0x80) return value;
      scale *= 0x80;
    }
  }

  #integer(): number {
    const value = this.#varint();
    return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
  }
}
