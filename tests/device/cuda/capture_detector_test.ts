/**
 * The double of the CUDA runtime finds mistakes of captures and graphs, beside the same without them.
 *
 * @module
 */
import assert from "node:assert/strict";
import { NativeError } from "../../../src/errors.ts";
import { type Mistake, playMistakes, type Stage } from "./detector_stage.ts";

/** A play in which each part of the work is in one graph. */
function inGraph(body: (stage: Stage) => void): (stage: Stage) => void {
  return (stage) => stage.capture(() => body(stage))();
}

const MISTAKES: readonly Mistake[] = [
  [
    "two streams of a graph without an event between them",
    inGraph(({ launch, first, second, order, join }) => {
      order();
      launch("write", first);
      launch("read", second);
      join();
    }),
    /'run_read' on stream \d of a graph (reads|writes) byte 0 of a block of 1024, which 'run_write' on stream \d of a graph writes/,
    inGraph(({ launch, first, second, order, join }) => {
      launch("write", first);
      order();
      launch("read", second);
      join();
    }),
  ],
  [
    "a graph launched beside what another stream does",
    (stage) => {
      const launched = stage.capture(() => stage.launch("read", stage.first));
      stage.order();
      stage.launch("write", stage.second);
      launched();
    },
    /'run_(read|write)' on stream \d( of a graph)? (reads|writes) byte 0 .* which 'run_(read|write)' on stream \d( of a graph)? (reads|writes), with no event/,
    (stage) => {
      const launched = stage.capture(() => stage.launch("read", stage.first));
      stage.order();
      stage.launch("write", stage.second);
      stage.join();
      launched();
    },
  ],
  [
    "a graph that uses memory which was freed before it is launched again",
    (stage) => {
      const launched = stage.capture(() => stage.launch("write", stage.first));
      launched();
      stage.free(stage.first);
      launched();
    },
    /'run_write' on stream \d of a graph (uses a block after it was freed|writes 4 bytes outside of any block)/,
    (stage) => {
      const launched = stage.capture(() => stage.launch("write", stage.first));
      launched();
      launched();
      stage.free(stage.first);
    },
  ],
  [
    "a stream that does not come back to the capture's first",
    inGraph(({ launch, second, order }) => {
      order();
      launch("write", second);
    }),
    /^stream \d does not come back to the stream whose capture it has joined\n$/,
    inGraph(({ launch, second, order, join }) => {
      order();
      launch("write", second);
      join();
    }),
  ],
  [
    "the host waiting in a capture",
    inGraph(({ host }) => host.synchronize()),
    /^'cudaStreamSynchronize' is called while work is captured\n$/,
    ({ host }) => host.synchronize(),
  ],
  [
    "the host asking for an event in a capture",
    inGraph(({ mark }) => mark().ask()),
    /^'cudaEventQuery' is called while work is captured\n$/,
    ({ mark }) => mark().ask(),
  ],
  [
    "memory that is taken in a capture",
    inGraph(({ host }) => host.malloc()),
    /^'cudaMalloc' is called while work is captured\n$/,
    ({ host }) => host.malloc(),
  ],
  [
    "memory that is allocated on a captured stream",
    inGraph(({ host }) => host.mallocAsync()),
    /^memory is allocated on a stream that is captured\n$/,
    ({ host }) => host.mallocAsync(),
  ],
  [
    "memory that is freed on a captured stream",
    (stage) => {
      let refusal: unknown;
      stage.capture(() => {
        try {
          stage.host.freeNow();
        } catch (error) {
          refusal = error;
        }
      });
      assert.ok(refusal instanceof NativeError);
    },
    /^memory is freed on a stream that is captured, which no node of it allocates\n$/,
    ({ host }) => host.mallocAsync(),
  ],
  [
    "an event from before a capture waited for in it",
    (stage) => {
      const { wait } = stage.mark();
      stage.capture(() => {
        stage.order();
        wait();
      });
    },
    /^stream \d waits in a capture for an event from before it\n$/,
    inGraph(({ order, join }) => {
      order();
      join();
    }),
  ],
  [
    "an event of a capture waited for after it",
    (stage) => {
      let wait = (): void => {};
      stage.capture(() => wait = stage.mark().wait);
      wait();
    },
    /^stream \d waits for an event of a capture that has ended\n$/,
    (stage) => {
      stage.capture(() => stage.launch("write", stage.first))();
      stage.mark().wait();
    },
  ],
];

await playMistakes(MISTAKES);
