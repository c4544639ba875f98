/**
 * Explains a flight record to people: why ranks stopped, what each was in, and which ranks had not come there.
 *
 * @module
 */
import * as z from "zod";
import { FileError } from "../errors.ts";
import { readTextSync } from "../runtime/files.ts";
import { countOf } from "../words.ts";

const callSchema = z.object({
  sequence: z.int(),
  kind: z.string(),
  unit: z.string(),
  phase: z.string().nullable(),
  step: z.int(),
  bytes: z.number(),
});

const recordSchema = z.object({
  reason: z.string(),
  group: z.string(),
  ranks: z.array(z.object({
    rank: z.int(),
    state: z.enum(["waiting", "running", "left", "dead"]),
    calls: z.array(callSchema),
  })),
});

/** Lines about a file. @throws {FileError} if it is no flight record */
export function flightLines(file: string): readonly string[] {
  const { reason, group, ranks } = recordFrom(file);
  const newest = Math.max(0, ...ranks.map(({ calls }) => calls.at(-1)?.sequence ?? 0));
  return [
    `Group '${group}' stopped: ${reason}`,
    ...ranks.map(({ rank, state, calls }) => {
      const call = calls.at(-1);
      if (call === undefined) return `  rank ${rank}: ${state}, with no call yet`;
      const behind = newest - call.sequence;
      const late = behind === 0 ? "" : `, ${countOf(behind, "call")} behind`;
      return `  rank ${rank}: ${state === "waiting" ? "waits in" : `${state}, was last in`} ${wordsOf(call)}${late}`;
    }),
  ];
}

function wordsOf({ sequence, kind, unit, phase, step, bytes }: z.infer<typeof callSchema>): string {
  const facts = [...phase === null ? [] : [phase], `step ${step}`, countOf(bytes, "byte")];
  return `call ${sequence}, ${kind} '${unit}' (${facts.join(", ")})`;
}

function recordFrom(file: string): z.infer<typeof recordSchema> {
  try {
    return recordSchema.parse(JSON.parse(readTextSync(file)));
  } catch (cause) {
    if (cause instanceof FileError) throw cause;
    const detail = "it is no flight record; of a trace, name the folder that the ranks traced into";
    throw new FileError(file, "read", detail, undefined, { cause });
  }
}
