/**
 * A window whose gathers and writes are numbered, announced and compared like all calls. Each call gives the present name of
 * the unit, and a call in a wrong order is refused.
 *
 * @module
 */
import type { BlockSource } from "../device/buffer.ts";
import type { DevicePtr } from "../device/device.ts";
import { ArgumentError, UseAfterDisposeError } from "../errors.ts";
import type { Call, Phase } from "./call.ts";
import { checkPerRank } from "./checks.ts";
import type { GatherMemory, Window, Work } from "./data_plane.ts";

/** Announces a call; disposing the result says that the call has ended. */
type Announce = (call: Pick<Call, "kind" | "unit" | "phase">, dst?: DevicePtr) => Disposable | undefined;

/** Memory of a unit, whose registrations are announced as calls. */
export function announcedMemory(
  memory: GatherMemory,
  announce: (call: Pick<Call, "kind" | "unit" | "count">) => Disposable | undefined,
): BlockSource {
  return {
    allocate: (count, owner, kind) => {
      if (!memory.grows(count)) return memory.allocate(count, owner, kind);
      using _call = announce({ kind: "open window", unit: owner, count });
      return memory.allocate(count, owner, kind);
    },
    free: (ptr) => memory.free(ptr),
  };
}

/** Memory in parts, one for each rank: a rank writes its own part, and gathers the parts of all. Made by `ProcessGroup.openWindow`. */
export type GatherWindow = Pick<AnnouncedWindow, keyof AnnouncedWindow>;

/**
 * The one class of {@link GatherWindow}.
 *
 * @internal
 */
export class AnnouncedWindow {
  /** Bytes of each rank's part, by rank. */
  readonly byteLengths: readonly number[];
  readonly #window: Window;
  readonly #announce: Announce;
  #state: "readable" | "being written" | "disposed" = "readable";

  constructor(window: Window, byteLengths: readonly number[], announce: Announce) {
    this.byteLengths = byteLengths;
    this.#window = window;
    this.#announce = announce;
  }

  /** This rank's part, in device memory; written only between {@link beginWrite} and {@link endWrite}. */
  get pointer(): DevicePtr {
    return this.#window.pointer;
  }

  /** Waits until no peer reads this rank's part. Collective. @param unit present name of the unit */
  beginWrite(unit: string, phase: Phase = "update"): void {
    this.#expect("readable", "begin writing", unit);
    using _call = this.#announce({ kind: "write", unit, phase });
    this.#window.beginWrite();
    this.#state = "being written";
  }

  /** Publishes this rank's part. */
  endWrite(): void {
    this.#expect("being written", "end writing");
    this.#window.endWrite();
    this.#state = "readable";
  }

  /** Copies every rank's part, as last published, to `dst`, rank r's to byte `offsets[r]`. Collective. */
  gather(dst: DevicePtr, offsets: readonly number[], unit: string, phase: Phase): Work {
    this.#expect("readable", "gather", unit);
    checkPerRank(offsets, this.byteLengths.length, `Offsets of '${unit}'`);
    using _call = this.#announce({ kind: "gather", unit, phase }, dst);
    return this.#window.gather(dst, offsets);
  }

  /** Frees the window. Ranks may call it in any order. */
  dispose(): void {
    if (this.#state === "disposed") return;
    this.#state = "disposed";
    this.#window.dispose();
  }

  #expect(state: "readable" | "being written", what: string, unit?: string): void {
    if (this.#state === state) return;
    const window = unit === undefined ? "a window" : `window '${unit}'`;
    if (this.#state === "disposed") throw new UseAfterDisposeError(`Cannot ${what} ${window} as it was disposed`);
    throw new ArgumentError(`Cannot ${what} ${window} as it is ${this.#state}, not ${state}`);
  }
}
