/** A card that is found passes the suite of devices; the tests of its double are beside this file. @module */
import { openDevice } from "../../../src/device/registry.ts";
import { LibraryNotFoundError, UnsupportedError } from "../../../src/errors.ts";
import { conformDevice } from "../../conformance/device.ts";

try {
  conformDevice("card of NVIDIA", await openDevice("cuda:0", { memoryBytes: 2 ** 30 }));
} catch (error) {
  if (!(error instanceof LibraryNotFoundError) && !(error instanceof UnsupportedError)) throw error;
  conformDevice("card of NVIDIA", undefined, "it needs a card");
}
