/**
 * The code that the ranks of the tests of communication run.
 *
 * @module
 */
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import process from "node:process";
import { deviceMesh, type MeshShape } from "../../src/comm/mesh.ts";
import { devicePtr } from "../../src/device/device.ts";
import { bfloat16, float32 } from "../../src/dtype.ts";
import { NativeError } from "../../src/errors.ts";
import { Posix } from "../../src/ffi/posix.ts";
import { sleep } from "../conformance/values.ts";
import { failAllocation } from "../support/failing_memory.ts";
import { messageOf } from "../support/message.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** The place of a rank in a mesh. */
export interface MeshPlace {
  readonly coordinate: readonly number[];
  /** World ranks of each axis. */
  readonly axes: readonly (readonly number[])[];
  /** Sum of ranks over each axis. */
  readonly sums: readonly (number | undefined)[];
  /** The properties of each axis' group. */
  readonly names: readonly (string | undefined)[];
}

/** The steps of a rank, in order. */
export type Order = "reduce" | "sleep" | "doze" | "hang" | "throw" | "window";

/** The failure on rank 1: it cannot make its own part, or cannot open the part of another rank. */
export type Refusal = "large window" | "closed window" | "large group" | "closed group";

function refuse(call: string, code: string): never {
  throw new NativeError("libc", call, 0, "on purpose", code);
}

/** The files and memory that this process holds in the shared-memory directory and on its device. */
function holdings(directory: string, bytes: number): string {
  const descriptors = readdirSync("/proc/self/fd").filter((name) => {
    try {
      return readlinkSync(`/proc/self/fd/${name}`).startsWith(directory);
    } catch {
      return false; // the one that lists them
    }
  });
  const maps = readFileSync("/proc/self/maps", "utf8").split("\n").filter((line) => line.includes(directory));
  const files = readdirSync(directory).filter((name) => !name.includes("lock-"));
  return JSON.stringify({ bytes, descriptors: descriptors.length, maps: maps.length, files });
}

/** Lays a mesh. */
export function placeInMesh({ group }: WorldRank, shape: MeshShape): MeshPlace {
  const mesh = deviceMesh(group, shape);
  const axes = mesh.axes.map((name) => mesh.axis(name));
  return {
    coordinate: mesh.coordinate,
    axes: axes.map(({ worldRanks }) => worldRanks),
    sums: axes.map((axis) => axis.sum([group.rank], "ranks")[0]),
    names: axes.map((axis) => axis.mesh?.mesh === mesh ? axis.mesh.axis : undefined),
  };
}

/** The outcome of making many meshes. */
export interface MeshesReport {
  readonly equal: boolean;
  readonly anew: boolean;
  readonly sums: readonly (number | undefined)[];
  /** The error where there is no room for another group. */
  readonly refused: string;
  /** True if a mesh that lacked room for its second axis gave back the room of its first. */
  readonly room: boolean;
}

/** Makes meshes again and again, loses one, and makes others until there is no room. Between Workers. */
export function meshesAndGroups({ group }: WorldRank): MeshesReport {
  const square: MeshShape = { replicate: 2, shard: 2 };
  const first = deviceMesh(group, square);
  const equal = Array.from({ length: 40 }, () => deviceMesh(group, square)).every((mesh) => mesh === first);
  const sums = first.axes.map((axis) => first.axis(axis).sum([1], "ranks")[0]);
  first.axis("shard").dispose();
  group.barrier("disposed");
  const second = deviceMesh(group, square);
  const anew = second !== first && second.axis("shard").sum([1], "ranks")[0] === 2;
  if (group.kind === "shm") return { equal, anew, sums, refused: "", room: true };
  // The world, two axes that are there, another group, and one place that is left for the first axis.
  const all = group.split([0, 1, 2, 3], "all");
  const held = Array.from({ length: 11 }, (_, i) => group.split([group.rank], `own ${i}`));
  const refused = messageOf(() => deviceMesh(all, { x: 2, y: 2 }));
  group.barrier("refused");
  const room = messageOf(() => group.split([group.rank], "last")) === "" && held.length === 11;
  return { equal, anew, sums, refused, room };
}

/** Sums and scatters whose staging finds no memory the first time, on all ranks, and what comes of them the second time. */
export function sumWithoutMemory({ group, device }: WorldRank): readonly string[] {
  const { allocator } = device;
  const n = 3072 * group.size; // as many on each rank, so that all lack memory or none
  const ptr = allocator.allocate(4 * n, "test");
  const slices = group.worldRanks.map((rank) => ({ offset: rank * 3072, length: 3072 }));
  const own = devicePtr(ptr + group.rank * 3072 * 4);
  const calls = {
    small: () => group.allReduce(ptr, 8, float32, { unit: "small" }).wait(),
    largest: () => group.allReduce(ptr, 16, float32, { unit: "largest", op: "max" }).wait(),
    scattered: () =>
      group.reduceScatter(
        { src: ptr, dtype: float32, slices, dst: own, dstDtype: float32, accumulate: false },
        "scattered",
      ).wait(),
    large: () => group.allReduce(ptr, n, float32, { unit: "large" }).wait(),
  };
  return Object.entries(calls).map(([name, call]) => {
    device.copyIn(ptr, new Uint8Array(new Float32Array(n).fill(group.rank + 1).buffer));
    const faults: string[] = [];
    for (let place = 0; place < 20; place++) {
      using failing = failAllocation([allocator], place);
      const error = messageOf(call);
      device.copyIn(ptr, new Uint8Array(new Float32Array(n).fill(group.rank + 1).buffer));
      if (error === "") {
        if (failing.count > place) faults.push("not all failed");
        break;
      }
      if (!error.includes("injected")) faults.push(error);
    }
    call();
    const values = new Float32Array(1);
    device.copyOut(new Uint8Array(values.buffer), name === "scattered" ? own : ptr);
    return [name, ...faults, ...values].join(" ");
  });
}

/** Does what it is ordered. */
export function obey({ group, device, rank }: WorldRank, orders: readonly (readonly Order[])[]): string {
  const ptr = device.allocator.allocate(4096, "test");
  for (const order of orders[rank] ?? []) {
    if (order === "reduce") group.allReduce(ptr, 1000, float32, { unit: "layers.3", phase: "backward" }).wait();
    else if (order === "window") group.openWindow(new Array(group.size).fill(2 ** 44), "embedding");
    else if (order === "throw") throw new Error("out of coffee");
    else sleep(order === "sleep" ? 1000 : order === "doze" ? 100 : 2 ** 31 - 1);
  }
  return "well";
}

/** Ends without a word, as a rank does whose script exits; the others wait for it. */
export function exit({ group, rank }: WorldRank, who: number): void {
  if (rank === who) process.exit(7);
  group.barrier("after");
}

/** Before a rank joins: there is room for little more than nothing in the shared-memory directory. */
export function fillDirectory({ rank }: { readonly rank: number }): void {
  const { reserve } = Posix.prototype;
  Posix.prototype.reserve = function (descriptor, byteLength, begin = 0): void {
    if (rank === 0 && byteLength > 10_000) refuse("posix_fallocate", "ENOSPC");
    reserve.call(this, descriptor, byteLength, begin);
  };
}

/** Does what must fail on all ranks; returns what is left of it, and the failure. */
export function undo({ group, device }: WorldRank, { directory, what }: { directory: string; what: Refusal }): string {
  const before = holdings(directory, device.allocator.stats.inUse);
  group.barrier("all know what they had");
  const { mapShared, reserve } = Posix.prototype;
  if (group.rank === 1 && what.startsWith("closed")) Posix.prototype.mapShared = () => refuse("mmap", "ENOMEM");
  if (group.rank === 1 && what === "large group") Posix.prototype.reserve = () => refuse("posix_fallocate", "EIO");
  let failure = "none";
  try {
    // The device has 64 MiB: there is room for the second part outside it only.
    if (what.endsWith("window")) group.openWindow([2 ** 20, what === "large window" ? 2 ** 26 : 2 ** 20], "embedding");
    else group.split(what === "large group" ? [group.rank] : [0, 1], "shard");
  } catch (error) {
    failure = String(error);
  }
  Object.assign(Posix.prototype, { mapShared, reserve });
  group.barrier("all have undone it");
  const after = holdings(directory, device.allocator.stats.inUse);
  group.barrier("all have looked");
  const [sum] = group.sum([1], "it goes on");
  return `${after === before ? "nothing left" : `${before} became ${after}`}; ${failure}; ${sum}`;
}

/** Makes every kind of call; returns what each left of memory and where it put things. */
export function exercise({ group, device }: Pick<WorldRank, "group" | "device">): readonly string[] {
  const { rank, size } = group;
  const ranks = Array.from({ length: size }, (_, r) => r);
  const found: string[] = [];
  const note = (what: string, ...pointers: readonly number[]): void => {
    const { inUse, peak } = device.allocator.stats;
    found.push(`${what}: ${inUse} in use, at most ${peak}, at ${pointers.join(", ")}`);
  };
  const memory = device.allocator.allocate(2 ** 23, "test");
  const dst = device.allocator.allocate(2 ** 22, "test");
  using scale = device.scalars.make(0.5);
  note("opened", memory, dst, group.stagingBytes);
  for (const bytes of [0, 100, 5000, 1_000_000]) {
    const window = group.openWindow(ranks.map((r) => r === 1 ? 0 : bytes), "unit");
    note(`window of ${bytes}`, window.pointer);
    window.beginWrite("unit");
    window.endWrite();
    window.gather(dst, ranks.map((r) => r * bytes), "unit", "forward");
    if (bytes !== 5000) window.dispose();
    note(`disposed ${bytes}`);
  }
  for (const [n, dtype] of [[10, float32], [3000, bfloat16], [400_000, float32], [700_000, bfloat16]] as const) {
    group.allReduce(memory, n, dtype, { unit: "sum" });
    note(`sum of ${n}`);
    group.allReduce(memory, n, dtype, { op: "max", unit: "max" });
    note(`max of ${n}`);
    const slices = ranks.map((r) => ({ offset: r * n, length: r === 0 ? 0 : n }));
    const args = { src: memory, dtype, slices, dst, dstDtype: float32, scale, accumulate: n > 3000 };
    if (n < 400_000) group.reduceScatter(args, "unit", "backward");
    note(`reduce-scatter of ${n}`);
  }
  group.allGather(dst, memory, 1000, "all");
  group.broadcast(memory, 5000, size - 1, "one");
  const [next, previous] = [(rank + 1) % size, (rank + size - 1) % size];
  if (size > 1) {
    group.transfer([
      { kind: "send", ptr: memory, byteLength: 7000, peer: next },
      { kind: "receive", ptr: dst, byteLength: 7000, peer: previous },
    ], "keys");
  }
  note("moved");
  const half = ranks.filter((r) => r % 2 === rank % 2);
  const child = group.split(half, "half");
  note("split", child.stagingBytes);
  child.allReduce(memory, 100_000, float32, { unit: "sum" });
  const window = child.openWindow(half.map(() => 300), "unit");
  note("in the half", window.pointer);
  window.dispose();
  child.dispose();
  note("end");
  return found;
}

rankFunctions(import.meta.url, {
  placeInMesh,
  meshesAndGroups,
  sumWithoutMemory,
  obey,
  exit,
  fillDirectory,
  undo,
  exercise,
});
