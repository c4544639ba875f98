/** Memory that runs out at a chosen allocation. @module */
import type { Allocator } from "../../src/device/allocator.ts";
import { OutOfMemoryError } from "../../src/errors.ts";

/** Allocations that are counted, of which one fails. */
export interface FailingMemory extends Disposable {
  /** Allocations so far, the failed one included. */
  readonly count: number;
}

/** Counts allocations from now on, of those owners that are wanted, and fails the one at a place; ends with the object. */
export function failAllocation(
  allocators: readonly Allocator[],
  place: number,
  isWanted: (owner: string) => boolean = () => true,
): FailingMemory {
  let count = 0;
  for (const allocator of allocators) {
    const allocate = allocator.allocate.bind(allocator);
    const value = (...args: Parameters<typeof allocate>): ReturnType<typeof allocate> => {
      const [bytes, owner] = args;
      if (!isWanted(owner) || count++ !== place) return allocate(...args);
      throw new OutOfMemoryError("test memory", bytes, 0, 0, `injected at ${owner}`);
    };
    Object.defineProperty(allocator, "allocate", { configurable: true, value });
  }
  return {
    get count(): number {
      return count;
    },
    [Symbol.dispose]: () => {
      for (const allocator of allocators) Reflect.deleteProperty(allocator, "allocate");
    },
  };
}
