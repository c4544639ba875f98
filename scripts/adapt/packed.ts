/**
 * Chats that share rows have the loss and the gradients of chats in rows of their own.
 *
 * @module
 */
import type { Bed } from "./bed.ts";
import { NUM_CHATS } from "./inputs.ts";
import { type AdaptItem, type Outcome, verdict } from "./item.ts";
import { metricsOf, train } from "./own.ts";

/** What a loss or a norm may be off by, as a part of it. */
const SHARE = 1e-6;

async function compare({ inputs, folder }: Bed): Promise<Outcome> {
  // All chats are one step, so that both runs sum the same losses; packed, they take fewer rows.
  const found = async (
    name: string,
    rows: number,
    ...flags: readonly string[]
  ): Promise<{ said: string; loss: number; norm: number; held: number }> => {
    const out = `${folder}/packed-${name}`;
    const { said } = await train(
      out,
      1,
      ...[
        "--model",
        inputs.base,
        "--data",
        inputs.chats,
        "--eval-data",
        inputs.held,
        "--steps",
        "1",
        "--learning-rate",
        "0",
      ],
      ...["--global-batch", String(rows), ...flags],
    );
    const [step] = metricsOf(out);
    return { said, loss: step?.loss ?? NaN, norm: step?.grad_norm ?? NaN, held: step?.eval_loss ?? NaN };
  };
  const apart = await found("apart", NUM_CHATS);
  const planned = await found("planned", 1, "--packing", "bfd");
  const rows = Number(/in (\d+) rows/.exec(planned.said)?.[1] ?? NaN);
  const together = await found("together", rows, "--packing", "bfd");
  const off = (a: number, b: number): number => Math.abs(a - b) / Math.abs(a);
  const figures = {
    rows_apart: NUM_CHATS,
    losses: [apart.loss, together.loss],
    grad_norms: [apart.norm, together.norm],
    rows_packed: rows,
    loss_off: off(apart.loss, together.loss),
    grad_norm_off: off(apart.norm, together.norm),
    eval_loss_off: off(apart.held, together.held),
  };
  const { loss_off, grad_norm_off, eval_loss_off } = figures;
  const wrong = Object.entries({ loss_off, grad_norm_off, eval_loss_off }).filter(([, value]) => !(value <= SHARE)).map(
    ([name, value]) => `${name}: expected at most ${SHARE}, got ${value}`,
  );
  if (!(rows < NUM_CHATS)) wrong.push(`expected fewer rows than ${NUM_CHATS}, got ${rows}`);
  return verdict(wrong, figures);
}

/** One item. */
export const PACKED: readonly AdaptItem[] = [
  { name: "packed chats have the loss and gradient norm of chats apart, to 1e-6", run: compare },
];
