/**
 * A window of which all parts lie in one segment: this rank's part in its device memory, and all of them natively besides.
 * Peers read a part where it lies, so epochs order writes and gathers; see Note [Order by epochs] in `data_plane.ts`. They
 * lie in the segment's head: a window shares nothing with any other.
 *
 * @module
 */
import type { NativeAddress } from "../../../ffi/types.ts";
import { at } from "../../at.ts";
import { type DevicePtr, devicePtr } from "../../device/device.ts";
import type { ControlPlane } from "../control_plane.ts";
import { Counters } from "../control/counters.ts";
import type { RunFiles } from "../control/run_files.ts";
import { reserve, shareSegment } from "../control/segments.ts";
import { FINISHED, type Window, type Work } from "../data_plane.ts";
import type { DevicePages } from "./device_pages.ts";

// Words of a rank in the head: each counter has a cache line.
const PUBLISHED = 0;
const GATHERED = 16;
const RANK_WORDS = 32;

/** Where a window lies. */
interface Segment {
  /** All of it, mapped natively. */
  readonly address: NativeAddress;
  /** Where each rank's part begins, in bytes. */
  readonly begins: readonly number[];
  readonly byteLengths: readonly number[];
  /** This rank's part in device memory. */
  readonly pointer: DevicePtr;
  /** Unmaps it. */
  readonly kept: DisposableStack;
}

/** Opens a window between processes. Collective; if any rank fails, none keeps anything. */
export function openShmWindow(
  control: ControlPlane,
  files: RunFiles,
  pages: DevicePages,
  byteLengths: readonly number[],
  unit: string,
): Window {
  const { rank, size } = control;
  const { posix } = pages;
  const headBytes = pages.roundUp(size * RANK_WORDS * 4);
  const begins: number[] = [];
  let end = headBytes;
  for (const bytes of byteLengths) {
    begins.push(end);
    end += pages.roundUp(bytes);
  }
  const [begin, ownBytes] = [at(begins, rank, "part of rank"), pages.roundUp(at(byteLengths, rank, "part of rank"))];
  const request = { byteLength: headBytes, owner: `window '${unit}'`, leader: 0 };
  const block = { owner: request.owner, kind: "parameters" } as const;
  const { value, kept } = shareSegment(control, files, request, (descriptor, stack) => {
    // Each rank reserves its own part, so that its pages are near it.
    if (ownBytes > 0) reserve(files, descriptor, ownBytes, request.owner, begin);
    const address = posix.mapShared(descriptor, end);
    stack.defer(() => posix.unmap(address, end));
    return { address, pointer: pages.mapIn(descriptor, ownBytes, block, begin, stack) };
  });
  const head = posix.provider.viewOf(value.address, headBytes);
  const words = byteLengths.map((_, r) => new Int32Array(head, r * RANK_WORDS * 4, RANK_WORDS));
  return new ShmWindow(control, pages, { ...value, begins, byteLengths, kept }, words);
}

class ShmWindow implements Window {
  readonly #control: ControlPlane;
  readonly #pages: DevicePages;
  readonly #segment: Segment;
  /** The epoch that a rank has published. */
  readonly #published: Counters;
  /** One more than the epoch that a rank has finished gathering. */
  readonly #gathered: Counters;
  #epoch = 0;

  constructor(control: ControlPlane, pages: DevicePages, segment: Segment, words: readonly Int32Array[]) {
    this.#control = control;
    this.#pages = pages;
    this.#segment = segment;
    this.#published = new Counters(control, words, PUBLISHED);
    this.#gathered = new Counters(control, words, GATHERED);
  }

  get pointer(): DevicePtr {
    return this.#segment.pointer;
  }

  beginWrite(): void {
    this.#gathered.raise(this.#epoch + 1);
    this.#gathered.waitAll(this.#epoch + 1, "finishing its gathers before the write");
  }

  endWrite(): void {
    this.#epoch++;
    this.#published.raise(this.#epoch);
  }

  gather(dst: DevicePtr, offsets: readonly number[]): Work {
    const { rank, size } = this.#control;
    const { posix: { provider, libc: { symbols: { memcpy } } }, device } = this.#pages;
    const { address, begins, byteLengths, pointer } = this.#segment;
    // Starting with its own part, each rank reads in another order: no two wait for the same memory.
    for (let i = 0; i < size; i++) {
      const peer = (rank + i) % size;
      const byteLength = at(byteLengths, peer, "part of rank");
      const place = devicePtr(dst + at(offsets, peer, "offset of rank"));
      if (peer !== rank) this.#published.wait(peer, this.#epoch, "publishing what it wrote");
      if (peer === rank) device.copy(place, pointer, byteLength);
      else if (byteLength > 0) {
        memcpy(this.#pages.native(place), provider.offset(address, at(begins, peer, "part of rank")), byteLength);
      }
    }
    return FINISHED;
  }

  dispose(): void {
    this.#segment.kept.dispose();
  }
}
