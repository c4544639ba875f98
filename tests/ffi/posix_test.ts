/**
 * Shared memory, locks, futexes and the rest of what is built on the C library. Needs Linux.
 *
 * @module
 */
import assert from "node:assert/strict";
import { before, describe, it } from "node:test";
import { NativeError, UnsupportedError } from "../../src/errors.ts";
import type { Posix } from "../../src/ffi/posix.ts";
import { openPosix } from "../../src/ffi/posix.ts";
import { Posix as PosixClass } from "../../src/ffi/posix.ts";
import { processId } from "../../src/runtime/processes.ts";

let posix: Posix;
let counter = 0;
before(async () => {
  posix = await openPosix();
});

function freshPath(): string {
  return `/dev/shm/fullyshard-test-${processId()}-${counter++}`;
}

/** A file of size 0 that has no name any more. */
function nameless(): number {
  const path = freshPath();
  const descriptor = posix.createFile(path);
  assert.ok(posix.unlink(path));
  return descriptor;
}

/** The C library with a call that fails, the first times, with an error number. */
function failing(call: "posix_fallocate" | "tryOpen" | "flock", times: number, code: string): PosixClass {
  let left = times;
  const { symbols } = posix.libc;
  const fail = (): void => {
    if (left-- > 0) throw new NativeError("libc", call, 4, "on purpose", code);
  };
  const replaced = {
    ...symbols,
    posix_fallocate: (...args: Parameters<typeof symbols.posix_fallocate>): void => {
      if (call === "posix_fallocate") fail();
      symbols.posix_fallocate(...args);
    },
    tryOpen: (...args: Parameters<typeof symbols.tryOpen>): number => {
      if (call === "tryOpen") fail();
      return symbols.tryOpen(...args);
    },
    flock: (...args: Parameters<typeof symbols.flock>): number => {
      if (call === "flock") fail();
      return symbols.flock(...args);
    },
  };
  return new PosixClass({ ...posix.libc, symbols: replaced, close: () => {} });
}

describe("Posix", () => {
  it("mapSharedAt() puts a shared segment into WASM memory", () => {
    const descriptor = nameless();
    const byteLength = 4 * posix.pageBytes;
    posix.reserve(descriptor, byteLength);

    const memory = new WebAssembly.Memory({ initial: 16, maximum: 16 });
    const offset = 65536;
    const mine = new Int32Array(memory.buffer, offset, byteLength / 4);
    mine.fill(5);
    const place = posix.provider.offset(posix.provider.addressOf(memory.buffer), offset);
    posix.mapSharedAt(place, descriptor, byteLength);
    assert.equal(mine[0], 0, "the segment's zeros are seen, not what was there");
    new Int32Array(memory.buffer, offset + byteLength, 1)[0] = 77; // the byte behind it stays private

    const peer = posix.mapShared(descriptor, byteLength);
    const theirs = new Int32Array(posix.provider.viewOf(peer, byteLength));
    mine[3] = 42;
    assert.equal(theirs[3], 42);
    Atomics.add(theirs, 3, 1);
    assert.equal(Atomics.load(mine, 3), 43);
    posix.libc.symbols.memcpy(posix.provider.offset(place, 64), peer, 16);
    assert.equal(theirs[16 + 3], 43);

    posix.mapPrivateAt(place, byteLength);
    assert.equal(mine[3], 0);
    mine[3] = 1;
    assert.equal(theirs[3], 43);
    assert.equal(new Int32Array(memory.buffer, offset + byteLength, 1)[0], 77);
    posix.unmap(peer, byteLength);
    posix.close(descriptor);
  });

  it("mapShared() maps a part, and read-only", () => {
    const descriptor = nameless();
    posix.reserve(descriptor, 2 * posix.pageBytes);
    const all = posix.mapShared(descriptor, 2 * posix.pageBytes);
    const second = posix.mapShared(descriptor, posix.pageBytes, "read", posix.pageBytes);
    new Uint8Array(posix.provider.viewOf(all, 2 * posix.pageBytes))[posix.pageBytes] = 9;
    assert.equal(new Uint8Array(posix.provider.viewOf(second, 1))[0], 9);
    posix.unmap(all, 2 * posix.pageBytes);
    posix.unmap(second, posix.pageBytes);
    posix.close(descriptor);
  });

  it("mapSharedAt() refuses an address inside a page", () => {
    const descriptor = nameless();
    posix.reserve(descriptor, posix.pageBytes);
    const memory = new WebAssembly.Memory({ initial: 1, maximum: 1 });
    const inside = posix.provider.offset(posix.provider.addressOf(memory.buffer), 8);
    assert.throws(() => posix.mapSharedAt(inside, descriptor, posix.pageBytes), { code: "EINVAL" });
    posix.close(descriptor);
  });

  it("reserve() reports a lack of room as ENOSPC", () => {
    const path = freshPath();
    const descriptor = posix.createFile(path);
    posix.unlink(path);
    const { totalBytes } = posix.spaceAt("/dev/shm");
    assert.throws(() => posix.reserve(descriptor, 2 * totalBytes), (error) => {
      assert.ok(error instanceof NativeError);
      assert.equal(error.code, "ENOSPC");
      assert.match(error.message, new RegExp(`posix_fallocate\\(${descriptor}, 0, ${2 * totalBytes}\\)`));
      return true;
    });
    posix.close(descriptor);
  });

  it("makes a call again that a signal interrupted, and no other", () => {
    const descriptor = nameless();
    failing("posix_fallocate", 3, "EINTR").reserve(descriptor, 3 * posix.pageBytes);
    const part = posix.mapShared(descriptor, 3 * posix.pageBytes);
    new Uint8Array(posix.provider.viewOf(part, 3 * posix.pageBytes))[3 * posix.pageBytes - 1] = 1; // no SIGBUS
    posix.unmap(part, 3 * posix.pageBytes);
    assert.equal(failing("flock", 2, "EINTR").tryLock(descriptor, "exclusive"), true);
    assert.equal(failing("tryOpen", 2, "EINTR").openFile("/nonexistent", "read"), undefined);
    assert.throws(() => failing("posix_fallocate", 1, "EIO").reserve(descriptor, 1), { code: "EIO" });
    posix.close(descriptor);
  });

  it("createFile() refuses a name that exists, openFile() tells one that does not", () => {
    const path = freshPath();
    assert.equal(posix.openFile(path, "read"), undefined);
    const descriptor = posix.createFile(path);
    assert.throws(() => posix.createFile(path), { code: "EEXIST" });
    const again = posix.openFile(path, "readWrite");
    assert.notEqual(again, undefined);
    const third = posix.openFile(path, "readWrite") ?? assert.fail();
    assert.ok(posix.listDirectory("/dev/shm").includes(path.slice("/dev/shm/".length)));
    for (const open of [descriptor, again, third]) if (open !== undefined) posix.close(open);
    assert.equal(posix.unlink(path), true);
    assert.equal(posix.unlink(path), false);
    assert.deepEqual(posix.listDirectory("/dev/shm/nonexistent"), []);
    assert.throws(() => posix.close(descriptor), { code: "EBADF" });
  });

  it("tryLock() tells whether another opening holds the lock", () => {
    const path = freshPath();
    const first = posix.createFile(path);
    const second = posix.openFile(path, "readWrite") ?? assert.fail();
    assert.equal(posix.tryLock(first, "exclusive"), true);
    assert.equal(posix.tryLock(second, "exclusive"), false);
    assert.equal(posix.tryLock(second, "shared"), false);
    posix.unlock(first);
    assert.equal(posix.tryLock(second, "shared"), true);
    assert.equal(posix.tryLock(first, "shared"), true);
    assert.equal(posix.tryLock(first, "exclusive"), false);
    posix.close(second); // closing gives the lock back
    assert.equal(posix.tryLock(first, "exclusive"), true);
    posix.close(first);
    posix.unlink(path);
  });

  it("futexWait() tells a changed word from a wait that timed out", () => {
    const descriptor = nameless();
    posix.reserve(descriptor, posix.pageBytes);
    const word = posix.mapShared(descriptor, posix.pageBytes);
    const view = new Int32Array(posix.provider.viewOf(word, 4));
    view[0] = -5;
    assert.equal(posix.futexWait(word, -4, 1000), "changed");
    assert.equal(posix.futexWait(word, -5, 2), "timeout");
    assert.equal(posix.futexWait(word, -5, 0), "timeout");
    assert.equal(posix.futexWake(word, 8), 0);
    posix.unmap(word, posix.pageBytes);
    posix.close(descriptor);
  });

  it("futexWake() wakes a waiter in another thread", async () => {
    const descriptor = nameless();
    posix.reserve(descriptor, posix.pageBytes);
    const word = posix.mapShared(descriptor, posix.pageBytes);
    const view = new Int32Array(posix.provider.viewOf(word, 8));
    const worker = new Worker(new URL("./scripts/futex_waiter.ts", import.meta.url), { type: "module" });
    const answer = new Promise<unknown>((resolve, reject) => {
      worker.onmessage = (event: MessageEvent): void => resolve(event.data);
      worker.onerror = (event: ErrorEvent): void => reject(new Error(event.message));
    });
    worker.postMessage(descriptor);
    // The waiter says in the second word that it is about to sleep; then it is woken until a wake finds it asleep.
    const deadline = performance.now() + 20_000;
    let woken = 0;
    while (woken === 0) {
      assert.ok(performance.now() < deadline, "the waiter did not go to sleep");
      await new Promise((resolve) => setTimeout(resolve, 1));
      if (Atomics.load(view, 1) === 1) woken = posix.futexWake(word, 1);
    }
    assert.equal(woken, 1);
    assert.equal(await answer, "woken");
    worker.terminate();
    posix.unmap(word, posix.pageBytes);
    posix.close(descriptor);
  });

  it("affinity() lists cores", () => {
    const cores = posix.affinity();
    assert.ok(cores.length > 0 && cores.every((core) => Number.isInteger(core) && core >= 0));
  });

  it("setVariable() is seen by C code", () => {
    const name = "FULLYSHARD_TEST_VARIABLE";
    assert.equal(posix.variable(name), undefined);
    posix.setVariable(name, "zwölf");
    assert.equal(posix.variable(name), "zwölf");
    posix.libc.symbols.unsetenv(name);
    assert.equal(posix.variable(name), undefined);
  });

  it("readFile() reads what has no size, and spaceAt() measures", () => {
    const status = new TextDecoder().decode(posix.readFile("/proc/self/status"));
    assert.match(status, new RegExp(`^Pid:\\s+${processId()}$`, "m"));
    assert.equal(posix.readFile("/proc/self/nothing"), undefined);
    const { freeBytes, totalBytes } = posix.spaceAt("/dev/shm");
    assert.ok(totalBytes > 0 && freeBytes <= totalBytes);
    assert.throws(() => posix.spaceAt("/nonexistent"), { code: "ENOENT" });
  });

  it("is refused on a platform other than Linux", () => {
    assert.throws(() => new PosixClass(posix.libc, { os: "darwin", arch: "arm64" }), UnsupportedError);
    assert.throws(() => new PosixClass(posix.libc, { os: "linux", arch: "riscv64" }), UnsupportedError);
  });
});
