/**
 * Buffers in PyTorch's sense: tensors that belong to a module and to its checkpoints, but are not trained, sharded or cast.
 *
 * @module
 */
import type { MemoryKind } from "../device/allocator.ts";
import { Buffer } from "../device/buffer.ts";
import { type Device, requireDevice } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import { denseLayout, numelOf, requireShape, type Shape } from "../shape.ts";
import { Tensor } from "./tensor.ts";

/** Options of a buffer. */
export interface BufferOptions {
  /** Initial value of every element. @default 0 */
  readonly value?: number;
  /** Keeps the buffer in checkpoints. @default true */
  readonly persistent?: boolean;
  /** Kind of its memory. @default parameters */
  readonly kind?: MemoryKind;
}

/** The memory of modules' buffers. */
const MODULE_BUFFERS: WeakSet<Buffer> = new WeakSet();

/** True if a tensor is a module's buffer, or a view of one. */
export function isOfBuffer({ buffer }: Tensor): boolean {
  return MODULE_BUFFERS.has(buffer);
}

/** A float32 tensor of a module that is not trained. It has no memory until it is initialized or loaded. */
export class BufferTensor extends Tensor {
  /** Fully qualified name from the root module; given when the root is built. */
  fqn: string = "buffer";
  /** Initial value of every element. */
  readonly value: number;
  /** True if checkpoints hold the buffer. */
  readonly persistent: boolean;

  /** Makes the tensor, without memory. */
  constructor(device: Device, shape: Shape, options: BufferOptions = {}) {
    requireDevice("make a BufferTensor", device);
    requireShape("BufferTensor", shape);
    const { kind = "parameters" } = options;
    super(Buffer.empty(device, numelOf(shape) * float32.byteLength, "buffer", kind), denseLayout(shape), float32);
    MODULE_BUFFERS.add(this.buffer);
    this.value = options.value ?? 0;
    this.persistent = options.persistent ?? true;
  }

  /** Names the buffer and its memory, for messages. */
  rename(fqn: string): void {
    this.fqn = fqn;
    this.buffer.owner = fqn;
  }

  /** Allocates its memory, uninitialized, unless it has memory. */
  materialize(): void {
    if (!this.buffer.hasMemory) this.buffer.allocateMemory();
  }

  /** Frees its memory, and so drops its values. */
  vacate(): void {
    this.buffer.freeMemory();
  }
}
