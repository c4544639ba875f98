/**
 * The seven checks of a family: which units the automatic plan makes, untied and tied; training by the automatic plan, and by a
 * manual one, against DDP, untied and tied; and saving and loading, with a resume in the middle of a run.
 *
 * @module
 */
import { isDeepStrictEqual } from "node:util";
import type { CpuMath } from "../../doors/device.ts";
import { runPooled } from "../../tests/support/rank_pool.ts";
import { assemble, compare, type Pair } from "../parity/traces.ts";
import type { Trace } from "../parity/training.ts";
import { type ZooModel, zooModels } from "./families.ts";
import type { ZooReport } from "./training.ts";

const RANKS = 2;

/** The outcome of a check. */
export interface ZooItem {
  readonly family: string;
  /** Null where it is of both. */
  readonly tied: boolean | null;
  readonly test: string;
  readonly status: "pass" | "fail";
  /** The result that was found instead. */
  readonly reason?: string;
}

/** The extent of the training, and its device. */
export interface ZooExtent {
  readonly cpuMath: CpuMath;
  /** Steps of each training. */
  readonly steps: number;
}

function isReport(value: unknown): value is ZooReport {
  return typeof value === "object" && value !== null && "ddp" in value && "units" in value;
}

/** Nothing where two trainings have the same bits, else how far they are off. */
function difference(reports: readonly ZooReport[], of: (report: ZooReport) => Trace): string {
  const reference = assemble("DDP", reports.map(({ ddp }) => ddp), RANKS);
  const pair: Pair = compare(reference, assemble("training", reports.map(of), RANKS));
  const worst = { loss: pair.max_ulp_loss, norm: pair.max_ulp_grad_norm, weights: pair.max_ulp_weights };
  const off = Object.entries(worst).filter(([, ulps]) => ulps !== 0);
  return off.map(([what, ulps]) => `${what} off by ${ulps} ULP`).join(", ");
}

function structure({ units }: ZooModel, [report]: readonly ZooReport[]): string {
  const keyOf = (names: readonly string[]): string => names.toSorted().join(", ");
  // The root, which comes first, has what no other unit has.
  const found = report?.units.slice(1).map((name) => keyOf(name.split(", "))).sort().join(" | ");
  const expected = units.map(keyOf).sort().join(" | ");
  return found === expected ? "" : `expected ${expected}, got ${found}`;
}

function savedAndLoaded(reports: readonly ZooReport[]): string {
  const isSame = reports.every(({ saved, loaded }) => isDeepStrictEqual(saved, loaded));
  return isSame ? "" : "what was loaded is not what was saved";
}

/** Runs the checks of a family. */
export async function checkFamily(family: string, { cpuMath, steps }: ZooExtent): Promise<readonly ZooItem[]> {
  const items: ZooItem[] = [];
  const saveAndLoad: string[] = [];
  const add = (test: string, tied: boolean | null, reason: string): void => {
    items.push({ family, tied, test, ...reason === "" ? { status: "pass" } : { status: "fail", reason } });
  };
  for (const model of zooModels(family)) {
    const { tied } = model;
    let checks: readonly [structure: string, auto: string, manual: string, saveLoad: string];
    try {
      const results = await runPooled(RANKS, new URL("./rank.ts", import.meta.url), { cpuMath, steps, model });
      const reports = results.filter(isReport);
      const saved = [savedAndLoaded(reports), difference(reports, ({ resumed }) => resumed)];
      checks = [
        structure(model, reports),
        difference(reports, ({ auto }) => auto),
        difference(reports, ({ manual }) => manual),
        saved.filter((reason) => reason !== "").join("; "),
      ];
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      checks = [reason, reason, reason, reason];
    }
    const [ofStructure, ofAuto, ofManual, ofSaving] = checks;
    add("sharding_structure", tied, ofStructure);
    add("auto_plan_vs_ddp", tied, ofAuto);
    add("manual_plan_vs_ddp", tied, ofManual);
    if (ofSaving !== "") saveAndLoad.push(`${tied ? "tied" : "untied"}: ${ofSaving}`);
  }
  add("save_load", null, saveAndLoad.join("; "));
  return items;
}
