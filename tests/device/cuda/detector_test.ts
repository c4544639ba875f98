/**
 * The double of the CUDA runtime finds mistakes: each one here is one that a device or a kernel might have, beside the same without it.
 *
 * @module
 */
import { type Mistake, playMistakes } from "./detector_stage.ts";

const MISTAKES: readonly Mistake[] = [
  [
    "two streams without an event between them",
    ({ launch, first, second, order }) => {
      order();
      launch("write", first);
      launch("read", second);
    },
    /'run_read' on stream \d (reads|writes) byte 0 of a block of 1024, which 'run_write' on stream \d writes, with no event/,
    ({ launch, first, second, order }) => {
      launch("write", first);
      order();
      launch("read", second);
    },
  ],
  [
    "memory used on another stream before it was given out",
    ({ launch, second }) => launch("write", second),
    /'run_write' on stream \d uses a block of 1024 bytes before it was given out there/,
    ({ launch, second, order }) => {
      order();
      launch("write", second);
    },
  ],
  [
    "memory used after it was freed",
    ({ launch, first, free }) => {
      free(first);
      launch("write", first);
    },
    /uses a block after it was freed: 1024 bytes|outside of any block/,
    ({ launch, first, free }) => {
      launch("write", first);
      free(first);
    },
  ],
  [
    "memory freed while another stream uses it",
    ({ launch, first, second, order, free }) => {
      order();
      launch("write", second);
      free(first);
    },
    /may use a block while it is freed: 1024 bytes|before it was given out there|outside of any block/,
    ({ launch, first, second, order, free }) => {
      launch("write", first);
      order();
      free(second);
    },
  ],
  [
    "an event waited for before it is recorded",
    ({ waitForNothing }) => waitForNothing(),
    /^stream \d waits for an event that was never recorded\n$/,
    ({ order }) => order(),
  ],
  [
    "memory outside of a block",
    ({ launch, first }) => launch("beyond", first, 2),
    /'run_beyond' on stream \d writes 4 bytes outside of any block/,
    ({ launch, first }) => launch("write", first, 2),
  ],
  [
    "a missing barrier between writes and reads of shared memory",
    ({ launch, first }) => (launch("write", first), launch("reverseAtOnce", first)),
    /'run_reverseAtOnce': threads \d+ and \d+ touch the same shared memory, with no barrier/,
    ({ launch, first }) => (launch("write", first), launch("reverse", first)),
  ],
  [
    "a missing barrier between reads and writes of device memory",
    ({ launch, first }) => (launch("write", first), launch("rotateAtOnce", first)),
    /'run_rotateAtOnce' on stream \d: a thread (reads|writes) byte \d+ of a block of 1024, which another one (reads|writes), with no barrier/,
    ({ launch, first }) => (launch("write", first), launch("rotate", first)),
  ],
  [
    "a missing barrier of a warp",
    ({ launch, first }) => (launch("write", first), launch("warpAtOnce", first)),
    /'run_warpAtOnce': threads \d+ and \d+ touch the same shared memory/,
    ({ launch, first }) => (launch("write", first), launch("warp", first)),
  ],
  [
    "the same element written by two blocks",
    ({ launch, first }) => launch("all", first, 2),
    /'run_all' on stream \d: a thread writes byte 0 of a block of 1024, which another one writes/,
    ({ launch, first }) => launch("all", first),
  ],
  [
    "a copy to shared memory that is not waited for",
    ({ launch, first }) => (launch("write", first), launch("copyAtOnce", first)),
    /'run_copyAtOnce': thread \d+ touches shared memory to which a copy is under way/,
    ({ launch, first }) => (launch("write", first), launch("copy", first)),
  ],
  [
    "a wait for all copies but those that are read",
    ({ launch, first }) => (launch("write", first), launch("copyTooFew", first)),
    /'run_copyTooFew': thread \d+ touches shared memory to which a copy is under way/,
    ({ launch, first }) => (launch("write", first), launch("copy", first)),
  ],
  [
    "a missing barrier between copies to shared memory and reads",
    ({ launch, first }) => (launch("write", first), launch("copyApart", first)),
    /'run_copyApart': threads \d+ and \d+ touch the same shared memory, with no barrier/,
    ({ launch, first }) => (launch("write", first), launch("copy", first)),
  ],
  [
    "a copy to shared memory that others may still read",
    ({ launch, first }) => (launch("write", first), launch("copyOver", first)),
    /'run_copyOver': threads \d+ and \d+ touch the same shared memory, with no barrier/,
    ({ launch, first }) => (launch("write", first), launch("copy", first)),
  ],
  [
    "a copy to shared memory that nobody waits for",
    ({ launch, first }) => (launch("write", first), launch("copyForNobody", first)),
    /'run_copyForNobody': a thread ends with copies to shared memory under way/,
    ({ launch, first }) => (launch("write", first), launch("copy", first)),
  ],
  [
    "a missing barrier between writes and matrices of shared memory",
    ({ launch, first }) => (launch("write", first), launch("matricesAtOnce", first)),
    /'run_matricesAtOnce': threads \d+ and \d+ touch the same shared memory, with no barrier/,
    ({ launch, first }) => (launch("write", first), launch("matrices", first)),
  ],
  [
    "a row of a matrix that does not begin on a multiple of 16 bytes",
    ({ launch, first }) => (launch("write", first), launch("matricesAside", first)),
    /'run_matricesAside': 16 bytes of shared memory are not on a multiple of that/,
    ({ launch, first }) => (launch("write", first), launch("matrices", first)),
  ],
  [
    "a shuffle taken for a barrier of a warp",
    ({ launch, first }) => (launch("write", first), launch("shuffled", first)),
    /'run_shuffled': threads \d+ and \d+ touch the same shared memory/,
    ({ launch, first }) => (launch("write", first), launch("warp", first)),
  ],
  [
    "lanes of a warp at different operations",
    ({ launch, first }) => (launch("write", first), launch("uneven", first)),
    /'run_uneven': lanes of a warp are at different operations/,
    ({ launch, first }) => (launch("write", first), launch("matrices", first)),
  ],
  [
    "shared memory that the launch did not ask for",
    ({ launch, first }) => launch("beyondShared", first),
    /'run_beyondShared': thread \d+ touches shared memory that the block does not have/,
    ({ launch, first }) => launch("write", first),
  ],
  [
    "threads of a block at different barriers",
    ({ launch, first }) => launch("apart", first),
    /'run_apart': threads of a block are at barriers of lines \d+ and \d+/,
    ({ launch, first }) => launch("reverse", first),
  ],
];

await playMistakes(MISTAKES);
