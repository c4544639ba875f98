/**
 * Reads the signatures of a WASM module's exports from its bytes, which no runtime tells.
 *
 * @module
 */
import assert from "node:assert/strict";

/** A type of WASM's values; functions that are not exported may take vectors. */
export type WasmType = "i32" | "i64" | "f32" | "f64" | "v128";

/** The parameters and results of an exported function. */
export interface Signature {
  readonly parameters: readonly WasmType[];
  readonly results: readonly WasmType[];
}

const TYPES: ReadonlyMap<number, WasmType> = new Map([
  [0x7f, "i32"],
  [0x7e, "i64"],
  [0x7d, "f32"],
  [0x7c, "f64"],
  [0x7b, "v128"],
]);
const [TYPE, IMPORT, FUNCTION, EXPORT] = [1, 2, 3, 7];

/** A place in the bytes. */
class Reader {
  readonly #bytes: Uint8Array;
  at: number;

  constructor(bytes: Uint8Array, at: number = 0) {
    this.#bytes = bytes;
    this.at = at;
  }

  get atEnd(): boolean {
    return this.at >= this.#bytes.length;
  }

  byte(): number {
    const byte = this.#bytes[this.at++];
    assert.ok(byte !== undefined, "the module ends too early");
    return byte;
  }

  /** A LEB128 number. */
  number(): number {
    let value = 0;
    for (let shift = 0;; shift += 7) {
      const byte = this.byte();
      value += (byte & 0x7f) * 2 ** shift;
      if (byte < 0x80) return value;
    }
  }

  name(): string {
    const length = this.number();
    this.at += length;
    return new TextDecoder().decode(this.#bytes.subarray(this.at - length, this.at));
  }

  list<T>(read: () => T): T[] {
    return Array.from({ length: this.number() }, read);
  }
}

/** The exported functions of a module that imports no function. */
export function exportedSignatures(bytes: Uint8Array): ReadonlyMap<string, Signature> {
  const reader = new Reader(bytes, 8);
  let types: Signature[] = [];
  let functions: number[] = [];
  const found = new Map<string, Signature>();
  const typesHere = (): WasmType[] =>
    reader.list(() => {
      const type = TYPES.get(reader.byte());
      assert.ok(type !== undefined, "not a number type");
      return type;
    });
  while (!reader.atEnd) {
    const section = reader.byte();
    const end = reader.number() + reader.at;
    if (section === TYPE) {
      types = reader.list(() => {
        assert.equal(reader.byte(), 0x60);
        return { parameters: typesHere(), results: typesHere() };
      });
    } else if (section === IMPORT) {
      reader.list(() => {
        const [module, name, kind] = [reader.name(), reader.name(), reader.byte()];
        assert.equal(kind, 2, `${module}.${name} is imported and no memory`);
        const hasMaximum = reader.number() % 2 === 1;
        reader.number();
        if (hasMaximum) reader.number();
      });
    } else if (section === FUNCTION) functions = reader.list(() => reader.number());
    else if (section === EXPORT) {
      reader.list(() => {
        const [name, kind, index] = [reader.name(), reader.byte(), reader.number()];
        const signature = types[functions[index] ?? -1];
        assert.ok(kind === 0 && signature !== undefined, `${name} is no function`);
        found.set(name, signature);
      });
    }
    reader.at = end;
  }
  return found;
}
