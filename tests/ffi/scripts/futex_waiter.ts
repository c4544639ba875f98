/**
 * A Worker of `posix_test.ts`: maps the segment of the descriptor it is sent and sleeps on its first word.
 *
 * @module
 */
import { openPosix } from "../../../src/ffi/posix.ts";

/** The part of a Worker's global scope in use. */
interface WorkerScope {
  postMessage(message: unknown): void;
  addEventListener(type: "message", listener: (event: MessageEvent) => void): void;
}

function isWorkerScope(scope: unknown): scope is WorkerScope {
  return typeof scope === "object" && scope !== null && "postMessage" in scope && "addEventListener" in scope;
}

const scope: unknown = globalThis;
if (!isWorkerScope(scope)) throw new Error("This script is for a Worker");

scope.addEventListener("message", async (event: MessageEvent) => {
  const posix = await openPosix();
  const word = posix.mapShared(Number(event.data), posix.pageBytes);
  Atomics.store(new Int32Array(posix.provider.viewOf(word, 8)), 1, 1);
  scope.postMessage(posix.futexWait(word, 0, 20_000));
  posix.unmap(word, posix.pageBytes);
});
