/**
 * One source of a run's data: its files are found, and made tokens of on one rank of each host; all ranks agree on what they hold.
 *
 * @module
 */
import { at } from "../at.ts";
import { datasetPath } from "../checkpoint/hugging_face/hub_cache.ts";
import { findBeginOfText } from "../data/begin_of_text.ts";
import { loadChatTemplates } from "../data/chat/load_template.ts";
import { describeMarks } from "../data/chat/template_marks.ts";
import { describeSkipped } from "../data/find_files.ts";
import type { WeightedInputs } from "../data/mixture.ts";
import type { TokenStream } from "../data/token_stream.ts";
import { openDocuments } from "../data/rows/open_documents.ts";
import { openRows } from "../data/rows/open_rows.ts";
import type { Packing } from "../data/samples/rows.ts";
import type { SampleSummary } from "../data/samples/sample_file.ts";
import type { SampleStream } from "../data/samples/sample.ts";
import type { Tokenizer } from "../data/tokenizer.ts";
import { ConfigError, type ConfigProblem, InternalError } from "../errors.ts";
import { pathKind } from "../runtime/files.ts";
import { countOf } from "../words.ts";
import { type DataPreparation, rowPreparation, textPreparation } from "./data_preparation.ts";
import { namesOf } from "./data_words.ts";
import type { Run } from "./run.ts";
import type { TextDataOptions } from "./text_data.ts";

/** A source of data whose tokens are made. */
export interface OpenSource {
  readonly tokens: TokenStream | SampleStream;
  readonly packing: Packing;
  readonly summary: SampleSummary | undefined;
  readonly files: readonly string[];
  readonly weight: number | undefined;
}

interface OwnText {
  readonly source: DataPreparation;
  readonly tokenizer: Tokenizer;
  /** Fingerprint of the text, on the ranks that have read it. */
  readonly text: string | undefined;
}

/** Properties of the text that ranks compare. */
interface TextFacts {
  readonly numFiles: number;
  readonly byteLength: number;
  readonly tokenizer: string;
  readonly rules: string;
  readonly text: string | null;
}

/**
 * Refuses ranks with different text, tokenizers or chat templates, as hosts may have different copies. Every rank must call it.
 *
 * @returns the text's fingerprint
 */
export function agreedText(group: Run["group"], { source, tokenizer, text }: OwnText, name: string): string {
  const { files: { length: numFiles }, byteLength, rules } = source;
  const own: TextFacts = { numFiles, byteLength, tokenizer: tokenizer.fingerprint, rules, text: text ?? null };
  const all = group.exchangeText(JSON.stringify(own), "texts").map((said): TextFacts => JSON.parse(said));
  const first = at(all, 0, "text of rank");
  const problems: ConfigProblem[] = [];
  const sizeOf = (said: TextFacts): string =>
    `${countOf(said.numFiles, "file")} of ${countOf(said.byteLength, "byte")}`;
  const isOther = (said: TextFacts): boolean => {
    return sizeOf(said) !== sizeOf(first) || (said.text !== null && said.text !== first.text);
  };
  const otherText = all.findIndex(isOther);
  const otherTokenizer = all.findIndex((said) => said.tokenizer !== first.tokenizer);
  const otherRules = all.findIndex((said) => said.rules !== first.rules);
  const rankOf = (index: number): number => group.worldRanks[index] ?? index;
  if (otherText >= 0) {
    const expected = `the text of rank 0 on all ranks: ${sizeOf(first)}`;
    const got = `${sizeOf(at(all, otherText, "text of rank"))} with other contents or names on rank ${
      rankOf(otherText)
    }`;
    problems.push({ path: name, expected, got: `${got}: copy the files of rank 0's host to all hosts` });
  }
  if (otherTokenizer >= 0) {
    const got = `a different one on rank ${
      rankOf(otherTokenizer)
    }: copy the tokenizer files of rank 0's host to its host`;
    problems.push({ path: "tokenizer", expected: "the tokenizer of rank 0 on all ranks", got });
  } else if (otherRules >= 0 && otherText < 0) {
    const got = `a different one on rank ${rankOf(otherRules)}: copy the file of rank 0's host to all hosts`;
    problems.push({ path: "chatTemplate", expected: "the chat template of rank 0 on all ranks", got });
  }
  if (problems.length > 0) throw new ConfigError(problems);
  if (first.text === null) throw new InternalError("rank 0 has not read the text");
  return first.text;
}

/** Refuses less text than one sample of a stream: its tokens, and one more that is only predicted. */
function requireSample(
  tokens: TokenStream | SampleStream,
  source: DataPreparation,
  sequenceLength: number,
  name: string,
): void {
  if ("lengthOf" in tokens || tokens.length > sequenceLength) return;
  tokens.close();
  const expected = `at least ${sequenceLength + 1} tokens, which one sample of sequenceLength ${sequenceLength} takes`;
  const got = `${countOf(tokens.length, "token")} in ${namesOf(source)}: use more text, or a shorter sequenceLength`;
  throw new ConfigError([{ path: name, expected, got }]);
}

/** Settings of rows that are given where all data is text. */
export function problemsOfText(
  { chatTemplate, lossOn, skipBadRows = false }: Pick<TextDataOptions, "chatTemplate" | "lossOn" | "skipBadRows">,
): readonly ConfigProblem[] {
  const skips = skipBadRows ? "true" : undefined;
  const only = { chatTemplate, lossOn: lossOn === "all" ? undefined : lossOn, skipBadRows: skips };
  return Object.entries(only).filter(([, value]) => value !== undefined).map(([path, value]) => ({
    ...{ path, expected: "chats, or prompts with completions, to train on", got: `'${value}' for text: leave it out` },
  }));
}

/**
 * Refuses a part for the loss of preferences.
 *
 * @throws {ConfigError}
 */
export function refuseLossPart(lossOn: TextDataOptions["lossOn"]): void {
  if (lossOn === undefined) return;
  const expected = "nothing with preference, whose loss is on answers";
  throw new ConfigError([{ path: "lossOn", expected, got: `'${lossOn}'` }]);
}

/** Finds the files of a source: a stream of text, or rows. */
async function prepare(
  patterns: readonly string[],
  tokenizer: Tokenizer,
  options: TextDataOptions,
): Promise<DataPreparation> {
  const { sequenceLength, textField = "text", name = "data", lossOn, skipBadRows = false, chatTemplate } = options;
  const { isPreference = false, hasLabels = false, hasTextEnds = false } = options;
  if (isPreference) refuseLossPart(lossOn);
  const preference = !isPreference ? undefined : hasLabels ? "labels" : "pairs";
  const rows = await openRows(patterns, { textField, name, preference });
  if (rows === undefined) {
    return textPreparation(await openDocuments(patterns, { textField, name }), tokenizer, { name, textField });
  }
  if (options.packing === "wrapped") {
    const expected = "'none', 'bfd' or 'bfd-split' for chats and prompts, which are never cut into one stream";
    throw new ConfigError([{ path: "packing", expected, got: "'wrapped'" }]);
  }
  if (chatTemplate !== undefined && pathKind(chatTemplate) !== "file") {
    const got = `'${chatTemplate}', which is ${pathKind(chatTemplate) === "none" ? "not there" : "no file"}`;
    throw new ConfigError([{ path: "chatTemplate", expected: "a file of Jinja", got }]);
  }
  const templates = await loadChatTemplates(tokenizer.path, chatTemplate);
  const encoding = {
    tokenizer,
    templates,
    lossOn,
    maxLength: sequenceLength,
    name,
    textField,
    skipBadRows,
    isPreference,
    labelBlock: hasLabels ? options.batch : undefined,
    ends: hasTextEnds ? { beginId: await findBeginOfText(tokenizer) } : undefined,
  };
  return { ...rowPreparation(rows, encoding), note: templates && describeMarks(templates, tokenizer) };
}

/** A source whose files are found. */
export interface PreparedSource {
  readonly source: DataPreparation;
  /** Rows that it gives for those of other sources; undefined where there is no other. */
  readonly weight: number | undefined;
}

/** Finds the files of a source. Every rank must call it. */
export async function prepareSource(
  { group }: Pick<Run, "group">,
  { inputs, weight }: WeightedInputs,
  tokenizer: Tokenizer,
  options: TextDataOptions,
): Promise<PreparedSource> {
  const { name = "data" } = options;
  const source = await group.together("open the text", () => {
    return prepare(inputs.map((text) => datasetPath(text, name)), tokenizer, options);
  });
  const skipped = source.skipped === undefined ? undefined : describeSkipped(source.skipped);
  if (skipped !== undefined && group.rank === 0) group.report(`Skipped ${skipped} in ${inputs.join(", ")}`);
  if (source.note !== undefined && group.rank === 0) group.report(source.note);
  return { source, weight };
}

/** The packing of a source: a sample of rows has labels of its own, so that it is never cut in the middle of a stream. */
export function packingOf(
  { isRows }: Pick<DataPreparation, "isRows">,
  { packing: asked = "wrapped" }: Pick<TextDataOptions, "packing">,
): Packing {
  return isRows && asked === "wrapped" ? "none" : asked;
}

/**
 * Refuses sources of a mixture that become rows in different ways.
 *
 * @throws {ConfigError} naming two of them
 */
export function requireOnePacking(
  sources: readonly { readonly files: readonly string[]; readonly packing: Packing }[],
  name: string,
): void {
  const [first] = sources;
  const other = sources.find(({ packing }) => packing !== first?.packing);
  if (first === undefined || other === undefined) return;
  const got = `${namesOf(first)} as '${first.packing}' and ${namesOf(other)} as '${other.packing}'`;
  const expected = "sources of one packing: chats stay apart, so texts beside them take 'none', 'bfd' or 'bfd-split'";
  throw new ConfigError([{ path: name, expected, got: `${got}: set '--packing'` }]);
}

/**
 * Opens one source: makes tokens of all of it on one rank of each host. Every rank must call it.
 *
 * @param opening closes the tokens where a later step of the opening fails, on this rank or on another
 */
export async function openSource(
  { group, localWorldSize }: Pick<Run, "group" | "localWorldSize">,
  { source, weight }: PreparedSource,
  tokenizer: Tokenizer,
  options: TextDataOptions,
  opening: DisposableStack,
): Promise<OpenSource> {
  const { sequenceLength, cache, name = "data" } = options;
  // One rank of each host reads the text for its fingerprint, and gives it to the others.
  const isFirst = group.rank % localWorldSize === 0;
  const own = await group.together("read the text", () => {
    source.requireDocuments();
    if (!isFirst) return undefined;
    return cache === undefined ? { textFingerprint: source.fingerprint() } : source.cache(cache);
  });
  const text = agreedText(group, { source, tokenizer, text: own?.textFingerprint }, name);
  const kept = cache === undefined ? undefined : own !== undefined && "build" in own ? own : source.cache(cache, text);
  // Rank 0 tokenizes first: hosts that share the folder then find its file.
  for (let first = 0; first < group.size && kept !== undefined; first += localWorldSize) {
    await group.together("tokenize the text", async () => {
      if (group.rank !== first || kept.exists()) return;
      await source.requireSome();
      options.onTokenize?.(source);
      await kept.build();
    });
  }
  const { tokens, summary } = await group.together("open the tokens", async () => {
    if (kept === undefined) await source.requireSome();
    const made = kept?.open() ?? await source.inMemory(text);
    opening.defer(() => made.tokens.close());
    return made;
  });
  const packing = packingOf(source, options);
  if (packing === "wrapped") requireSample(tokens, source, sequenceLength, name);
  return { tokens, packing, summary, weight, files: source.files };
}
