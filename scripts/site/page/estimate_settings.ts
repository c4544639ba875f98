/**
 * Choices of a visitor on the page of settings, as arguments of `fullyshard estimate` and of a training.
 *
 * @module
 */
import { kebabCase } from "../../../src/config/schema.ts";

/** Choices of a visitor. */
export interface Choices {
  readonly ranks: number;
  readonly device: "cpu" | "cuda";
  readonly precision: "float32" | "bfloat16" | "float16";
  /** Tokens of a sample. */
  readonly seq: number;
  /** Samples of a micro-batch on each rank. */
  readonly batch: number;
  /** GiB of a rank. */
  readonly memory: number;
}

/** Values by the names of keys. */
export type Keys = Readonly<Record<string, string | number | boolean>>;

/** Settings that are compared. */
export interface Candidate {
  readonly name: string;
  /** Keys of the command and of a training. */
  readonly keys: Keys;
  /** True if a rank alone cannot have them. */
  readonly needsRanks?: boolean;
  /** True if they are for cards alone. */
  readonly needsCard?: boolean;
}

const small: Keys = { fsdpPlan: "auto", activationCheckpointing: "full" };

/** From those that cost least time to those that need least memory. */
export const CANDIDATES: readonly Candidate[] = [
  { name: "Replicate the model (DDP)", keys: { strategy: "ddp" } },
  {
    name: "Shard; keep parameters between forward and backward",
    keys: { reshardAfterForward: false },
    needsRanks: true,
  },
  { name: "Shard (FSDP)", keys: {}, needsRanks: true },
  { name: "Shard; embedding and head by themselves", keys: { fsdpPlan: "auto" }, needsRanks: true },
  { name: "The same, and compute activations again in the backward", keys: small },
  { name: "The same, and AdamW’s states in 8 bits", keys: { ...small, optimizer: "adamw8bit" } },
  { name: "Shards and AdamW in the host’s memory", keys: { ...small, cpuOffload: true }, needsCard: true },
  { name: "An adapter alone is trained (LoRA of rank 16)", keys: { ...small, loraR: 16 } },
];

/** The candidates for a choice. */
export function candidatesFor({ ranks, device }: Pick<Choices, "ranks" | "device">): readonly Candidate[] {
  return CANDIDATES.filter(({ needsRanks = false, needsCard = false }) =>
    (ranks > 1 || !needsRanks) && (device === "cuda" || !needsCard)
  );
}

/** Keys of `fullyshard estimate` for a candidate. @param model path of the configuration */
export function keysOf(choices: Choices, { keys }: Candidate, model: string): Keys {
  const { ranks: nproc, device, precision, seq, batch } = choices;
  // By the strict kernels, the same on every machine, so that the figures are those of the page.
  const place: Keys = device === "cuda" ? { device } : { cpuMath: "wasm" };
  return { model, nproc, seq, batch, precision, ...place, ...keys };
}

/** The same as a shell takes them. */
export function flagsOf(keys: Keys): readonly string[] {
  return Object.entries(keys).flatMap(([key, value]) => {
    const flag = kebabCase(key);
    return typeof value === "boolean" ? [`--${value ? "" : "no-"}${flag}`] : [`--${flag}`, String(value)];
  });
}
