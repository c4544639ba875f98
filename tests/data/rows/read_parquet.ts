/**
 * A process that reads all rows of a Parquet file and prints their number, the characters of their texts, and its own most resident memory.
 *
 * @module
 */
import { readFileSync } from "node:fs";
import process from "node:process";
import { parquetRows } from "../../../src/data/rows/parquet.ts";

let [rows, characters] = [0, 0];
for await (const row of parquetRows(process.argv[2] ?? "")) {
  rows++;
  if ("value" in row && typeof row.value["text"] === "string") characters += row.value["text"].length;
}
const peakBytes = Number(/VmHWM:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))?.[1]) * 1024;
process.stdout.write(JSON.stringify({ rows, characters, peakBytes }));
