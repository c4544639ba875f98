/**
 * A Worker's own side, whose global object the DOM's types and Deno's describe differently.
 *
 * @module
 */
import { InternalError } from "../errors.ts";

/** The part of a Worker's global object that answers who started it. */
export interface WorkerScope {
  postMessage(message: unknown): void;
}

/** The global object of the Worker that this is. @throws {InternalError} outside a Worker */
export function workerScope(): WorkerScope {
  const scope: unknown = globalThis;
  if (isWorkerScope(scope)) return scope;
  throw new InternalError("What only a Worker does was called outside a Worker");
}

function isWorkerScope(scope: unknown): scope is WorkerScope {
  return typeof scope === "object" && scope !== null && "postMessage" in scope;
}
