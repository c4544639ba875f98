/**
 * Calls of a group that are captured as a graph of the device. Work that is launched again announces nothing itself, so each launch
 * is announced as one call, with a hash of the captured ones.
 *
 * @module
 */
import { hashNumbers, hashText } from "./call.ts";
import type { ProcessGroup } from "./process_group.ts";

/**
 * Calls `work`, which is being captured, and hashes the calls that it makes in the group and in groups split from it. Each later
 * `replay` announces them as one call.
 *
 * @param unit name of the captured work, e.g. `training step`
 */
export function captureCalls<T>(
  group: ProcessGroup,
  unit: string,
  work: () => T,
): { readonly value: T; readonly replay: () => void } {
  const words: number[] = [];
  let count = 0;
  const end = group.observe(({ kind, unit, dtype, count: length }) => {
    words.push(hashText(`${kind} ${unit}`), length, dtype === undefined ? -1 : dtype.code);
    count++;
  });
  try {
    const value = work();
    const detail = hashNumbers(words);
    const replay = (): void => group.announce({ kind: "replay", unit, count, detail })?.[Symbol.dispose]();
    return { value, replay };
  } finally {
    end();
  }
}
