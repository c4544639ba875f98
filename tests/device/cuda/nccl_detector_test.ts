/**
 * The double of NCCL finds mistakes of ranks: each one here is one that a program might make, beside the same without it. The ranks
 * are communicators of one process, each with a stream of its own.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { CUDART } from "../../../src/ffi/bindings/cudart.ts";
import { NCCL, NCCL_CONFIG, NCCL_CONSTANTS, NCCL_UNIQUE_ID } from "../../../src/ffi/bindings/nccl.ts";
import { openLibrary } from "../../../src/ffi/mod.ts";
import type { Handle, NativeAddress, Out } from "../../../src/ffi/types.ts";
import { buildCudaTwin, type CudaTwin, lackingForTwin, openNcclTwin, twinReports } from "../../native/cuda/build.ts";

const IN_PROGRESS = 7;
const REMOTE_ERROR = 6;
const COUNT = 64;
const { ncclFloat32, ncclSum, NCCL_CTA_POLICY_ZERO, NCCL_WIN_COLL_SYMMETRIC } = NCCL_CONSTANTS;

/** A rank of a world of two. */
interface Rank {
  allReduce(count?: number): void;
  broadcast(): void;
  /** Memory that NCCL gives. */
  allocate(bytes: number): NativeAddress;
  free(memory: NativeAddress): void;
  /** Begins to register memory. */
  register(memory: NativeAddress, bytes: number): Out<"ncclWindow_t">;
  deregister(window: Out<"ncclWindow_t">): void;
  /** Gathers `COUNT` floats of each rank. */
  gather(from: NativeAddress, to: NativeAddress): void;
  /** Leaves as if all ranks were done. */
  destroy(): void;
  /** The state of its communicator once its work has ended or an error was found, and the message. */
  outcome(atMostMs?: number): readonly [state: number, words: string | null, hasEnded: boolean];
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

/** The calls of ranks, and the report of the double on them. */
type Play = (ranks: readonly Rank[], twin: Twin) => RegExp | undefined | void;

/** The functions besides NCCL's that a test may call. */
interface Twin {
  /** Ordinary memory of the first rank's card. */
  readonly memory: NativeAddress;
  /** An address `bytes` further on. */
  offset(address: NativeAddress, bytes: number): NativeAddress;
  /** Does something while the first rank's stream is captured. */
  capture(work: () => void): void;
}

async function openWorld(twin: CudaTwin): Promise<(ranks: number, play: Play) => void> {
  const { environment } = twin;
  const cuda = await openLibrary(CUDART, { environment });
  const nccl = await openLibrary(NCCL, { environment });
  const { symbols, provider } = cuda;
  /** The objects that ranks have not freed. */
  const given = new Set<NativeAddress>();
  const stateOf = (comm: Handle<"ncclComm_t">): number => {
    const state = provider.out("i32");
    nccl.symbols.ncclCommGetAsyncError(comm, state);
    return state.value;
  };
  const join = (id: ReturnType<typeof provider.struct<typeof NCCL_UNIQUE_ID>>, rank: number): Handle<"ncclComm_t"> => {
    const [config, comm] = [provider.struct(NCCL_CONFIG), provider.out("ncclComm_t")];
    config.set("blocking", 0);
    config.set("CTAPolicy", NCCL_CTA_POLICY_ZERO);
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
      allocate: (bytes) => {
        const place = provider.out("address");
        nccl.symbols.ncclMemAlloc(place, bytes);
        given.add(place.value);
        return place.value;
      },
      free: (address) => {
        given.delete(address);
        nccl.symbols.ncclMemFree(address);
      },
      register: (address, bytes) => {
        const window = provider.out("ncclWindow_t");
        nccl.need("ncclCommWindowRegister")(comm, address, bytes, window, NCCL_WIN_COLL_SYMMETRIC);
        return window;
      },
      deregister: (window) => void nccl.need("ncclCommWindowDeregister")(comm, window.value),
      gather: (from, to) => {
        nccl.symbols.ncclAllGather(from, to, COUNT, ncclFloat32, comm, stream);
        taken();
      },
      destroy: () => {
        nccl.symbols.ncclCommFinalize(comm);
        taken(SHORT_MS);
        nccl.symbols.ncclCommDestroy(comm);
      },
      outcome: (atMostMs = LONG_MS) => {
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
    const [memory, stream] = places[0] ?? assert.fail();
    const capture = (work: () => void): void => {
      const graph = provider.out("cudaGraph_t");
      symbols.cudaStreamBeginCapture(stream, 1);
      try {
        work();
      } finally {
        symbols.cudaStreamEndCapture(stream, graph);
        symbols.cudaGraphDestroy(graph.value);
      }
    };
    let reported: RegExp | void = undefined;
    try {
      reported = play(ranks, { memory, offset: (address, bytes) => provider.offset(address, bytes), capture });
    } finally {
      for (const comm of comms) nccl.symbols.ncclCommAbort(comm);
      for (const address of given) nccl.symbols.ncclMemFree(address);
      given.clear();
      for (const [memory, stream] of places) symbols.cudaFreeAsync(memory, stream);
      symbols.cudaDeviceSynchronize();
    }
    if (reported === undefined) assert.equal(twinReports(twin), "");
    else assert.match(twinReports(twin), reported);
  };
}

const skip = lackingForTwin();
const inWorld = skip === undefined ? await openWorld(await buildCudaTwin()) : undefined;
const world: NonNullable<typeof inWorld> = (count, play) => (inWorld ?? assert.fail())(count, play);

/** Fails unless one of the ranks, or each, tells a mismatch in these words. */
function requireMismatch(ranks: readonly Rank[], words: RegExp): void {
  const told = ranks.map((rank) => rank.outcome());
  assert.ok(told.every(([, , hasEnded]) => !hasEnded), "a collective ended although ranks called others");
  const errors = told.filter(([state]) => state === REMOTE_ERROR);
  assert.ok(errors.length > 0, JSON.stringify(told));
  for (const [, text] of errors) assert.match(text ?? "", words);
}

test("the twin of NCCL lets ranks pass that call the same", { skip }, () => {
  world(2, (ranks) => {
    for (const rank of ranks) rank.allReduce();
    for (const rank of ranks) rank.broadcast();
    for (const rank of ranks) assert.deepEqual(rank.outcome().filter((one) => typeof one !== "string"), [0, true]);
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
    for (const rank of [first, second]) assert.equal(rank?.outcome()[2], true);
    first?.broadcast();
    assert.deepEqual(first?.outcome(SHORT_MS), [0, "rank 0 waits in collective 2 for rank 1", false]);
    second?.broadcast();
    assert.equal(first?.outcome()[2], true);
  });
});

test("the twin of NCCL finds a rank that does not join", { skip }, () => {
  world(1, ([alone]) => {
    const [state, words] = alone?.outcome(SHORT_MS) ?? assert.fail();
    assert.deepEqual([state, words], [IN_PROGRESS, "rank 0 waits in the communicator for rank 1"]);
  });
});

const WINDOW_BYTES = 8192;

/** Memory that both ranks have registered: of each two pieces, and what they are registered as. */
function registerAll(ranks: readonly Rank[]) {
  const pieces = [0, 1].map(() => ranks.map((rank) => rank.allocate(WINDOW_BYTES)));
  const windows = pieces.map((piece) => {
    const made = ranks.map((rank, i) => rank.register(piece[i] ?? assert.fail(), WINDOW_BYTES));
    for (const rank of ranks) assert.equal(rank.outcome()[0], 0);
    return made;
  });
  return ranks.map((rank, i) => {
    const [from = assert.fail(), to = assert.fail()] = pieces.map((piece) => piece[i] ?? assert.fail());
    const giveBack = (): void => {
      for (const made of windows) rank.deregister(made[i] ?? assert.fail());
      rank.free(from);
      rank.free(to);
    };
    return { rank, from, to, windows: windows.map((made) => made[i] ?? assert.fail()), giveBack };
  });
}

test("the twin of NCCL lets ranks pass that gather between what they registered alike", { skip }, () => {
  world(2, (ranks) => {
    const all = registerAll(ranks);
    for (const { rank, from, to } of all) rank.gather(from, to);
    for (const rank of ranks) assert.equal(rank.outcome()[2], true);
    for (const { giveBack } of all) giveBack();
  });
});

test("the twin of NCCL finds windows of unequal sizes", { skip }, () => {
  world(2, ([first = assert.fail(), second = assert.fail()]) => {
    first.register(first.allocate(WINDOW_BYTES), WINDOW_BYTES);
    second.register(second.allocate(WINDOW_BYTES), WINDOW_BYTES / 2);
    requireMismatch([first, second], /^window 1: rank \d registers (8192|4096) bytes, rank \d (8192|4096)$/);
  });
});

test("the twin of NCCL finds a rank that does not register", { skip }, () => {
  world(2, ([first = assert.fail()]) => {
    first.register(first.allocate(WINDOW_BYTES), WINDOW_BYTES);
    const words = "rank 0 waits in the registration of window 1 for rank 1";
    assert.deepEqual(first.outcome(SHORT_MS), [IN_PROGRESS, words, false]);
  });
});

test(
  "the twin of NCCL refuses to register other memory than NCCL's, or none that begins on 4096 bytes",
  { skip },
  () => {
    world(2, ([first = assert.fail()], { memory, offset }) => {
      assert.throws(() => first.register(memory, 256), /memory is registered that ncclMemAlloc did not give/);
      const own = first.allocate(WINDOW_BYTES);
      assert.throws(() => first.register(offset(own, 256), 256), /does not begin on a multiple of 4096/);
    });
  },
);

test("the twin of NCCL finds ranks that gather to different places of a window", { skip }, () => {
  world(2, (ranks, { offset }) => {
    const all = registerAll(ranks);
    for (const [i, { rank, from, to }] of all.entries()) rank.gather(from, offset(to, i * 1024));
    requireMismatch(ranks, /all-gather of 64 float32 from byte 0 of window 1 to byte (0|1024) of window 2, rank \d /);
  });
});

test("the twin of NCCL finds a zero-CTA gather from memory that is not registered", { skip }, async () => {
  const { symbols } = await openNcclTwin((await buildCudaTwin()).environment);
  for (const isStrict of [false, true]) {
    symbols.twinStrictWindows(Number(isStrict));
    world(2, (ranks) => {
      const all = registerAll(ranks);
      for (const { rank, to } of all) rank.gather(rank.allocate(WINDOW_BYTES), to);
      for (const rank of ranks) assert.equal(rank.outcome()[2], true);
      return isStrict ? /^rank 0 gathers with the zero-CTA policy, and the source is not registered$/m : undefined;
    });
  }
  symbols.twinStrictWindows(0);
});

test("the twin of NCCL finds a window that is used after it was deregistered", { skip }, () => {
  world(2, (ranks) => {
    const all = registerAll(ranks);
    for (const { rank, from, to } of all) rank.gather(from, to);
    for (const { rank, windows } of all) for (const window of windows) rank.deregister(window);
    for (const rank of ranks) assert.equal(rank.outcome()[2], true);
    return /^all-gather uses window 1 of rank \d, which was deregistered$/m;
  });
});

test("the twin of NCCL finds memory that is freed while it is registered", { skip }, () => {
  world(2, (ranks) => {
    const [{ rank, from } = assert.fail()] = registerAll(ranks);
    rank.free(from);
    return /^window 1 of rank 0 is registered when its memory is freed$/m;
  });
});

test("the twin of NCCL finds a registration in a capture", { skip }, () => {
  world(2, ([first = assert.fail()], { capture }) => {
    const memory = first.allocate(WINDOW_BYTES);
    capture(() => assert.throws(() => first.register(memory, WINDOW_BYTES), /a registration in a capture/));
    return /^memory is registered while work is captured$/m;
  });
});

test("the twin of NCCL finds a communicator that is destroyed with its windows", { skip }, () => {
  world(2, (ranks) => {
    registerAll(ranks);
    // The first waits for the second.
    assert.throws(() => ranks[0]?.destroy(), /destroyed before it was finalized/);
    ranks[1]?.destroy();
    return /^window 1 of rank 1 is registered when its communicator is destroyed$/m;
  });
});
