/**
 * A window in one shared file: this rank's part is mapped into its device memory, and all parts are mapped natively. Peers read
 * a part in place, so epochs order writes and gathers; see Note [Order by epochs] in `data_plane.ts`. The epochs lie at the
 * beginning of the shared file, so windows share nothing with each other.
 *
 * @module
 */
import { at } from "../../at.ts";
import { devicePtr, PAST_CACHES_BYTES } from "../../device/device.ts";
import type { ControlPlane } from "../control_plane.ts";
import { Counters } from "../control/counters.ts";
import type { RunFiles } from "../control/run_files.ts";
import { reserve, shareFile } from "../control/shared_files.ts";
import { FINISHED, type Window, type Work } from "../data_plane.ts";
import type { DevicePages } from "./device_pages.ts";

// Words of a rank; each counter has a cache line.
const PUBLISHED = 0;
const GATHERED = 16;
const RANK_WORDS = 32;

/** Opens a window between processes. Collective; if any rank fails, no rank keeps anything. */
export function openShmWindow(
  control: ControlPlane,
  files: RunFiles,
  pages: DevicePages,
  byteLengths: readonly number[],
  unit: string,
): Window {
  const { rank, size } = control;
  const { device, posix: { provider, libc: { symbols: { memcpy } } } } = pages;
  const gatheredBytes = byteLengths.reduce((sum, bytes) => sum + bytes, 0);
  const nonTemporal = gatheredBytes < PAST_CACHES_BYTES ? undefined : device.traits.nonTemporal;
  // Offsets of the epochs, then of each rank's part, in whole pages.
  const headBytes = pages.roundUp(size * RANK_WORDS * 4);
  const begins: number[] = [];
  let mappedBytes = headBytes;
  for (const bytes of byteLengths) {
    begins.push(mappedBytes);
    mappedBytes += pages.roundUp(bytes);
  }
  const request = { byteLength: headBytes, mappedBytes, owner: `window '${unit}'`, leader: 0 };
  const { value: { address, pointer }, kept } = shareFile(control, files, request, (descriptor, address, stack) => {
    const begin = at(begins, rank, "part of rank");
    const ownBytes = pages.roundUp(at(byteLengths, rank, "part of rank"));
    // Each rank reserves its own part, so that the part's pages are near it.
    if (ownBytes > 0) reserve(files, descriptor, ownBytes, request.owner, begin);
    const block = { owner: request.owner, kind: "parameters" } as const;
    return { address, pointer: pages.mapIn(descriptor, ownBytes, block, begin, stack) };
  });
  const head = provider.viewOf(address, headBytes);
  const words = begins.map((_, peer) => new Int32Array(head, peer * RANK_WORDS * 4, RANK_WORDS));
  // PUBLISHED: epoch that a rank has published. GATHERED: epoch that it has finished gathering, plus 1.
  const published = new Counters(control, words, PUBLISHED);
  const gathered = new Counters(control, words, GATHERED);
  let epoch = 0;
  return {
    pointer,
    beginWrite(): void {
      gathered.raise(epoch + 1);
      gathered.waitAll(epoch + 1, "its last gather before the write");
    },
    endWrite: () => published.raise(++epoch),
    gather(dst, offsets): Work {
      // Each rank begins with its own part, so ranks read different parts at a time.
      for (let i = 0; i < size; i++) {
        const peer = (rank + i) % size;
        const byteLength = at(byteLengths, peer, "part of rank");
        const place = devicePtr(dst + at(offsets, peer, "offset of rank"));
        if (peer !== rank) published.wait(peer, epoch, "its publication of what it wrote");
        const part = provider.offset(address, at(begins, peer, "part of rank"));
        if (nonTemporal !== undefined) nonTemporal.copy(place, provider.numberOf(part), byteLength);
        else if (peer === rank) device.copy(place, pointer, byteLength);
        else if (byteLength > 0) memcpy(pages.native(place), part, byteLength);
      }
      return FINISHED;
    },
    dispose: () => kept.dispose(),
  };
}
