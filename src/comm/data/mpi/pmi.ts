/**
 * The stream between this process and a launcher of MPICH's kind, whose descriptor is in PMI_FD: lines of text (PMI 1). MPI uses it
 * from `MPI_Init` to its end, and this file says what MPI does not:
 * - before `MPI_Init`, that this process has failed (`early_end.ts`);
 * - after `MPI_Finalize`, that it ends well. MPICH 5 says so when the C library runs its exit handlers, and Bun ends without these.
 *   The launcher would take that for a crash, and kill the ranks that have not ended yet.
 *
 * @module
 */
import { openSockets, type Sockets } from "../../../ffi/sockets.ts";
import { processEnvironment } from "../../../runtime/env.ts";
import { descriptorIdentity } from "../../../runtime/processes.ts";

/** Longest time for the launcher's answer. */
const ANSWER_MS = 5000;

/** Bytes that hold any line of an answer. */
const ANSWER_BYTES = 1024;

/** The stream to the launcher. */
export class PmiStream {
  readonly #sockets: Sockets;
  readonly #descriptor: number;
  readonly #identity: string | undefined;

  /** Use {@link openPmiStream}. */
  constructor(sockets: Sockets, descriptor: number) {
    [this.#sockets, this.#descriptor, this.#identity] = [sockets, descriptor, descriptorIdentity(descriptor)];
  }

  /**
   * Sends a line, and takes the launcher's answer or the end of the stream. A launcher that could not write its answer, as this process
   * had ended, would fail itself and leave the other ranks alone.
   */
  ask(line: string): void {
    this.#sockets.send(this.#descriptor, new TextEncoder().encode(`${line}\n`));
    const [stream] = this.#sockets.poll([{ descriptor: this.#descriptor, wantsOutput: false }], ANSWER_MS);
    if (stream?.input === true) this.#sockets.receive(this.#descriptor, new Uint8Array(ANSWER_BYTES));
  }

  /** Says that this process ends well. Does nothing if MPI has closed the stream. */
  finalize(): void {
    if (this.#isOpen()) this.ask("cmd=finalize");
  }

  /** False once the descriptor is closed, or leads to another file. Deno knows only descriptors that it has opened itself. */
  #isOpen(): boolean {
    return this.#identity !== undefined && descriptorIdentity(this.#descriptor) === this.#identity;
  }
}

/** Opens the stream; undefined if the launcher has given none. */
export async function openPmiStream(): Promise<PmiStream | undefined> {
  const descriptor = processEnvironment().integer("PMI_FD");
  return descriptor === undefined ? undefined : new PmiStream(await openSockets(), descriptor);
}
