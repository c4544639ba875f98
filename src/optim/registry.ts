/**
 * All optimizers by name, each with what a run's settings mean to it. To add an optimizer, write its file and its entry here.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { Adafactor } from "./adafactor.ts";
import { AdamW } from "./adamw.ts";
import { AdamW8bit } from "./adamw8bit.ts";
import { Lion } from "./lion.ts";
import { type AdjustLr, Muon } from "./muon.ts";
import type { Optimizer } from "./optimizer.ts";
import type { Schedule } from "./schedule.ts";
import { SGD } from "./sgd.ts";

/** Parameters that share a learning rate and a decay. */
export interface NamedGroup {
  readonly parameters: readonly Parameter[];
  readonly learningRate: number;
  readonly weightDecay: number;
  /** True if all are matrices within layers, which Muon updates. */
  readonly isHidden: boolean;
}

/** Settings of a run's optimizer; each optimizer reads its own. */
export interface NamedSettings {
  readonly schedule: Schedule;
  readonly beta1: number;
  /** @default 0.99 for lion, 0.95 for the others */
  readonly beta2?: number | undefined;
  /** @default 0.95 for muon, 0.9 for sgd */
  readonly momentum?: number | undefined;
  readonly adjustLr: AdjustLr;
  /** @default no averages of weights are kept */
  readonly emaDecay?: number | undefined;
  /** @default 0 */
  readonly emaStart?: number | undefined;
}

/** An optimizer of a run. */
interface OptimizerEntry {
  /** Names of transformers' `optim` for it. */
  readonly aliases: readonly string[];
  /** Factor on the run's default learning rate, which suits AdamW. */
  readonly lrMultiplier: number;
  /** Settings that it reads besides the first beta and the rate. */
  readonly reads: readonly ("beta2" | "momentum")[];
  make(groups: readonly NamedGroup[], settings: NamedSettings): Optimizer;
}

const plain = (groups: readonly NamedGroup[]): Omit<NamedGroup, "isHidden">[] =>
  groups.map(({ isHidden: _, ...group }) => group);

/** Options that all optimizers have. */
const sharedOf = (
  { schedule, emaDecay, emaStart }: NamedSettings,
): Pick<NamedSettings, "schedule" | "emaDecay" | "emaStart"> => ({
  schedule,
  ...emaDecay === undefined ? {} : { emaDecay },
  ...emaStart === undefined ? {} : { emaStart },
});

const betasOf = ({ beta1, beta2 }: NamedSettings, usual: number): readonly [number, number] => [beta1, beta2 ?? usual];

/** Names of optimizers. */
export const OPTIMIZER_NAMES = ["adamw", "adamw8bit", "lion", "muon", "adafactor", "sgd"] as const;
/** Name of an optimizer. */
export type OptimizerName = typeof OPTIMIZER_NAMES[number];

/** The optimizers. */
export const OPTIMIZERS: Readonly<Record<OptimizerName, OptimizerEntry>> = {
  adamw: {
    aliases: ["adamw_torch", "adamw_torch_fused"],
    lrMultiplier: 1,
    reads: ["beta2"],
    make: (groups, settings) => new AdamW(plain(groups), { ...sharedOf(settings), betas: betasOf(settings, 0.95) }),
  },
  adamw8bit: {
    aliases: ["adamw_8bit", "adamw_bnb_8bit"],
    lrMultiplier: 1,
    reads: ["beta2"],
    make: (groups, settings) => new AdamW8bit(plain(groups), { ...sharedOf(settings), betas: betasOf(settings, 0.95) }),
  },
  lion: {
    aliases: ["lion_32bit"],
    lrMultiplier: 0.1,
    reads: ["beta2"],
    make: (groups, settings) => new Lion(plain(groups), { ...sharedOf(settings), betas: betasOf(settings, 0.99) }),
  },
  muon: {
    aliases: [],
    lrMultiplier: 1,
    reads: ["beta2", "momentum"],
    make: (groups, { momentum = 0.95, ...settings }) =>
      new Muon(groups.map(({ isHidden: useMuon, ...group }) => ({ ...group, useMuon })), {
        ...sharedOf(settings),
        ...{ betas: betasOf(settings, 0.95), momentum, adjustLr: settings.adjustLr },
      }),
  },
  adafactor: {
    aliases: [],
    lrMultiplier: 5,
    reads: [],
    make: (groups, settings) => new Adafactor(plain(groups), sharedOf(settings)),
  },
  sgd: {
    aliases: [],
    lrMultiplier: 1,
    reads: ["momentum"],
    make: (groups, { momentum = 0.9, ...settings }) => new SGD(plain(groups), { ...sharedOf(settings), momentum }),
  },
};

/** All names that a run takes: the optimizers', then transformers'. */
export const ALL_OPTIMIZER_NAMES: readonly string[] = [
  ...OPTIMIZER_NAMES,
  ...OPTIMIZER_NAMES.flatMap((name) => OPTIMIZERS[name].aliases),
];

/**
 * The optimizer with a name, or with a name of transformers.
 *
 * @throws {ArgumentError} if there is none
 */
export function optimizerNamed(name: string): OptimizerEntry {
  const found = OPTIMIZER_NAMES.find((one) => one === name || OPTIMIZERS[one].aliases.includes(name));
  if (found !== undefined) return OPTIMIZERS[found];
  throw new ArgumentError(`There is no optimizer '${name}': expected ${ALL_OPTIMIZER_NAMES.join(", ")}`);
}
