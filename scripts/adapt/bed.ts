/**
 * What the items of `npm run adapt` share: a folder with inputs, and the peer that they are compared with.
 *
 * @module
 */
import type { Inputs } from "./inputs.ts";
import type { Peer } from "./peer.ts";
import type { Recorded } from "./recorded.ts";

/** The inputs, the peer, and what the peer gave when it was last recorded. */
export interface Bed {
  /** Folder for what items write. */
  readonly folder: string;
  readonly inputs: Inputs;
  /** TRL, transformers and PEFT, where a Python has them. */
  readonly peer: Peer | undefined;
  readonly recorded: Recorded;
}

/** Does something once for a bed, whichever of its items comes first. */
export function oncePerBed<T>(make: (bed: Bed) => Promise<T>): (bed: Bed) => Promise<T> {
  const made = new WeakMap<Bed, Promise<T>>();
  return (bed) => {
    const found = made.get(bed) ?? make(bed);
    made.set(bed, found);
    return found;
  };
}
