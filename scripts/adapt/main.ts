/**
 * `npm run adapt -- [--json] [--peer trl] [--only text] [--record]`: fine-tuning as a user does it, item by item: beside TRL, the whole way
 * from chats to a merged model, the bits on 1 to 4 ranks, and what tests show against references. The last line is one object: `passed`,
 * `failed`, `skipped`, `items`.
 *
 * @module
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";
import { describeFlags, type Flag, readFlags } from "../../src/config/flags.ts";
import type { Bed } from "./bed.ts";
import { BITS } from "./bits.ts";
import { makeInputs } from "./inputs.ts";
import { type AdaptItem, type ItemReport, report } from "./item.ts";
import { LIVE } from "./live.ts";
import { PACKED } from "./packed.ts";
import { PACKED_WAY } from "./packed_way.ts";
import { Peer } from "./peer.ts";
import { PREFERENCES_BESIDE } from "./preferences.ts";
import { Recorded } from "./recorded.ts";
import { ROWS } from "./rows.ts";
import { SHOWN } from "./shown.ts";
import { SIDE_BY_SIDE } from "./side_by_side.ts";
import { STREAMED } from "./streamed.ts";
import { WHOLE_WAY } from "./whole_way.ts";

const ITEMS: readonly AdaptItem[] = [
  ...SIDE_BY_SIDE,
  ...PREFERENCES_BESIDE,
  ...WHOLE_WAY,
  ...PACKED_WAY,
  ...BITS,
  ...ROWS,
  ...PACKED,
  ...SHOWN,
  ...LIVE,
  ...STREAMED,
];

const flags: readonly Flag[] = [
  { name: "json", takes: "switch", description: "Print nothing but one JSON object" },
  {
    name: "peer",
    takes: "one",
    placeholder: "<trl>",
    description:
      "Ask TRL, transformers and PEFT, by the Python in PEER_PYTHON (default: what they gave when it was recorded)",
  },
  { name: "only", takes: "one", placeholder: "<text>", description: "Items whose names hold this text" },
  {
    name: "record",
    takes: "switch",
    description: "With a peer: keep what it gave, for runs without it (tests/fixtures/adapt)",
  },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

function lineOf({ name, pass, seconds, reason, figures }: ItemReport): string {
  const word = pass === null ? "skip" : pass ? "pass" : "FAIL";
  const told = Object.entries(figures).map(([figure, value]) => `${figure} ${value}`).join(", ");
  return `${word} ${name} (${seconds} s)${told === "" ? "" : `: ${told}`}${reason === undefined ? "" : `; ${reason}`}`;
}

async function main(argv: readonly string[]): Promise<number> {
  const { uses, problems } = readFlags(flags, argv);
  const [named, only] = [uses.get("peer")?.texts.at(-1), uses.get("only")?.texts.at(-1) ?? ""];
  const [python, records] = [process.env["PEER_PYTHON"], uses.has("record")];
  const items = ITEMS.filter(({ name }) => name.includes(only));
  const wrong = [
    ...problems.map(({ path, expected, got }) => `${path}: expected ${expected}, got ${got}`),
    ...named === undefined || named === "trl" ? [] : [`--peer: expected trl, got '${named}'`],
    ...named === "trl" && python === undefined
      ? ["PEER_PYTHON: expected a Python that has torch, transformers, peft and trl, got nothing"]
      : [],
    ...records && named === undefined ? ["--record: expected --peer trl with it, got it alone"] : [],
    ...items.length === 0 ? [`--only: expected a part of an item's name, got '${only}'`] : [],
  ];
  if (wrong.length > 0 || uses.has("help")) {
    for (const line of uses.has("help") ? [] : wrong) process.stderr.write(`${line}\n`);
    process.stderr.write(`Usage: npm run adapt -- [flags]\n\n${describeFlags(flags)}\n`);
    return uses.has("help") ? 0 : 2;
  }
  const isJson = uses.has("json");
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-adapt-`);
  try {
    const peer = named === undefined || python === undefined ? undefined : new Peer(python, folder);
    const versions = await peer?.versions();
    const bed: Bed = { folder, inputs: await makeInputs(`${folder}/inputs`), peer, recorded: Recorded.read() };
    const reports: ItemReport[] = [];
    for (const item of items) {
      const found = await report(item, bed);
      reports.push(found);
      if (!isJson) print(lineOf(found));
    }
    const count = (pass: boolean | null): number => reports.filter((one) => one.pass === pass).length;
    const [passed, failed, skipped] = [count(true), count(false), count(null)];
    if (records && versions !== undefined && failed === 0) bed.recorded.write(versions);
    const peers = versions === undefined ? {} : { peer: versions };
    print(JSON.stringify({ passed, failed, skipped, ...peers, items: reports.map(flat) }));
    return failed === 0 ? 0 : 1;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** A report whose figures stand beside its verdict. */
function flat({ figures, ...verdict }: ItemReport): Readonly<Record<string, unknown>> {
  return { ...verdict, ...figures };
}

process.exitCode = await main(process.argv.slice(2));
