/**
 * Buffers in PyTorch's sense: tensors that belong to a module and to its checkpoints, but are not trained, sharded or cast.
 *
 * @module
 */
import type { MemoryKind } from "../device/allocator.ts";
import { Buffer } from "../device/buffer.ts";
import type { Device } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import { denseLayout, numelOf, type Shape } from "../shape.ts";
import { Tensor } from "./tensor.ts";

/** Options of a buffer. */
export interface BufferOptions {
  /** What every element begins as. @default 0 */
  readonly value?: number;
  /** Whether checkpoints hold the buffer. @default true */
  readonly persistent?: boolean;
  /** What its memory is counted as. @default parameters */
  readonly kind?: MemoryKind;
}

/** The memory of modules' buffers. */
const MODULE_BUFFERS: WeakSet<Buffer> = new WeakSet();

/** Whether a tensor is a module's buffer, or a view of one. */
export function isOfBuffer({ buffer }: Tensor): boolean {
  return MODULE_BUFFERS.has(buffer);
}

/** A float32 tensor of a module that is not trained. It has no memory until it is initialized or loaded. */
export class BufferTensor extends Tensor {
  /** Fully qualified name from the root module; given when the root is built. */
  fqn: string = "buffer";
  /** What every element begins as. */
  readonly value: number;
  /** Whether checkpoints hold it. */
  readonly persistent: boolean;

  /** Makes the tensor, without memory. */
  constructor(device: Device, shape: Shape, options: BufferOptions = {}) {
    const { kind = "parameters" } = options;
    super(Buffer.empty(device, numelOf(shape) * float32.byteLength, "buffer", kind), denseLayout(shape), float32);
    MODULE_BUFFERS.add(this.buffer);
    this.value = options.value ?? 0;
    this.persistent = options.persistent ?? true;
  }

  /** Names it, and its memory, for messages. */
  rename(fqn: string): void {
    this.fqn = fqn;
    this.buffer.owner = fqn;
  }

  /** Gives it its memory, uninitialized; does nothing when it has it. */
  materialize(): void {
    if (!this.buffer.attached) this.buffer.attach();
  }

  /** Gives its memory back, with its values. */
  vacate(): void {
    this.buffer.detach();
  }
}
