/**
 * The keys of transformers' `DistributedConfig` (5.24).
 *
 * @module
 */
import * as z from "zod";
import { bool, choice, type ForeignKey, foreignKey, type KeyKind, type KeyTranslation, whole } from "./key.ts";

/** Styles by name; the trainer's own key checks the styles. */
const styles: KeyKind<"auto" | Readonly<Record<string, string>>> = {
  schema: z.union([z.literal("auto"), z.record(z.string(), z.string())]),
  shown: "auto, or styles by name",
};

const anything: KeyKind<unknown> = { schema: z.unknown(), shown: "anything" };

/** A number of ranks of an axis. */
function axis(name: string, key: string, here: string): ForeignKey {
  return foreignKey(name, whole(1), here, (count, to) => to.set(key, count));
}

/** The keys. */
export const DISTRIBUTED_KEYS: readonly ForeignKey[] = [
  axis("tp_size", "tpSize", "`tpSize`: ranks that compute with parts of the weights"),
  foreignKey(
    "tp_plan",
    styles,
    "`tpPlan`: styles by name replace those of the family's plan; an empty one, which cuts nothing, is refused",
    (plan, to) => {
      if (typeof plan === "object" && Object.keys(plan).length === 0) {
        return to.refuse("auto, or at least one style", "{}, by which nothing is cut: leave tp_size out");
      }
      to.set("tpPlan", plan);
    },
  ),
  axis("fsdp_size", "fsdpSize", "`fsdpSize`: ranks that share a copy; 1 where it is not given, as there"),
  axis("dp_replicate_size", "dpReplicateSize", "`dpReplicateSize`: copies"),
  foreignKey(
    "fsdp_plan",
    anything,
    "null: `fsdpPlan: auto`, the family's; rules of one's own are refused here, and given as `fsdpPlan` with mode manual",
    (plan, to) =>
      to.refuse("nothing, and fsdpPlan with mode manual for rules of one's own", JSON.stringify(plan) ?? ""),
  ),
  foreignKey("fsdp_cpu_offload", bool, "`cpuOffload`", (on, to) => to.set("cpuOffload", on)),
  foreignKey(
    "fsdp_mixed_precision",
    bool,
    "`precision: bfloat16`, with reductions in float32",
    (on, to) => to.set("precision", on ? "bfloat16" : "float32"),
  ),
  axis("pp_size", "ppSize", "`ppSize`: ranks that have consecutive blocks of the model"),
  axis(
    "ep_size",
    "epSize",
    "`epSize`: of the ranks that share a copy, those that divide its experts; a multiple of `tp_size`",
  ),
  foreignKey(
    "ep_plan",
    styles,
    "auto: all experts are divided; rules of one's own are refused",
    (plan, to) => {
      if (plan !== "auto") to.refuse("auto, by which all experts are divided", JSON.stringify(plan));
    },
  ),
  foreignKey(
    "ep_implementation",
    choice(["auto", "all_to_all", "all_reduce", "deepgemm_megamoe"]),
    "auto; all_to_all: rows go to the ranks of their experts; all_reduce: every rank has all rows and the outputs are summed, " +
      "which needs an `ep_size` equal to `tp_size`; others are refused",
    (name, to) => to.experts = name,
  ),
  foreignKey(
    "enable_sequence_parallel",
    bool,
    "`enableSequenceParallel`: norms and residuals of a rank's positions, which needs `tp_size`",
    (on, to) => to.set("enableSequenceParallel", on),
  ),
  foreignKey("enable_expert_parallel", bool, "false: give `ep_size`", (on, to) => {
    if (on) to.refuse("false, and ep_size", "true, which does not say over how many ranks");
  }),
];

/** Checks `ep_implementation` against the sizes: the sizes alone decide how rows come to their experts. */
export function checkExperts(to: KeyTranslation): void {
  const { experts = "auto", values: { tpSize, epSize } } = to;
  if (experts === "auto") return;
  to.key = to.said.get("ep_implementation") ?? to.key;
  const isSummed = epSize === tpSize;
  const [expert, tensor] = [["ep_size", epSize], ["tp_size", tpSize]].map(([name, size]) =>
    size === undefined ? `no ${name}` : `${name} ${size}`
  );
  const sizes = `${expert} and ${tensor}`;
  if (experts === "deepgemm_megamoe") to.refuse("auto, all_to_all or all_reduce", `'${experts}'`);
  else if (experts === "all_reduce" && !isSummed) {
    to.refuse("auto or all_to_all, or an ep_size equal to tp_size", `'${experts}' with ${sizes}`);
  } else if (experts === "all_to_all" && isSummed && epSize !== undefined && epSize !== 1) {
    to.notice(`with ${sizes} every rank has all rows already, so the experts' outputs are summed, as by all_reduce`);
  }
}
