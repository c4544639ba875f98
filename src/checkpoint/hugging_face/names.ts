/**
 * Matches stored tensors with a model's, where others wrote the directory: names as transformers reads them, experts in one
 * tensor or apart, and tensors that the model does not have and does not need.
 *
 * @module
 */
import type { StoredTensor } from "../format/dcp_shards.ts";
import { tensorsOf, tiedNamesOf } from "../state_dict/savable.ts";
import { type DirectoryTensor, plainDirectoryTensors, type SavableModel } from "../state_dict/state_dict.ts";

/** Buffers that older versions of transformers stored and that follow from the config. */
const DERIVED = /(^|\.)rotary_emb\.inv_freq$/;

/** The tensors of a directory, under the names that a model has for them. */
export interface FoundTensors {
  /** The stored tensors that belong to the model, or to nothing that is known. */
  readonly found: ReadonlyMap<string, StoredTensor>;
  /** Second copies of tied tensors. */
  readonly copies: readonly { readonly copy: StoredTensor; readonly original: string }[];
  /** Names of stored tensors that transformers leaves alone as well. */
  readonly ignored: readonly string[];
  /** FQNs of parameters that are stored as one tensor though the model's own files have parts of them. */
  readonly undivided: readonly string[];
}

/** Names what is stored. */
export function nameTensors(model: SavableModel, stored: ReadonlyMap<string, StoredTensor>): FoundTensors {
  const own = tensorsOf(model);
  const tiedNames = tiedNamesOf(model);
  const plain = [...plainDirectoryTensors(model)];
  const known = new Set([...own, ...plain].map(({ name }) => name));
  const { bodyPrefix = "", prefixes = new Map<string, string>(), ignored: patterns = [] } = model.otherFiles ?? {};
  const nameOf = (name: string): string => {
    const [from, to] = [...prefixes].find(([prefix]) => name.startsWith(prefix)) ?? ["", ""];
    const moved = to + name.slice(from.length);
    const named = !known.has(moved) && known.has(bodyPrefix + moved) ? bodyPrefix + moved : moved;
    return named !== name && stored.has(named) ? name : named;
  };
  const found = new Map<string, StoredTensor>();
  const copies: { copy: StoredTensor; original: string }[] = [];
  const ignored: string[] = [];
  for (const tensor of stored.values()) {
    const name = nameOf(tensor.name);
    const original = known.has(name) ? undefined : tiedNames.get(name);
    if (original !== undefined) copies.push({ copy: tensor, original });
    else if (!known.has(name) && [DERIVED, ...patterns].some((pattern) => pattern.test(name))) {
      ignored.push(tensor.name);
    } else found.set(name, tensor);
  }
  const apart = new Map(own.map(({ name, part: { fqn } }) => [name, fqn]));
  const inParts = new Set([...found.keys()].map((name) => apart.get(name)));
  const whole = plain.filter(({ name, part: { fqn } }) => !apart.has(name) && found.has(name) && !inParts.has(fqn));
  return { found, copies, ignored, undivided: whole.map(({ part: { fqn } }) => fqn) };
}

/** The tensors of a directory in which some parameters and buffers, by their FQNs, are not apart. */
export function directoryTensorsOf(model: SavableModel, whole: readonly string[]): readonly DirectoryTensor[] {
  const isWhole = ({ part: { fqn } }: DirectoryTensor): boolean => whole.includes(fqn);
  const apart = tensorsOf(model).filter((tensor) => !isWhole(tensor));
  return whole.length === 0 ? apart : [...apart, ...[...plainDirectoryTensors(model)].filter(isWhole)];
}

/** A list of names in which those that differ only in numbers stand once, with their count: `h.*.attn.bias (12)`. */
export function summarizeNames(names: readonly string[]): string {
  const counts = new Map<string, number>();
  for (const name of names) {
    const pattern = name.replace(/(?<=^|\.)\d+(?=\.|$)/g, "*");
    counts.set(pattern, (counts.get(pattern) ?? 0) + 1);
  }
  return [...counts].map(([pattern, count]) => count === 1 ? pattern : `${pattern} (${count})`).join(", ");
}
