/**
 * Builds the site into a folder, and serves it to this machine if it is asked to.
 *
 * Usage: npm run site -- [FOLDER] [--serve PORT]     (FOLDER is .cache/site unless given)
 *
 * @module
 */
import process from "node:process";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { buildSite } from "./build.ts";
import { serveSite } from "./serve.ts";

const { values: { serve }, positionals: [folder = fileURLToPath(new URL("../../.cache/site", import.meta.url))] } =
  parseArgs({ options: { serve: { type: "string" } }, allowPositionals: true });
const { pages, bytes } = await buildSite(folder);
process.stdout.write(`${folder}: ${pages} pages, ${(bytes / 2 ** 20).toFixed(1)} MiB\n`);
if (serve !== undefined) {
  const { port } = await serveSite(folder, Number(serve));
  process.stdout.write(`http://127.0.0.1:${port}/\n`);
}
