/**
 * Names of tensors that a wrapper has changed: why none of them fits, in one sentence instead of one for each.
 *
 * @module
 */
import { countOf } from "../../words.ts";

/** Modules that hold a model as one field, whose name comes into all names below. */
const WRAPPERS: readonly (readonly [segment: string, of: string])[] = [
  ["_orig_mod", "torch.compile"],
  ["_fsdp_wrapped_module", "PyTorch's first FSDP"],
  ["_checkpoint_wrapped_module", "activation checkpointing"],
  ["_forward_module", "Lightning Fabric"],
  ["module", "DistributedDataParallel or DeepSpeed"],
];

/** Names that a tuner of PEFT gives the tensors of an adapter, and of the layer that it changes. */
const ADAPTED = /\.(lora_[A-Z]\w*|lora_embedding_[AB]|lora_magnitude_vector|base_layer|ia3_l|hada_w\w+|oft_\w+)(\.|$)/;

/** Names of an adapter in a run's checkpoint, which holds what is trained. */
const OWN_ADAPTER = /^(?!base_model\.model\.).*\.lora_[AB]\.weight$/;

/** Least share of the missing names that a prefix must explain. */
const LEAST_SHARE = 0.8;

/** Names that do not have their counterpart. */
interface Unmatched {
  readonly missing: readonly string[];
  readonly unexpected: readonly string[];
}

/** Says what a wrapper has done to names; undefined where none has. */
export function explainWrapped({ missing, unexpected }: Unmatched): string | undefined {
  const [wanted] = missing;
  const adapted = unexpected.find((name) => ADAPTED.test(name));
  if (adapted !== undefined) {
    if (OWN_ADAPTER.test(adapted)) return explainAdapter(adapted, wanted);
    const expected = wanted === undefined ? "Expected no names of an adapter" : `Expected '${wanted}' and so on`;
    return `${expected}, got '${adapted}' of a PEFT model whose adapter is apart: merge it by merge_and_unload, then ` +
      "save_pretrained";
  }
  if (wanted === undefined || unexpected.length === 0) return undefined;
  const stripped = new Map(unexpected.map((name) => [strip(name), name]));
  const rule = missing.slice(0, 8).map((name) => ruleFor(name, [...stripped.keys()])).filter((one) => one !== undefined)
    .map((one) => ({ ...one, covered: missing.flatMap((name) => pairOf(name, one, stripped)) }))
    .sort((a, b) => b.covered.length - a.covered.length)[0];
  const [pair] = rule?.covered ?? [];
  if (rule === undefined || pair === undefined || rule.covered.length < LEAST_SHARE * missing.length) return undefined;
  const { name: first, found } = pair;
  const left = missing.length - rule.covered.length;
  const also = left === 0 ? "" : `; ${countOf(left, "other name")} of the model ${left === 1 ? "is" : "are"} missing`;
  return `Names must be as '${first}', got '${found}': ${describe(found, first, rule)}, in ${
    countOf(rule.covered.length, "tensor")
  }${also}. Save the model without its wrapper (its inner module's save_pretrained), or rename the tensors`;
}

/** The error of a checkpoint with an adapter that the model has not, or has in part. */
function explainAdapter(found: string, wanted: string | undefined): string {
  if (wanted === undefined) {
    return `Expected the adapter of the model, got '${found}' besides: give the adapter's settings that it was saved ` +
      "with ('--lora-r', '--lora-target-modules')";
  }
  return `Expected '${wanted}' and so on, got '${found}' of a run that trains an adapter, whose checkpoints hold it ` +
    "alone: go on with the run's own flags ('--lora-r', '--resume'), or merge the adapter that it writes when it ends " +
    "by 'fullyshard merge BASE FOLDER --adapter RUN/model'";
}

/** The prefix of expected names, and the prefix that was found instead. */
interface Rule {
  /** The prefix of expected names. */
  readonly expected: string;
  /** The prefix of stripped names that stands in its place. */
  readonly found: string;
}

/** An expected name with the name that a file has in its place by a rule; nothing where it has none. */
function pairOf(
  name: string,
  { expected, found: prefix }: Rule,
  stripped: ReadonlyMap<string, string>,
): readonly { readonly name: string; readonly found: string }[] {
  const found = name.startsWith(expected) ? stripped.get(prefix + name.slice(expected.length)) : undefined;
  return found === undefined ? [] : [{ name, found }];
}

/** The rule by which an expected name became one of those found, by the longest end that they share. */
function ruleFor(name: string, stripped: readonly string[]): Rule | undefined {
  const parts = name.split(".");
  for (let cut = 0; cut < parts.length - 1; cut++) {
    const end = parts.slice(cut).join(".");
    const match = stripped.find((one) => one === end || one.endsWith(`.${end}`));
    if (match === undefined) continue;
    const rule = {
      expected: name.slice(0, name.length - end.length),
      found: match.slice(0, match.length - end.length),
    };
    // Another layer of the same model is no wrapper.
    return /(^|\.)\d+\./.test(rule.expected + rule.found) ? undefined : rule;
  }
  return undefined;
}

/** A name without the fields that only wrappers have. */
function strip(name: string): string {
  return name.split(".").filter((part) => !WRAPPERS.slice(0, -1).some(([segment]) => segment === part)).join(".");
}

function describe(found: string, wanted: string, rule: Rule): string {
  const parts = found.split(".");
  const known = WRAPPERS.filter(([segment]) => parts.includes(segment) && !wanted.split(".").includes(segment));
  const said = known.map(([segment, of]) => `'${segment}.' of ${of}`);
  let rest = rule.found;
  for (const [segment] of known) rest = rest.replace(`${segment}.`, "");
  if (rest.startsWith("base_model.model.")) {
    said.push("'base_model.model.' of PEFT");
    rest = rest.slice("base_model.model.".length);
  }
  if (rest !== "" && rule.expected === "") said.push(`'${rest}' of a wrapper`);
  else if (rest !== rule.expected) said.push(`'${rest}' in place of '${rule.expected}'`);
  return said.length === 0 ? "another prefix" : `the prefix ${said.join(" and ")}`;
}
