/**
 * What a launcher of MPICH's kind does for one rank, done by the rank itself: it tells the library its rank, and how other ranks are
 * reached. The library asks by lines of text (PMI 1) over a stream within this host, which it opens itself: PMI_PORT says where, and
 * PMI_ID is a number that only this process knows. What the library puts is exchanged when it asks for a barrier.
 *
 * Source of the protocol: https://github.com/pmodels/mpich/blob/main/src/pmi (pmi_v1.c, pmi_msg.c), read in November 2026.
 *
 * @module
 */
import { at } from "../../../at.ts";
import { InternalError, RendezvousError } from "../../../errors.ts";
import type { Sockets } from "../../../ffi/sockets.ts";

const LOOPBACK = "127.0.0.1";
/** Longest name of a space, key and value, in bytes, as MPICH's own launcher gives them. */
const LENGTHS = "kvsname_max=256 keylen_max=64 vallen_max=1024";
/** The key under which the library looks for the hosts of ranks. */
const HOSTS_KEY = "PMI_process_mapping";

/** A rank's place. */
export interface PmiPlace {
  /** Name of the run, which no other run on these hosts has: files in shared memory are called after it. */
  readonly run: string;
  readonly rank: number;
  readonly size: number;
}

/** Serves PMI to the library of this process. */
export class PmiServer implements Disposable {
  readonly #sockets: Sockets;
  readonly #place: PmiPlace;
  readonly #exchange: (own: Uint8Array) => readonly Uint8Array[];
  readonly #listener: number;
  readonly #id: number = 1 + at(crypto.getRandomValues(new Uint32Array(1)), 0, "number") % 2 ** 30;
  /** The library's stream; undefined until it has opened one. */
  #stream: number | undefined;
  /** True once that stream has named the process' number. */
  #isKnown = false;
  readonly #room: Uint8Array = new Uint8Array(4096);
  #rest = "";
  readonly #values = new Map<string, string>();
  /** What this rank has put since the last barrier. */
  #put: [key: string, value: string][] = [];

  /** @param exchange gives each rank the bytes of all, in the order of ranks; collective */
  constructor(sockets: Sockets, place: PmiPlace, exchange: (own: Uint8Array) => readonly Uint8Array[]) {
    const listener = sockets.listen(LOOPBACK, 0);
    if (listener === undefined) throw new RendezvousError("This host has no free port for MPI's library to ask at");
    [this.#sockets, this.#place, this.#exchange, this.#listener] = [sockets, place, exchange, listener];
    this.#values.set(HOSTS_KEY, `(vector,(0,${place.size},1))`);
  }

  /** Variables by which the library finds this server. */
  get variables(): Readonly<Record<"PMI_PORT" | "PMI_ID", string>> {
    return { PMI_PORT: `${LOOPBACK}:${this.#sockets.portOf(this.#listener)}`, PMI_ID: String(this.#id) };
  }

  /** Answers what the library has asked since the last call. Waits for other ranks where it asks for a barrier. */
  serve(): void {
    this.#stream ??= this.#sockets.accept(this.#listener)?.descriptor;
    while (this.#stream !== undefined) {
      const moved = this.#sockets.receive(this.#stream, this.#room);
      if ("end" in moved) return this.#close();
      if (moved.count === 0) return;
      const lines = (this.#rest + new TextDecoder().decode(this.#room.subarray(0, moved.count))).split("\n");
      this.#rest = at(lines, lines.length - 1, "line");
      for (const line of lines.slice(0, -1)) if (this.#stream !== undefined) this.#answer(line);
    }
  }

  [Symbol.dispose](): void {
    this.#close();
    this.#sockets.close(this.#listener);
  }

  #answer(line: string): void {
    const { cmd, key, pmiid, value = "" } = fieldsOf(line);
    // Another program of this host may have found the port.
    if (!this.#isKnown && (cmd !== "initack" || pmiid !== String(this.#id))) return this.#close();
    if (cmd === "initack") {
      this.#isKnown = true;
      const { rank, size } = this.#place;
      this.#say("cmd=initack rc=0", `cmd=set size=${size}`, `cmd=set rank=${rank}`, "cmd=set debug=0");
    } else if (cmd === "init") this.#say("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0");
    else if (cmd === "get_maxes") this.#say(`cmd=maxes ${LENGTHS} rc=0`);
    else if (cmd === "get_appnum") this.#say("cmd=appnum appnum=0 rc=0");
    else if (cmd === "get_my_kvsname") this.#say(`cmd=my_kvsname kvsname=${this.#place.run} rc=0`);
    else if (cmd === "get_universe_size") this.#say(`cmd=universe_size size=${this.#place.size} rc=0`);
    else if (cmd === "put" && key !== undefined) {
      this.#put.push([key, value]);
      this.#say("cmd=put_result rc=0 msg=success");
    } else if (cmd === "get") {
      const found = key === undefined ? undefined : this.#values.get(key);
      this.#say(found === undefined ? "cmd=get_result rc=-1 msg=key_not_found value=unknown" : getResult(found));
    } else if (cmd === "barrier_in") {
      this.#share();
      this.#say("cmd=barrier_out rc=0");
    } else if (cmd === "finalize") this.#say("cmd=finalize_ack rc=0");
    else if (cmd === "abort") throw new RendezvousError("MPI's library has given up, and printed why");
    else throw new InternalError(`MPI's library asks for what nobody gives it: ${line.slice(0, 200)}`);
  }

  /** Gives what was put to all ranks. */
  #share(): void {
    const own = new TextEncoder().encode(JSON.stringify(this.#put));
    this.#put = [];
    for (const bytes of this.#exchange(own)) {
      const entries: readonly [string, string][] = JSON.parse(new TextDecoder().decode(bytes));
      for (const [key, value] of entries) this.#values.set(key, value);
    }
  }

  #say(...lines: readonly string[]): void {
    if (this.#stream === undefined) return;
    const bytes = new TextEncoder().encode(lines.map((line) => `${line}\n`).join(""));
    const moved = this.#sockets.send(this.#stream, bytes);
    if (!("count" in moved) || moved.count < bytes.length) {
      throw new RendezvousError("MPI's library does not take what it asked for");
    }
  }

  #close(): void {
    if (this.#stream !== undefined) this.#sockets.close(this.#stream);
    [this.#stream, this.#rest, this.#isKnown] = [undefined, "", false];
  }
}

function getResult(value: string): string {
  return `cmd=get_result rc=0 msg=success value=${value}`;
}

/** The fields of a line such as `cmd=put kvsname=a key=b value=c`. A value may hold `=`, and no blank. */
export function fieldsOf(line: string): Partial<Record<string, string>> {
  return Object.fromEntries(
    line.split(" ").map((field) => {
      const end = field.indexOf("=");
      return [field.slice(0, end), field.slice(end + 1)];
    }),
  );
}
