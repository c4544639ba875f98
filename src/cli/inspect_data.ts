/**
 * `fullyshard inspect-data`: rows as they are trained on, with the tokens that the loss is on marked, before any are trained on.
 *
 * @module
 */
import process from "node:process";
import * as z from "zod";
import { datasetPath } from "../checkpoint/hugging_face/hub_cache.ts";
import { type Flag, helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { type Section, section } from "../config/section.ts";
import { findBeginOfText } from "../data/begin_of_text.ts";
import { loadChatTemplates } from "../data/chat/load_template.ts";
import { describeMarks } from "../data/chat/template_marks.ts";
import { weightedInputs } from "../data/mixture.ts";
import { describeFirstRows, openRows } from "../data/rows/open_rows.ts";
import { rowError, type RowPlace } from "../data/rows/row.ts";
import { IGNORED, type TokenSample } from "../data/samples/sample.ts";
import { Counter, samplesOfRow } from "../data/samples/sample_cache.ts";
import { BYTE_TOKENIZER, loadTokenizer, type Tokenizer } from "../data/tokenizer.ts";
import { ConfigError } from "../errors.ts";
import { styled, type Terminal, terminal } from "../runtime/terminal.ts";
import { path } from "../train/config_values.ts";
import { type DataConfig, dataSection } from "../train/config.ts";
import { describeSamples, lossesOf } from "../train/data_words.ts";
import { refuseLossPart } from "../train/data_source.ts";
import { placeOf } from "../train/open_model.ts";
import { type PreferenceConfig, preferenceSection } from "../train/preference_config.ts";
import { shown } from "../words.ts";

/** The data to inspect, and how much of it to show. */
interface InspectDataConfig
  extends
    Pick<DataConfig, "data" | "textField" | "tokenizer" | "eosToken" | "sequenceLength">,
    Pick<DataConfig, "chatTemplate" | "lossOn" | "skipBadRows">,
    Pick<PreferenceConfig, "preference"> {
  readonly model?: string | undefined;
  readonly rows: number;
}

/** The keys of data that a training has too. */
const { data, textField, tokenizer, eosToken, sequenceLength, chatTemplate, lossOn, skipBadRows } =
  dataSection.schema.shape;
const { preference } = preferenceSection.schema.shape;

const SECTIONS: readonly [Section<InspectDataConfig>] = [section(
  "inspect-data",
  z.strictObject({
    ...{ data, textField, tokenizer, eosToken, sequenceLength, chatTemplate, lossOn, skipBadRows, preference },
    model: path.optional().describe(
      "Hugging Face folder, or name in its cache, whose tokenizer and template are taken; weights are not read",
    ),
    rows: z.int().positive().default(3).describe("Rows that are shown; all are looked at"),
  }),
)];

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(SECTIONS);

/**
 * Shows rows with the tokens that are trained on, in color or in double brackets, and says how many there are. Every row is made a
 * sample of, so what a run would refuse is refused here.
 *
 * @param argv the arguments after `inspect-data`
 * @param output receives the lines. @default standard output
 * @returns the exit code
 * @throws {ConfigError} for arguments that are wrong, and a row that does not fit, by file and line
 * @throws {FileError} if a file cannot be read
 */
export async function inspectData(
  argv: readonly string[],
  { write, hasColors }: Pick<Terminal, "write" | "hasColors"> = terminal("stdout"),
): Promise<number> {
  if (helpAsked(argv)) {
    process.stdout.write(`${await configHelp(SECTIONS, "fullyshard inspect-data <data>... [flags]")}\n`);
    return 0;
  }
  const config = await resolveConfig(SECTIONS, { argv, positional: "data" });
  const { textField, lossOn, sequenceLength: maxLength } = config;
  const name = "data";
  const isPreference = config.preference !== undefined;
  if (isPreference) refuseLossPart(lossOn);
  if (config.data.length === 0) {
    const expected = "files of rows, as arguments or by '--data'";
    throw new ConfigError([{ path: name, expected, got: "nothing" }]);
  }
  const folder = config.tokenizer ?? (config.model === undefined ? undefined : placeOf(config.model));
  const tokenizer = folder === undefined ? BYTE_TOKENIZER : await loadTokenizer(folder, { eosToken: config.eosToken });
  const files = weightedInputs(config.data, name).flatMap(({ inputs }) => inputs);
  const hasLabels = config.preference === "kto";
  const preference = !isPreference ? undefined : hasLabels ? "labels" : "pairs";
  const source = await openRows(files.map((text) => datasetPath(text, name)), { textField, name, preference });
  if (source === undefined) {
    const expected =
      "rows of chats, or of prompts with completions: the columns 'messages', 'prompt' and 'completion', " +
      "'conversations', or 'instruction' and 'output'";
    throw new ConfigError([{ path: name, expected, got: await describeFirstRows(files, { textField, name }) }]);
  }
  const templates = await loadChatTemplates(tokenizer.path, config.chatTemplate);
  const note = templates && describeMarks(templates, tokenizer);
  if (note !== undefined) write(`${note}\n\n`);
  const ends = config.preference === "orpo" ? { beginId: await findBeginOfText(tokenizer) } : undefined;
  const encoding = {
    tokenizer,
    templates,
    lossOn,
    maxLength,
    name,
    textField,
    isPreference,
    ends,
    labelBlock: hasLabels ? 1 : undefined,
  };
  const count = new Counter(encoding);
  let left = config.rows;
  for await (const row of source.rows()) {
    try {
      if ("problem" in row) throw rowError(name, row, row.problem);
      const isShown = left-- > 0;
      for (const [i, sample] of samplesOfRow(row, encoding).entries()) {
        count.take(sample, sample.cut);
        const label = sample.isDesirable === true ? "desirable" : "undesirable";
        const which = hasLabels ? `${label}, ` : isPreference ? `${i === 0 ? "chosen" : "rejected"}, ` : "";
        if (isShown) write(`${headOf(row, sample, which)}\n${markedText(sample, tokenizer, hasColors)}\n\n`);
      }
    } catch (error) {
      if (!count.skips(error, config.skipBadRows)) throw error;
    }
  }
  const summary = count.summary(source);
  write(
    `${
      [describeSamples(summary, maxLength, isPreference && !hasLabels ? "pair" : "sample"), ...lossesOf(summary)].join(
        "\n",
      )
    }\n`,
  );
  return 0;
}

/** @param which the sample of the row, with a comma behind it; empty where a row is one sample */
function headOf(
  { file, line }: RowPlace,
  { ids, labels, cut }: TokenSample & { readonly cut: number },
  which: string,
): string {
  const targets = labels.filter((label) => label !== IGNORED).length;
  const end = cut === 0 ? "" : `, and ${cut} more that are cut off`;
  return `${file}:${line}: ${which}${ids.length} tokens, ${targets} trained on${end}`;
}

/** The text of a sample; what is trained on is colored, or stands in `[[` and `]]`. */
export function markedText({ ids, labels }: TokenSample, tokenizer: Tokenizer, hasColors: boolean): string {
  const parts: string[] = [];
  for (let start = 0; start < ids.length;) {
    const isTarget = labels[start] !== IGNORED;
    let end = start + 1;
    while (end < ids.length && (labels[end] !== IGNORED) === isTarget) end++;
    // Decoded with what is before it, as decoders treat a first token in their own way.
    const before = tokenizer.decode(ids.subarray(0, start));
    const text = shown(tokenizer.decode(ids.subarray(0, end)).slice(before.length));
    parts.push(!isTarget ? text : hasColors ? styled("yellow", text, true) : `[[${text}]]`);
    start = end;
  }
  return parts.join("");
}
