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

/** Opens a window between processes. Collective; if any rank fails, none keeps anything. */
export function openShmWindow(
  control: ControlPlane,
  files: RunFiles,
  pages: DevicePages,
  byteLengths: readonly number[],
  unit: string,
): Window {
  const { rank, size } = control;
  const { device, posix: { provider, libc: { symbols: { memcpy } } } } = pages;
  const { address, pointer, begins, words, kept } = shareParts(control, files, pages, byteLengths, unit);
  // The epoch that a rank has published, and one more than the epoch that it has finished gathering.
  const published = new Counters(control, words, PUBLISHED);
  const gathered = new Counters(control, words, GATHERED);
  let epoch = 0;
  return {
    pointer,
    beginWrite(): void {
      gathered.raise(epoch + 1);
      gathered.waitAll(epoch + 1, "finishing its gathers before the write");
    },
    endWrite: () => published.raise(++epoch),
    gather(dst, offsets): Work {
      // Starting with its own part, each rank reads in another order: no two wait for the same memory.
      for (let i = 0; i < size; i++) {
        const peer = (rank + i) % size;
        const byteLength = at(byteLengths, peer, "part of rank");
        const place = devicePtr(dst + at(offsets, peer, "offset of rank"));
        if (peer !== rank) published.wait(peer, epoch, "publishing what it wrote");
        if (peer === rank) device.copy(place, pointer, byteLength);
        else if (byteLength > 0) {
          memcpy(pages.native(place), provider.offset(address, at(begins, peer, "part of rank")), byteLength);
        }
      }
      return FINISHED;
    },
    dispose: () => kept.dispose(),
  };
}

/** Makes the segment: the head, then each rank's part in whole pages. */
function shareParts(
  control: ControlPlane,
  files: RunFiles,
  pages: DevicePages,
  byteLengths: readonly number[],
  unit: string,
): { address: NativeAddress; pointer: DevicePtr; begins: number[]; words: Int32Array[]; kept: DisposableStack } {
  const { posix } = pages;
  const headBytes = pages.roundUp(byteLengths.length * RANK_WORDS * 4);
  const begins: number[] = [];
  let end = headBytes;
  for (const bytes of byteLengths) {
    begins.push(end);
    end += pages.roundUp(bytes);
  }
  const begin = at(begins, control.rank, "part of rank");
  const ownBytes = pages.roundUp(at(byteLengths, control.rank, "part of rank"));
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
  const words = begins.map((_, rank) => new Int32Array(head, rank * RANK_WORDS * 4, RANK_WORDS));
  return { ...value, begins, words, kept };
}
