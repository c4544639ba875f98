/**
 * Formats of data that are not read: known by their first bytes, or by the name where their bytes are plain text, and refused
 * with what makes text of them. Without that, commas and braces would be trained on.
 *
 * @module
 */

/** Formats that hold rows where the file's name says so. */
export const ROW_FORMATS: readonly string[] = ["gzip", "zstd", "JSON array", "JSON lines", "CSV", "Parquet"];

/** A format that is not read as text. */
export interface Format {
  /** Its name, e.g. `gzip`. */
  readonly name: string;
  /** The remedy, as an imperative: how to turn the file into one that is read. */
  readonly remedy: string;
}

/** Bytes from which a file's format is judged. */
export const HEAD_BYTES = 8192;

type Remedy = (file: string) => string;

const command = (text: string): Remedy => (file) => `decompress it, e.g. '${text} ${file}'`;
const unpack = (text: string): Remedy => (file) => `unpack it, e.g. '${text} ${file}'`;
const convert = (from: string): Remedy => (file) => `convert it, e.g. 'iconv -f ${from} -t UTF-8 ${file} > text.txt'`;
const noText: Remedy = () => "write its text to a .txt or .jsonl file";
const table = (builder: string): Remedy => (file) =>
  "make it JSON lines (.jsonl, one object a line, the text under one key); in Python: " +
  `datasets.load_dataset("${builder}", data_files="${file}")["train"].to_json("data.jsonl")`;

/** First bytes, as Latin-1 text; the longer of two that begin alike comes first. */
const SIGNATURES: readonly (readonly [start: string, name: string, remedy: Remedy])[] = [
  ["\x1f\x8b", "gzip", command("gunzip -k")],
  ["\x28\xb5\x2f\xfd", "zstd", command("zstd -d")],
  ["\x50\x2a\x4d\x18", "zstd", command("zstd -d")], // a frame that is skipped comes first
  ["BZh", "bzip2", command("bunzip2 -k")],
  ["\xfd7zXZ\0", "xz", command("unxz -k")],
  ["\x04\x22\x4d\x18", "lz4", command("lz4 -d")],
  ["\x1f\x9d", "compress", command("gunzip -k")],
  ["\xff\x06\0\0sNaPpY", "snappy", command("snzip -d")],
  ["PK\x03\x04", "zip", unpack("unzip")],
  ["PK\x05\x06", "zip", unpack("unzip")],
  ["PK\x07\x08", "zip", unpack("unzip")],
  ["7z\xbc\xaf\x27\x1c", "7z", unpack("7z x")],
  ["Rar!\x1a\x07", "rar", unpack("unrar x")],
  ["PAR1", "Parquet", table("parquet")],
  ["PARE", "encrypted Parquet", table("parquet")],
  ["ARROW1", "Arrow (IPC file, Feather)", table("arrow")],
  ["FEA1", "Feather", table("arrow")],
  ["\xff\xff\xff\xff", "Arrow (IPC stream)", table("arrow")],
  ["ORC", "ORC", noText],
  ["Obj\x01", "Avro", noText],
  ["\x89HDF\r\n\x1a\n", "HDF5", noText],
  ["SQLite format 3\0", "SQLite", noText],
  ["\x93NUMPY", "NumPy", noText],
  ["%PDF-", "PDF", (file) => `extract its text, e.g. 'pdftotext ${file}'`],
  ["\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "Microsoft Office", noText],
  ["GGUF", "GGUF", noText],
  ["\x89PNG\r\n\x1a\n", "PNG", noText],
  ["\xff\xd8\xff", "JPEG", noText],
  ["GIF8", "GIF", noText],
  ["\x7fELF", "ELF", noText],
  ["{\\rtf", "RTF", noText],
  [
    "version https://git-lfs.github.com/spec/",
    "Git LFS pointer",
    () => "get the file that it stands for: 'git lfs pull'",
  ],
  ["\xff\xfe\0\0", "UTF-32", convert("UTF-32")],
  ["\0\0\xfe\xff", "UTF-32", convert("UTF-32")],
  ["\xff\xfe", "UTF-16", convert("UTF-16")],
  ["\xfe\xff", "UTF-16", convert("UTF-16")],
];

/** Names of signatures that need more than their first bytes, as words begin so too. */
const CHECKS: Readonly<Record<string, (start: string) => boolean>> = {
  bzip2: (start) => /^BZh[1-9]1AY&SY/.test(start) || start.slice(4).startsWith("\x17rE8P\x90"),
  ORC: hasControls,
  PDF: (start) => /^%PDF-\d\.\d/.test(start),
  Parquet: (start) => start.length === 4 || hasControls(start),
  "encrypted Parquet": hasControls,
  GGUF: hasControls,
  GIF: (start) => /^GIF8[79]a/.test(start),
};

/** True if the text has control characters other than tabs, line ends and page ends. */
function hasControls(start: string): boolean {
  return [...start].some((char) => char < " " && !"\t\n\r\f\v".includes(char));
}

/** True if the file's name says that each line is one JSON object. */
export function isJsonLines(file: string): boolean {
  return /\.(jsonl|ndjson)$/i.test(file);
}

/**
 * The format of a file, if it is one that is known and not read.
 *
 * @param head its first {@link HEAD_BYTES}, or all of it
 * @param isAll true if these bytes are all of the file
 * @param field the key of the text in tables, by which a table's header is known where the name says nothing
 */
export function formatOf(file: string, head: Uint8Array, isAll: boolean, field: string): Format | undefined {
  const binary = binaryFormat(head);
  if (binary !== undefined) return { name: binary.name, remedy: binary.remedy(file) };
  const text = new TextDecoder().decode(head).trimStart();
  const found = isJsonLines(file) ? jsonArray(text, isAll) : textFormat(file, text, isAll, field);
  return found === undefined ? undefined : { name: found.name, remedy: found.remedy(file) };
}

interface Known {
  readonly name: string;
  readonly remedy: Remedy;
}

function binaryFormat(head: Uint8Array): Known | undefined {
  let start = "";
  for (const byte of head.subarray(0, 64)) start += String.fromCharCode(byte);
  const found = SIGNATURES.find(([bytes, name]) => start.startsWith(bytes) && (CHECKS[name]?.(start) ?? true));
  if (found !== undefined) return { name: found[1], remedy: found[2] };
  if (new TextDecoder("latin1").decode(head.subarray(257, 262)) === "ustar") {
    return { name: "tar", remedy: unpack("tar -xf") };
  }
  if (start.startsWith("\x80") && "\x02\x03\x04\x05".includes(start.charAt(1)) && start.length > 1) {
    return { name: "pickle", remedy: noText };
  }
  return wideFormat(head) ?? (isBinary(head) ? { name: "binary data", remedy: noText } : undefined);
}

/**
 * UTF-32 and UTF-16 without a mark. The high bytes of letters are below 9 in UTF-16: 0 for Latin letters, 4 for Cyrillic ones. UTF-8
 * text has no such bytes.
 */
function wideFormat(head: Uint8Array): Known | undefined {
  const sample = head.subarray(0, 512);
  if (sample.length < 8) return undefined;
  const share = (step: number, from: number, most: number): number => {
    const bytes = sample.filter((_, i) => i % step === from);
    return bytes.filter((byte) => byte <= most).length / bytes.length;
  };
  const [first = 0, second = 0, third = 0, fourth = 0] = [0, 1, 2, 3].map((from) => share(4, from, 0));
  if (fourth === 1 && third > 0.8 && first < 0.1) return { name: "UTF-32", remedy: convert("UTF-32LE") };
  if (first === 1 && second > 0.8 && fourth < 0.1) return { name: "UTF-32", remedy: convert("UTF-32BE") };
  const [even = 0, odd = 0] = [0, 1].map((from) => share(2, from, 8));
  if (Math.max(even, odd) < 0.8 || Math.min(even, odd) > 0.1) return undefined;
  return { name: "UTF-16", remedy: convert(odd > even ? "UTF-16LE" : "UTF-16BE") };
}

/** True if more than one byte in 30 is NUL or a control character that does not occur in text. */
function isBinary(head: Uint8Array): boolean {
  const controls = head.filter((byte) => byte < 9 || (byte > 13 && byte < 27) || (byte > 27 && byte < 32)).length;
  return controls > 1 && controls > head.length / 30;
}

/** Formats whose bytes are text. */
function textFormat(file: string, text: string, isAll: boolean, field: string): Known | undefined {
  if (/\.csv(?:\.txt)?$/i.test(file)) return { name: "CSV", remedy: table("csv") };
  if (/\.(?:tsv|tab)(?:\.txt)?$/i.test(file)) {
    return { name: "TSV", remedy: (path) => table("csv")(path).replace(`"${path}")`, `"${path}", sep="\\t")`) };
  }
  if (/\.ipynb$/i.test(file)) {
    return {
      name: "Jupyter notebook",
      remedy: (path) => `write its text to a file, e.g. 'jupyter nbconvert --to markdown ${path}'`,
    };
  }
  const array = jsonArray(text, isAll);
  if (array !== undefined) return array;
  const isJsonName = /\.(json|geojson)$/i.test(file);
  if (text.startsWith("{")) {
    const [first = "", ...rest] = (isAll ? text : text.slice(0, text.lastIndexOf("\n") + 1)).split("\n")
      .filter((line) => line.trim() !== "");
    const [second] = rest;
    const isLines = isObject(first) && (second === undefined ? hasKey(first, field) || isJsonName : isObject(second));
    if (isLines) return { name: "JSON lines", remedy: () => "give it a name that ends in .jsonl" };
    // A line that is longer than what was looked at.
    const isLong = !isAll && !text.includes("\n") && /^\{\s*"(?:[^"\\]|\\.)*"\s*:/.test(text);
    if (isJsonName || isLong) return { name: "JSON object", remedy: table("json") };
  }
  return isTable(text, field) ? { name: "CSV", remedy: table("csv") } : undefined;
}

/** A JSON array, by what comes first in it. */
function jsonArray(text: string, isAll: boolean): Known | undefined {
  if (!text.startsWith("[")) return undefined;
  // Lines that are arrays each are refused by their number.
  const starts = /^\[\s*(?:\{\s*(?:"|\})|"(?:[^"\\]|\\.)*"\s*,|"(?:[^"\\]|\\.){200}|\[\s*[[{"\d-]|-?\d[\d.eE+-]*\s*,)/;
  const isArray = isAll ? Array.isArray(parsed(text)) || (starts.test(text) && text.includes("{")) : starts.test(text);
  return isArray ? { name: "JSON array", remedy: table("json") } : undefined;
}

/**
 * True if text is a table:
 * - its first line is a header: at least two names of columns, one of them `field`; one name may be empty, as an index column's is;
 * - another line follows, with as many cells as the header.
 */
function isTable(text: string, field: string): boolean {
  const [header = "", ...lines] = text.split(/\r\n|\r|\n/);
  const second = lines.find((line) => line.trim() !== "");
  if (second === undefined) return false;
  return [",", ";", "\t", "|"].some((mark) => {
    const cells = header.split(mark).map((cell) => cell.trim().replace(/^"(.*)"$/, "$1"));
    // A cell in quotes may have more than one line.
    const isRow = second.split(mark).length === cells.length || second.includes('"');
    return cells.length > 1 && cells.includes(field) && isRow && cells.every((cell) =>
      /^[\w.-]*(?: [\w.-]+){0,2}$/.test(cell)
    ) &&
      cells.filter((cell) => cell === "").length <= 1;
  });
}

function isObject(line: string): boolean {
  const value = parsed(line);
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function hasKey(line: string, key: string): boolean {
  const value = parsed(line);
  return typeof value === "object" && value !== null && Object.hasOwn(value, key);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
