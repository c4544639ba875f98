/**
 * The control plane of the ranks of one host in a world of several hosts: they read each other's counters and bytes in shared memory,
 * while calls, deaths and aborts are those of the whole group.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { NativeAddress } from "../../ffi/types.ts";
import type { CollectiveError } from "../../errors.ts";
import type { BlockMemory } from "../control/block_memory.ts";
import type { RunFiles } from "../control/run_files.ts";
import { BLOCK_BYTES } from "../control/shared.ts";
import { shareFile } from "../control/shared_files.ts";
import { nativeBlocks, ShmControlPlane } from "../control/shm.ts";
import type { HostsControlPlane } from "./plane.ts";

/** Messages between hosts, which move on only when they are tested. */
export interface Messages {
  /** Time in milliseconds for which a rank looks at its host's memory before it looks at the group; 0 if it looks once. */
  readonly lookMs: number;
  progress(): void;
}

/** Ranks of a group that share a host's memory. */
export class NearControlPlane extends ShmControlPlane {
  readonly #group: HostsControlPlane;
  /** The same ranks, who meet at the store. */
  readonly #apart: HostsControlPlane;
  readonly #messages: Messages;
  /** These ranks, as the group numbers them. */
  readonly #members: readonly number[];

  /**
   * Makes the plane. Collective over `group`, each host for its part.
   *
   * @param ranks those of this host, as `group` numbers them
   * @param messages of the group: a rank that waits for its host lets them move on, as the ranks of its host may wait for them
   */
  constructor(group: HostsControlPlane, files: RunFiles, ranks: readonly number[], messages: Messages) {
    const apart = group.split(ranks, `${group.name}, ranks of a host`);
    const { name, rank, worldRanks, size } = apart;
    const request = { byteLength: size * BLOCK_BYTES, owner: `the ranks of a host`, leader: 0 };
    const open = (_: number, address: NativeAddress): BlockMemory => nativeBlocks(files.posix, address, size);
    const { value } = shareFile(apart, files, request, open);
    super(files, { name, rank, worldRanks }, value, group.hostWorld(), group.timeoutSeconds);
    this.#group = group;
    this.#apart = apart;
    this.#messages = messages;
    this.#members = ranks;
  }

  /** A wait of the group, which hears of deaths, aborts and other calls: it looks at this host's memory in between. */
  override wait(ready: () => boolean, stage: string, awaited?: number | readonly number[]): void {
    if (ready()) return;
    const peers = awaited === undefined ? this.#members.keys() : typeof awaited === "number" ? [awaited] : awaited;
    const ranks = [...peers].filter((peer) => peer !== this.rank).map((peer) => at(this.#members, peer, "rank"));
    const looks = (): boolean => {
      const end = performance.now() + this.#messages.lookMs;
      do {
        if (ready()) return true;
        this.#messages.progress();
      } while (performance.now() < end);
      return ready();
    };
    this.#group.wait(looks, stage, ranks);
  }

  override failure(detail: string, stoppedBy?: number): CollectiveError {
    return this.#group.failure(detail, stoppedBy);
  }

  override stop(detail: string, stoppedBy?: number): never {
    return this.#group.stop(detail, stoppedBy);
  }

  override abort(reason: string): void {
    this.#group.abort(reason);
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  override dispose(): void {
    super.dispose();
    this.#apart.dispose();
  }
}
