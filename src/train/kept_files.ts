/**
 * Small files for a run's checkpoints and its model: from the folder that it started from, and the tokenizer that it trained
 * with. They are read before training, since the folder may be removed meanwhile, or be a checkpoint that newer ones replace.
 *
 * @module
 */
import {
  companionsOf,
  tokenizerFilesOf,
  withChatTemplate,
  withMissing,
  withTokenIds,
  withTokenizer,
} from "../checkpoint/format/companions.ts";
import type { Ranks } from "../checkpoint/format/ranks.ts";
import type { Tokenizer } from "../data/tokenizer.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { pathKind, resolveLinks } from "../runtime/files.ts";

/**
 * Reads the files for a model's saves, on rank 0.
 *
 * @param isNamed true if the run was given a tokenizer other than the model's
 * @throws {FileError} if one cannot be read
 */
export function keepCompanions(
  model: CausalLm,
  { tokenizer, chatTemplate }: { readonly tokenizer: Tokenizer; readonly chatTemplate?: string | undefined },
  isNamed: boolean,
  { rank }: Pick<Ranks, "rank">,
): void {
  const folder = model.files?.folder;
  const { files, eosId } = tokenizer;
  const isOther = folder === undefined ? true : isNamed && !isWithin(tokenizer.path, folder);
  const knowsEnd = folder === undefined && model.hfConfig["eos_token_id"] != null;
  if (isOther && eosId !== undefined && !knowsEnd) model.configChanges = { eos_token_id: eosId };
  if (rank > 0) return;
  if (isOther && (folder !== undefined || files.length > 0)) {
    model.companions = withTokenIds(withTokenizer(model.companions, tokenizerFilesOf(files)), eosId);
  }
  if (chatTemplate !== undefined) model.companions = withChatTemplate(model.companions, chatTemplate);
  model.companions?.read();
}

/** Adds the files of a checkpoint that a run resumes from, on rank 0: on another host no other copy may exist. */
export function addCompanions(model: CausalLm, checkpoint: string, { rank }: Pick<Ranks, "rank">): void {
  if (rank > 0) return;
  const saved = companionsOf(checkpoint);
  saved.read();
  model.companions = withMissing(model.companions, saved);
}

function isWithin(file: string, folder: string): boolean {
  const parent = file.slice(0, file.lastIndexOf("/") + 1) || ".";
  return pathKind(parent) === "directory" && resolveLinks(parent) === resolveLinks(folder);
}
