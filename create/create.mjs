#!/usr/bin/env node
/**
 * `npm create fullyshard`: the command `fullyshard init`, with the same arguments.
 *
 * @module
 */

import process from "node:process";

process.argv.splice(2, 0, "init");
await import(new URL("bin/fullyshard.mjs", import.meta.resolve("fullyshard/package.json")).href);
