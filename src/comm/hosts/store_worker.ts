/**
 * The Worker of rank 0 that serves the store, so that it answers while rank 0 computes.
 *
 * @module
 */
import { InternalError } from "../../errors.ts";
import { openSockets } from "../../ffi/sockets.ts";
import { givenData } from "../../runtime/background_worker.ts";
import { Store, type StoreOptions } from "./store.ts";

function isOptions(data: unknown): data is StoreOptions {
  return typeof data === "object" && data !== null && "listener" in data && "worldSize" in data && "token" in data;
}

const options = givenData();
if (!isOptions(options)) throw new InternalError("The store's Worker got no options");
new Store(await openSockets(), options).serve();
