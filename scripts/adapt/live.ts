/**
 * References of optimizers and of quantized weights, asked again: the numbers that the tests of `shown.ts` compare with are what torch,
 * bitsandbytes and lion-pytorch give today.
 *
 * @module
 */
import { mkdtempSync } from "node:fs";
import { type Bed, oncePerBed } from "./bed.ts";
import { type AdaptItem, type Outcome, verdict } from "./item.ts";
import type { LiveNumbers } from "./peer.ts";

/** Names of the subjects in the peer's answer, the packages that give them, and what may differ, as a part of the largest number. */
const SUBJECTS = [
  { subject: "muon", name: "Muon by torch.optim", share: 1e-3 }, // Newton-Schulz steps in bfloat16
  { subject: "adafactor", name: "Adafactor by torch.optim", share: 1e-6 },
  { subject: "lion", name: "Lion by bitsandbytes", share: 1e-6 },
  { subject: "lion_pytorch", name: "Lion by lion-pytorch", share: 1e-6 },
  { subject: "adamw8bit", name: "AdamW with 8-bit states by bitsandbytes", share: 1e-6 },
  { subject: "nf4", name: "NF4 by bitsandbytes", share: 0 },
  { subject: "nf4_products", name: "products with NF4 by torch", share: 1e-6 },
] as const;

const live = oncePerBed(async ({ peer, folder }: Bed): Promise<LiveNumbers> => {
  if (peer === undefined) throw new Error("there is no peer");
  return await peer.live(mkdtempSync(`${folder}/live-`));
});

async function compare(bed: Bed, { subject, share }: typeof SUBJECTS[number]): Promise<Outcome> {
  const { lacks, found } = await live(bed);
  const off = found[subject];
  if (off === undefined) {
    return { pass: null, figures: {}, reason: `not run: PEER_PYTHON has no ${lacks.join(" and no ")}` };
  }
  const wrong = off <= share ? [] : [`expected at most ${share} of the largest number, got ${off}`];
  return verdict(wrong, { largest_share: off });
}

/** An item for each reference. */
export const LIVE: readonly AdaptItem[] = SUBJECTS.map((one) => ({
  name: `${one.name}, asked now, gives what its fixture has`,
  needsPeer: true,
  run: (bed) => compare(bed, one),
}));
