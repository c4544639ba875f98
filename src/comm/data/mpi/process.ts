/**
 * This process's part in MPI: initialized once, and finalized as the last act of the process.
 *
 * Note [The end of MPI]
 * - `MPI_Finalize` may block until all ranks call it, and Hydra kills the ranks that live on after it once one has exited. So it
 *   is called when nothing else is left to do, behind a barrier whose request is tested: with all ranks there, it ends. Then the
 *   launcher hears of the end, where MPI leaves that to exit handlers that the runtime does not run (`pmi.ts`).
 * - A rank that does not see the others come within {@link FAREWELL_MS} leaves without it.
 * - After a failure a rank makes no call any more, as messages may be under way from memory that is freed. It leaves after {@link
 *   LINGER_MS}: so the others have the time to say why, before the launcher kills them. Where a host cannot be reached, or its ranks were
 *   late for longer than ranks may be, the launcher is ended then (`launcher_end.ts`).
 * - Without a launcher of MPI a rank leaves at once after a failure: nobody kills the others for it. Else it leaves behind a second
 *   barrier: a library may still hold its messages of the first, which would be lost with the process. The second ends only once the
 *   first has ended for all. Each is given up after {@link FLUSH_MS}, as a rank may have failed. `MPI_Finalize` would ask for ranks whose
 *   store is closed by then.
 *
 * Note [The beginning of MPI]: `MPI_Init` blocks until all ranks have come.
 * - Under a launcher of MPI a rank that fails before it tells its launcher (`early_end.ts`); for one that ends otherwise, the system's
 *   alarm ends this process at the deadline, and the launcher says so.
 * - Without one the ranks have joined at a store before, and a Worker makes the call (`without_launcher.ts`).
 *
 * @module
 */
import { at } from "../../../at.ts";
import { NativeError, RendezvousError, UnsupportedError } from "../../../errors.ts";
import { openPosix } from "../../../ffi/posix.ts";
import type { NativeAddress } from "../../../ffi/types.ts";
import { blockFor, sleep } from "../../../runtime/clock.ts";
import { onExit, runsExitHandlers } from "../../../runtime/processes.ts";
import { mpiBegins } from "./early_end.ts";
import { endLauncher } from "./launcher_end.ts";
import { type OpenMpiLibrary, openMpiLibrary } from "./library.ts";
import { openPmiStream, type PmiStream } from "./pmi.ts";
import { RequestSlots } from "./requests.ts";
import { requireRoom } from "./room.ts";

/** Longest time that a rank waits at its end for the others, and the time that it gives them after a failure. */
const FAREWELL_MS = 60_000;
const LINGER_MS = 1500;
/** Longest time at each barrier of a rank without a launcher of MPI, in which its last messages leave the library. */
const FLUSH_MS = 2000;
/** Pause between two tests of a request that takes long. */
const TEST_MS = 1;

/** Longest time for what ranks do before they can watch each other. */
export interface JoinDeadline {
  /** Value of `performance.now()` at which to give up. */
  readonly at: number;
  /** Seconds that this is, for messages. */
  readonly seconds: number;
}

/** Calls of the system. */
export interface ProcessCalls {
  /** Has the system end this process after some seconds; 0 takes that back. */
  alarm(seconds: number): void;
  /** Sends a signal to another process. */
  kill(pid: number, signal: number): void;
}

/** One process of an MPI world. */
export class MpiProcess {
  readonly library: OpenMpiLibrary;
  readonly requests: RequestSlots;
  readonly rank: number;
  readonly size: number;
  #communicator: NativeAddress;
  /** Keeps the place of the communicator's handle reachable. */
  readonly #place: BigUint64Array = new BigUint64Array(1);
  /** Smallest tag that no group of this rank has had. */
  nextTag = 1;
  /** True once a group of this process has failed. */
  hasFailed = false;
  /** True once a host cannot be reached any more, or does not answer. */
  isSilent: () => boolean = () => false;
  /** True if ranks of this host share cores. */
  sharesCores = false;
  /** Receives a line for the user. */
  report: (text: string) => void = () => {};
  readonly #calls: Pick<ProcessCalls, "kill">;
  readonly #launcher: PmiStream | "none" | undefined;

  /**
   * Takes MPI once it is initialized. Use {@link openMpiProcess} or `openMpiWithoutLauncher`.
   *
   * @param launcher the stream to it; undefined if it has given none, "none" if there is no launcher of MPI
   */
  constructor(
    library: OpenMpiLibrary,
    calls: Pick<ProcessCalls, "kill">,
    launcher: PmiStream | "none" | undefined,
  ) {
    const { symbols, handles: { MPI_COMM_WORLD, MPI_ERRORS_RETURN } } = library;
    symbols.MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    [this.#calls, this.#launcher] = [calls, launcher];
    this.library = library;
    this.requests = new RequestSlots(library);
    this.#communicator = MPI_COMM_WORLD;
    const [rank, size] = [new Int32Array(1), new Int32Array(1)];
    symbols.MPI_Comm_rank(MPI_COMM_WORLD, rank);
    symbols.MPI_Comm_size(MPI_COMM_WORLD, size);
    this.rank = at(rank, 0, "rank");
    this.size = at(size, 0, "size");
    onExit((exitCode, printError) => this.#end(exitCode !== 0 || this.hasFailed, printError));
  }

  /** A communicator of all ranks that other code of the process does not use. */
  get communicator(): NativeAddress {
    return this.#communicator;
  }

  /** Makes the communicator. Collective. @param look is called while other ranks are awaited, and may throw */
  async duplicate(deadline: JoinDeadline, look?: () => void): Promise<void> {
    const { symbols, provider, handles: { MPI_COMM_WORLD, MPI_ERRORS_RETURN } } = this.library;
    const place = provider.addressOf(this.#place);
    await this.finish(
      (request) => symbols.MPI_Comm_idup(MPI_COMM_WORLD, place, request),
      "make a communicator",
      deadline,
      look,
    );
    this.#communicator = provider.offset(provider.nullAddress, Number(at(this.#place, 0, "communicator")));
    symbols.MPI_Comm_set_errhandler(this.#communicator, MPI_ERRORS_RETURN);
  }

  /** Gives all ranks the bytes of rank 0, which are as long on each. Collective, for ranks that do not watch each other yet. */
  async broadcast(bytes: Uint8Array, deadline: JoinDeadline): Promise<void> {
    const { symbols, provider, handles: { MPI_BYTE } } = this.library;
    const from = provider.addressOf(bytes);
    await this.finish(
      (request) => symbols.MPI_Ibcast(from, bytes.length, MPI_BYTE, 0, this.#communicator, request),
      "tell the ranks where to meet",
      deadline,
    );
  }

  /** Begins a request and returns once it has finished. @throws {RendezvousError} at the deadline, or if MPI fails */
  async finish(
    begin: (request: NativeAddress) => void,
    what: string,
    deadline: JoinDeadline,
    look: () => void = () => {},
  ): Promise<void> {
    const words = `Rank ${this.rank} of ${this.size} cannot ${what} over MPI (${this.library.version})`;
    try {
      const request = this.requests.begin(begin);
      while (!this.requests.test(request)) {
        if (performance.now() > deadline.at) {
          throw new RendezvousError(`${words}: a rank did not take part within ${deadline.seconds} s`);
        }
        look();
        await sleep(TEST_MS);
      }
    } catch (error) {
      if (error instanceof NativeError) throw new RendezvousError(`${words}: ${error.message}`);
      throw error;
    }
  }

  /** See Note [The end of MPI]. */
  #end(hasFailed: boolean, printError: () => void): void {
    const { symbols } = this.library;
    if (hasFailed) {
      if (this.#launcher === "none") return;
      blockFor(LINGER_MS);
      if (!this.isSilent()) return;
      printError();
      endLauncher((pid, signal) => this.#calls.kill(pid, signal), this.report);
      return;
    }
    try {
      if (this.#launcher === "none") {
        if (this.#meetAtEnd(FLUSH_MS)) this.#meetAtEnd(FLUSH_MS);
        return;
      }
      if (!this.#meetAtEnd(FAREWELL_MS)) return;
      symbols.MPI_Finalize();
      if (!runsExitHandlers()) this.#launcher?.finalize();
    } catch (error) {
      // A dead rank ends the barrier; what the run had to say of it has been said.
      if (!(error instanceof NativeError)) throw error;
    }
  }

  /** A barrier that is given up after a time. @returns false then */
  #meetAtEnd(limitMs: number): boolean {
    const end = performance.now() + limitMs;
    const request = this.requests.begin((slot) => this.library.symbols.MPI_Ibarrier(this.#communicator, slot));
    while (!this.requests.test(request)) {
      if (performance.now() > end) return false;
      blockFor(TEST_MS);
    }
    return true;
  }
}

/** Whole seconds until a deadline, at least 1. */
function secondsUntil({ at: end }: JoinDeadline): number {
  return Math.max(1, Math.ceil((end - performance.now()) / 1000));
}

let opened: Promise<MpiProcess> | undefined;

/** MPI as this process has it already; undefined if it was not initialized yet, which a process can do once. */
export function openedMpi(): Promise<MpiProcess> | undefined {
  return opened;
}

/** Keeps MPI for later groups of this process. */
export function keepMpi(mpi: MpiProcess): void {
  opened = Promise.resolve(mpi);
}

/**
 * Initializes MPI under its launcher, or gives what this process has already. Blocks until all ranks have come so far; see Note [The
 * beginning of MPI].
 *
 * @throws {FileError} as {@link requireRoom}
 */
export function openMpiProcess(deadline: JoinDeadline, localWorldSize: number): Promise<MpiProcess> {
  return opened ??= begin(deadline, localWorldSize);
}

async function begin(deadline: JoinDeadline, localWorldSize: number): Promise<MpiProcess> {
  const posix = await openPosix();
  const calls: ProcessCalls = posix.libc.symbols;
  const library = await openMpiLibrary();
  requireRoom(posix, library, localWorldSize);
  requireFresh(library);
  mpiBegins();
  calls.alarm(secondsUntil(deadline));
  initialize(library, "funneled");
  calls.alarm(0);
  const mpi = new MpiProcess(library, calls, await openPmiStream());
  await mpi.duplicate(deadline);
  return mpi;
}

/** Refuses a process in which MPI runs already. @throws {UnsupportedError} then */
export function requireFresh({ symbols }: OpenMpiLibrary): void {
  const isInitialized = new Int32Array(1);
  symbols.MPI_Initialized(isInitialized);
  if (isInitialized[0] !== 0) {
    throw new UnsupportedError("Cannot share MPI with other code of this process that has initialized it already");
  }
}

/** Initializes MPI for one thread at a time. @throws {UnsupportedError} if the library has no threads */
export function initialize(library: OpenMpiLibrary, level: keyof OpenMpiLibrary["threads"]): void {
  const { symbols, provider: { nullAddress }, path, threads } = library;
  const provided = Int32Array.of(-1);
  symbols.MPI_Init_thread(nullAddress, nullAddress, threads[level], provided);
  if (at(provided, 0, "thread level") < threads[level]) {
    const name = `MPI_THREAD_${level.toUpperCase()}`;
    throw new UnsupportedError(`Cannot use ${path}: it was built without threads (${name}), and runtimes have several`);
  }
}
