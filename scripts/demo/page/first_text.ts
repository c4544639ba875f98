/**
 * The text that the page begins with.
 *
 * @module
 */

/** A text of the project's own, short enough to be learned in some seconds. */
export const FIRST_TEXT: string =
  `A rank is a worker that trains. It keeps a part of the model and reads a part of the text.
When it needs a block, it asks the others for their parts, and the block is whole.
When the block is done, it lets the parts of the others go, and keeps its own.
On the way back it gathers the block once more, and the gradients meet.
Each rank adds what the others found, and changes its own part alone.
So no rank ever holds the whole model, and yet the whole model learns.
One rank can do this alone, and two can do it in half the memory.
Four ranks keep a quarter each, and eight ranks keep an eighth.
The losses are the same for every way to keep the parts, to the last bit.
If a rank is lost, the others say so, and the work goes on from what was saved.
`.repeat(2);
