/** A Worker that ends after a moment. @module */
import { sleep } from "../../../src/runtime/clock.ts";

await sleep(500);
