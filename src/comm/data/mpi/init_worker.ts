/** The Worker that initializes MPI, while the thread of the rank answers what the library asks (`without_launcher.ts`). @module */
import { openMpiLibrary } from "./library.ts";
import { initialize } from "./process.ts";

initialize(await openMpiLibrary(undefined, "mpich"), "serialized");
