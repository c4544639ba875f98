/**
 * The double of NCCL finds mistakes of ranks: each one here is one that a program might make, beside the same without it. The ranks
 * are communicators of one process, each with a stream of its own.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { CUDART } from "../../../ffi/bindings/cudart.ts";
import { NCCL, NCCL_CONFIG, NCCL_CONSTANTS, NCCL_UNIQUE_ID } from "../../../ffi/bindings/nccl.ts";
import { openLibrary } from "../../../ffi/mod.ts";
import type { Handle, NativeAddress } from "../../../ffi/types.ts";
import { buildCudaTwin, type CudaTwin, lackingForTwin, twinReports } from "../../native/cuda/build.ts";

const IN_PROGRESS = 7;
const REMOTE_ERROR = 6;
const COUNT = 64;
const { ncclFloat32, ncclSum } = NCCL_CONSTANTS;

/** A rank of a world of two. */
interface Rank {
  allReduce(count?: number): void;
  broadcast(): void;
  /** The state of its communicator, once its work has ended or an error was found, and what is said of it. */
  settled(atMostMs?: number): readonly [state: number, words: string | null, hasEnded: boolean];
}

/** Longest time for what comes to pass, and for what does not. */
const [LONG_MS, SHORT_MS] = [20_000, 100];

/** Asks until something has come to pass or the time is over; work of the other rank goes on between. */
function waitFor(hasCome: () => boolean, atMostMs: number): boolean {
  const pause = new Int32Array(new SharedArrayBuffer(4));
  for (const until = performance.now() + atMostMs; performance.now() < until;) {
    if (hasCome()) return true;
    Atomics.wait(pause, 0, 0, 1);
  }
  return false;
}

async function openWorld(twin: CudaTwin): Promise<(ranks: number, play: (ranks: readonly Rank[]) => void) => void> {
  const { environment } = twin;
  const cuda = await openLibrary(CUDART, { environment });
  const nccl = await openLibrary(NCCL, { environment });
  const { symbols, provider } = cuda;
  const stateOf = (comm: Handle<"ncclComm_t">): number => {
    const state = provider.out("i32");
    nccl.symbols.ncclCommGetAsyncError(comm, state);
    return state.value;
  };
  const join = (id: ReturnType<typeof provider.struct<typeof NCCL_UNIQUE_ID>>, rank: number): Handle<"ncclComm_t"> => {
    const [config, comm] = [provider.struct(NCCL_CONFIG), provider.out("ncclComm_t")];
    config.set("blocking", 0);
    nccl.need("ncclCommInitRankScalable")(comm, 2, rank, 1, id, config);
    return comm.value;
  };
  const rankOf = (
    comm: Handle<"ncclComm_t">,
    memory: NativeAddress,
    stream: Handle<"cudaStream_t">,
    isAlone: boolean,
  ): Rank => {
    const taken = (atMostMs = LONG_MS): boolean => waitFor(() => stateOf(comm) !== IN_PROGRESS, atMostMs);
    const event = provider.out("cudaEvent_t");
    symbols.cudaEventCreateWithFlags(event, 2);
    taken(isAlone ? SHORT_MS : LONG_MS);
    return {
      allReduce: (count = COUNT) => {
        nccl.symbols.ncclAllReduce(memory, memory, count, ncclFloat32, ncclSum, comm, stream);
        taken();
      },
      broadcast: () => {
        nccl.symbols.ncclBroadcast(memory, memory, COUNT, ncclFloat32, 0, comm, stream);
        taken();
      },
      settled: (atMostMs = LONG_MS) => {
        symbols.cudaEventRecord(event.value, stream);
        let hasEnded = false;
        waitFor(() => {
          hasEnded = stateOf(comm) === 0 && symbols.cudaEventQuery(event.value) === 0;
          return hasEnded || stateOf(comm) === REMOTE_ERROR;
        }, atMostMs);
        return [stateOf(comm), nccl.symbols.ncclGetLastError(comm), hasEnded];
      },
    };
  };
  return (count, play) => {
    const id = provider.struct(NCCL_UNIQUE_ID);
    nccl.symbols.ncclGetUniqueId(id);
    const comms = Array.from({ length: count }, (_, rank) => join(id, rank));
    // Each rank is there before one waits for the other.
    for (const comm of comms) stateOf(comm);
    const places = comms.map(() => {
      const [stream, memory] = [provider.out("cudaStream_t"), provider.out("address")];
      symbols.cudaStreamCreateWithPriority(stream, 1, 0);
      symbols.cudaMallocAsync(memory, COUNT * 4, stream.value);
      symbols.cudaMemsetAsync(memory.value, 0, COUNT * 4, stream.value);
      return [memory.value, stream.value] as const;
    });
    const ranks = comms.map((comm, rank) => rankOf(comm, ...places[rank] ?? assert.fail(), count === 1));
    try {
      play(ranks);
    } finally {
      for (const comm of comms) nccl.symbols.ncclCommAbort(comm);
      for (const [memory, stream] of places) symbols.cudaFreeAsync(memory, stream);
      symbols.cudaDeviceSynchronize();
    }
    assert.equal(twinReports(twin), "");
  };
}

const skip = lackingForTwin();
const inWorld = skip === undefined ? await openWorld(await buildCudaTwin()) : undefined;
const world: NonNullable<typeof inWorld> = (count, play) => (inWorld ?? assert.fail())(count, play);

/** Fails unless one of the ranks, or each, tells a mismatch in these words. */
function requireMismatch(ranks: readonly Rank[], words: RegExp): void {
  const told = ranks.map((rank) => rank.settled());
  assert.ok(told.every(([, , hasEnded]) => !hasEnded), "a collective ended although ranks called others");
  const errors = told.filter(([state]) => state === REMOTE_ERROR);
  assert.ok(errors.length > 0, JSON.stringify(told));
  for (const [, text] of errors) assert.match(text ?? "", words);
}

test("the twin of NCCL lets ranks pass that call the same", { skip }, () => {
  world(2, (ranks) => {
    for (const rank of ranks) rank.allReduce();
    for (const rank of ranks) rank.broadcast();
    for (const rank of ranks) assert.deepEqual(rank.settled().filter((one) => typeof one !== "string"), [0, true]);
  });
});

test("the twin of NCCL finds collectives that one rank calls in another order", { skip }, () => {
  world(2, (ranks) => {
    const [first, second] = ranks;
    first?.allReduce();
    first?.broadcast();
    second?.broadcast();
    second?.allReduce();
    requireMismatch(
      ranks,
      /^collective 1: rank \d calls (all-reduce of 64 float32 by sum, rank 1 broadcast of|broadcast of 64 float32 of rank 0, rank 0 all-reduce)/,
    );
  });
});

test("the twin of NCCL finds a collective of another length", { skip }, () => {
  world(2, (ranks) => {
    ranks[0]?.allReduce();
    ranks[1]?.allReduce(COUNT - 1);
    requireMismatch(
      ranks,
      /^collective 1: rank \d calls all-reduce of 6[34] float32 by sum, rank \d all-reduce of 6[34] /,
    );
  });
});

test("the twin of NCCL finds a rank that does not call a collective", { skip }, () => {
  world(2, ([first, second]) => {
    first?.allReduce();
    second?.allReduce();
    for (const rank of [first, second]) assert.equal(rank?.settled()[2], true);
    first?.broadcast();
    assert.deepEqual(first?.settled(SHORT_MS), [0, "rank 0 waits in collective 2 for rank 1", false]);
    second?.broadcast();
    assert.equal(first?.settled()[2], true);
  });
});

test("the twin of NCCL finds a rank that does not join", { skip }, () => {
  world(1, ([alone]) => {
    const [state, words] = alone?.settled(SHORT_MS) ?? assert.fail();
    assert.deepEqual([state, words], [IN_PROGRESS, "rank 0 waits in the communicator for rank 1"]);
  });
});
