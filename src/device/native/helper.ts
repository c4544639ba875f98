/**
 * The Worker of a helper: opens the library of its pool's kernels, and stays in a call of it until the pool ends.
 *
 * @module
 */
import { InternalError } from "../../errors.ts";
import { openProvider } from "../../ffi/mod.ts";
import { givenData } from "../../runtime/background_worker.ts";
import { HELPER } from "./library.ts";

export interface HelperData {
  /** The library's file. */
  readonly path: string;
  /** Address of the helper's pool. */
  readonly pool: number;
}

function isHelperData(data: unknown): data is HelperData {
  return typeof data === "object" && data !== null && "path" in data && "pool" in data;
}

const data = givenData();
if (!isHelperData(data)) throw new InternalError("a helper was started without its pool");
const provider = await openProvider();
const { symbols } = provider.load("native kernels", data.path, HELPER);
symbols.pool_work(provider.offset(provider.nullAddress, data.pool));
