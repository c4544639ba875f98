/**
 * Joining of the ranks of several hosts. Rank 0 serves a store at MASTER_ADDR:MASTER_PORT. Every rank, rank 0 too, opens a
 * stream to it and proves that it knows the run's token. Every wait has an end, at which the missing ranks are named.
 *
 * @module
 */
import { ArgumentError, RendezvousError } from "../../errors.ts";
import { openSockets, type Sockets } from "../../ffi/sockets.ts";
import { type BackgroundWorker, startBackgroundWorker } from "../../runtime/background_worker.ts";
import { equalCodes, hmacSha256 } from "../../runtime/checksum.ts";
import { sleep } from "../../runtime/clock.ts";
import { shownName } from "../../words.ts";
import { checkRank } from "../checks.ts";
import { type ControlOptions, placeInWorld } from "../control_plane.ts";
import { attempt } from "../together.ts";
import { codePieces, type Frame, NUMBER_BYTES, STRANGER_BYTES, VERSION } from "./frames.ts";
import { StoreLink } from "./link.ts";
import { HostsControlPlane } from "./plane.ts";
import type { StoreOptions } from "./store.ts";

/** Largest number of ranks of a run. */
export const MAX_RANKS = 16_384;
/** Pause between two attempts to reach the store. */
const RETRY_MS = 50;
const LOOK_MS = 2;
/** Number of checks before a wait sleeps; the stream is not read between them. */
const SPINS = 40;

/** Options of a process that joins the ranks of several hosts. */
export interface HostsJoinOptions extends ControlOptions {
  /** This rank, from 0. */
  readonly rank: number;
  /** Number of ranks. */
  readonly worldSize: number;
  /** Ranks on each host; their numbers are consecutive. */
  readonly localWorldSize: number;
  /** Host of rank 0, by a name or address that all hosts can reach. */
  readonly address: string;
  /** Port there. */
  readonly port: number;
  /** Secret of the run's ranks. */
  readonly token: string;
  /** Seconds to wait for a rank that has not started; default 60. */
  readonly joinTimeoutSeconds?: number | undefined;
  /** Descriptor of rank 0's listener at that port, which this call owns. @default one is opened */
  readonly listener?: number | undefined;
}

/** Meeting point of the ranks of several hosts. */
export type HostsPlace = Pick<HostsJoinOptions, "address" | "port" | "token" | "localWorldSize">;

/**
 * Joins the other ranks, on this host and others.
 *
 * @throws {RendezvousError} if the port is taken, a rank does not start in time, is started twice, does not know the token,
 * or disagrees about the world's size
 */
export async function joinHosts(options: HostsJoinOptions): Promise<HostsControlPlane> {
  const { rank, worldSize, address, port } = options;
  if (!Number.isInteger(worldSize) || worldSize < 1 || worldSize > MAX_RANKS) {
    throw new ArgumentError(`A store joins 1 to ${MAX_RANKS} ranks, got ${worldSize}`);
  }
  checkRank(rank, worldSize, "This process");
  const sockets = await openSockets();
  const store = rank === 0 ? startStore(sockets, options) : undefined;
  const joining = new HostsJoin(sockets, options, store);
  try {
    return await joining.join();
  } catch (error) {
    joining.giveUp(error);
    throw error instanceof RendezvousError ? error : new RendezvousError(
      `Rank ${rank} cannot join at ${address}:${port}: ${error instanceof Error ? error.message : String(error)}`,
    );
  }
}

/**
 * Joins in the place of a rank that has ended, and aborts: ranks that wait for it fail with the reason. Without effect if
 * that rank had joined.
 *
 * @param over ends the attempt where no store answers
 */
export async function giveUpHosts(options: HostsJoinOptions, reason: string, over: AbortSignal): Promise<void> {
  const sockets = await openSockets();
  try {
    const store = options.rank === 0 ? startStore(sockets, options) : undefined;
    await new HostsJoin(sockets, { ...options, joinTimeoutSeconds: Infinity }, store).standIn(reason, over);
  } catch (error) {
    // The rank had joined, or its store lives on: no rank waits for it to join.
    if (!(error instanceof RendezvousError)) throw error;
  }
}

function startStore(sockets: Sockets, options: HostsJoinOptions): BackgroundWorker {
  const { address, port, worldSize, token, listener = sockets.listen(address, port) } = options;
  if (listener === undefined) {
    throw new RendezvousError(
      `Rank 0 cannot serve the store at port ${port}, which another process of this host has. Give the ranks of all hosts ` +
        "another MASTER_PORT, or '--master-port' to each launcher; 'ss -ltnp' tells whose it is",
    );
  }
  const data: StoreOptions = { listener, worldSize, token };
  return startBackgroundWorker(new URL("./store_worker.ts", import.meta.url), data);
}

class HostsJoin {
  readonly #sockets: Sockets;
  readonly #options: HostsJoinOptions;
  readonly #store: BackgroundWorker | undefined;
  readonly #place: string;
  readonly #seconds: number;
  #deadline: number;
  readonly #number: Uint8Array = crypto.getRandomValues(new Uint8Array(NUMBER_BYTES));
  #challenge: Uint8Array | undefined;
  #link: StoreLink | undefined;
  /** Missing ranks, as far as they are named, and streams that were refused meanwhile; undefined before the store has sent them. */
  #missing: readonly number[] | undefined;
  #numMissing = 0;
  #refusals = "";
  #refusal: string | undefined;
  /** Reason why the last attempt to reach the store failed. */
  #reason = "";
  #isWelcome = false;
  /** True if this process takes the place of a rank that has ended. */
  #isStandIn = false;

  constructor(sockets: Sockets, options: HostsJoinOptions, store: BackgroundWorker | undefined) {
    this.#sockets = sockets;
    this.#options = options;
    this.#store = store;
    this.#place = `${options.address}:${options.port}`;
    this.#seconds = options.joinTimeoutSeconds ?? 60;
    this.#deadline = performance.now() + this.#seconds * 1000;
  }

  async join(): Promise<HostsControlPlane> {
    const { rank, worldSize, localWorldSize, timeoutSeconds } = this.#options;
    const link = await this.#enter();
    while (this.#missing === undefined || this.#missing.length > 0) {
      const { cause } = link.abort;
      if (cause !== undefined) {
        throw new RendezvousError(`Rank ${cause.rank} gave up joining: ${cause.reason}`, cause.rank);
      }
      if (performance.now() > this.#deadline) throw this.#absent(this.#missing ?? [0]);
      await sleep(LOOK_MS);
      link.pump(0);
    }
    // Refusals after all ranks have joined concern no rank.
    link.onJoining(() => {});
    const world = {
      abort: link.abort,
      deathOf: (peer: number) => link.gone.get(peer),
      options: this.#options,
      spins: SPINS,
      ranksPerHost: localWorldSize,
    };
    return new HostsControlPlane(link, placeInWorld(rank, worldSize), world, timeoutSeconds, (replica) => {
      // Other ranks may still need the store.
      this.#store?.hold();
      link.leave(replica);
      link.close();
    });
  }

  /** Enters, then gives the ranks that wait for this rank the reason of its end. */
  async standIn(reason: string, over: AbortSignal): Promise<void> {
    this.#isStandIn = true;
    over.addEventListener("abort", () => void (this.#deadline = 0));
    await this.#enter();
    this.giveUp(new RendezvousError(reason));
  }

  /** Undoes what this rank has begun, and gives the reason to the ranks that wait for it. */
  giveUp(error: unknown): void {
    this.#store?.hold();
    const reason = error instanceof Error ? error.message : String(error);
    if (this.#isWelcome) this.#link?.giveUp(this.#options.rank, reason);
    else this.#link?.end();
  }

  /** Opens streams until the store has accepted this rank. The store ends streams when too many unknown ones are open. */
  async #enter(): Promise<StoreLink> {
    for (;;) {
      const link = await this.#connect();
      this.#link = link;
      this.#challenge = undefined;
      link.onJoining((frame) => this.#take(frame));
      while (link.isOpen && !this.#isWelcome && this.#refusal === undefined && performance.now() < this.#deadline) {
        link.pump(0);
        await sleep(LOOK_MS);
      }
      if (this.#refusal !== undefined) {
        throw new RendezvousError(`The store at ${this.#place} refused rank ${this.#options.rank}: ${this.#refusal}`);
      }
      if (this.#isWelcome) return link;
      this.#reason = link.isOpen
        ? "it answers nothing"
        : `${link.abort.cause?.reason}; too many others may be asking there, or it may be another program's port`;
      link.end();
      await sleep(RETRY_MS);
    }
  }

  /** Opens the stream, and tries again until rank 0 serves it. */
  async #connect(): Promise<StoreLink> {
    const { address, port } = this.#options;
    while (performance.now() < this.#deadline) {
      // A name may resolve later, e.g. while hosts are being started.
      const found = attempt(() => this.#sockets.resolve(address, port));
      const opened = found.status === "rejected" ? String(found.reason) : this.#sockets.connect(found.value);
      if (typeof opened === "number") {
        const end = Math.min(this.#deadline, performance.now() + 5000);
        let state = this.#sockets.connected(opened);
        while (state === false && performance.now() < end) {
          await sleep(LOOK_MS);
          state = this.#sockets.connected(opened);
        }
        if (state === true) return new StoreLink(this.#sockets, opened, this.#place);
        this.#sockets.close(opened);
        this.#reason = state === false ? "it does not answer" : state;
      } else this.#reason = opened;
      await sleep(RETRY_MS);
    }
    throw this.#absent([0]);
  }

  #take({ kind, body }: Frame): void {
    const { rank, worldSize, token } = this.#options;
    if (kind === "challenge" && this.#challenge === undefined) {
      const challenge = body.bytes(NUMBER_BYTES).slice();
      this.#challenge = challenge;
      const code = hmacSha256(token, codePieces("rank", challenge, this.#number));
      this.#link?.say(
        this.#isStandIn ? "absent" : "hello",
        rank,
        worldSize,
        this.#number,
        code,
        new TextEncoder().encode(VERSION),
      );
    } else if (kind === "welcome" && this.#challenge !== undefined) {
      const code = hmacSha256(token, codePieces("store", this.#number, this.#challenge));
      this.#isWelcome = equalCodes(body.bytes(), code);
      if (this.#isWelcome) this.#link?.trust();
      else this.#refusal = "the process that answers there does not know the run's FULLYSHARD_TOKEN itself";
    } else if (kind === "refused") this.#refusal = shownName(body.text(), STRANGER_BYTES * 4);
    else if (kind === "roll" && this.#isWelcome) {
      this.#numMissing = body.number();
      this.#missing = body.numbers();
      this.#refusals = body.text();
    }
  }

  #absent(ranks: readonly number[]): RendezvousError {
    const { worldSize, localWorldSize } = this.#options;
    const hosts = [...new Set(ranks.map((rank) => Math.floor(rank / localWorldSize)))];
    const detail = this.#isWelcome || this.#reason === "" ? "" : `; the last attempt to reach it: ${this.#reason}`;
    const refused = this.#refusals === "" ? "" : `; refused meanwhile: ${this.#refusals}`;
    const others = this.#numMissing > ranks.length ? ` and ${this.#numMissing - ranks.length} others` : "";
    return new RendezvousError(
      `Rank ${ranks.join(", ")}${others} of ${worldSize} (host ${
        hosts.join(", ")
      }) did not come within ${this.#seconds} s to the ` +
        `store of rank 0 at ${this.#place}${detail}${refused}. Start every rank, with the same WORLD_SIZE, MASTER_ADDR, ` +
        "MASTER_PORT and FULLYSHARD_TOKEN, and let the hosts reach that port",
    );
  }
}
