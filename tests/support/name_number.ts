/** A number that follows from a name alone. @module */

/** The number of a name (FNV-1a), so that an added test moves no other test to the other runtime. */
export function numberOf(name: string): number {
  let hash = 0x811c9dc5;
  for (const unit of new TextEncoder().encode(name)) hash = Math.imul(hash ^ unit, 0x01000193) >>> 0;
  // The lowest bit of FNV-1a is only a parity of the bytes' lowest bits.
  return hash >>> 16;
}
