/**
 * `fullyshard demo`: serves a page in which a model trains on several ranks, or writes its folder for another web server.
 *
 * @module
 */
import process from "node:process";
import { fileURLToPath } from "node:url";
import * as z from "zod";
import { type Flag, helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { section } from "../config/section.ts";
import { DEMO_FILES, ISOLATION_HEADERS, serveDemo } from "../demo/serve.ts";
import { ConfigError, FileError, UnsupportedError } from "../errors.ts";
import { makeDirectory, pathKind, readBytes, replaceFile } from "../runtime/files.ts";
import { LOOPBACK } from "../runtime/loopback_server.ts";
import { permissionRemedy } from "../runtime/permissions.ts";
import { watchStopSignals } from "../runtime/signals.ts";
import { terminal } from "../runtime/terminal.ts";
import { path } from "../train/config_values.ts";
import { shown } from "../words.ts";

const SECTIONS = [section(
  "demo",
  z.strictObject({
    port: z.int().min(0).max(65535).default(0).describe("Port of the loopback address; 0: any free one"),
    out: path.optional().describe("Folder to write the page to, for a web server of your own, instead of serving it"),
  }),
)] as const;

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(SECTIONS);

/** Places of the page's files: in the package, and in a checkout after its build. */
const FOLDERS = ["../../demo/", "../../dist/demo/"] as const;

/**
 * Serves the page until it is stopped, or writes its folder.
 *
 * @param argv the arguments after `demo`
 * @returns the exit code
 * @throws {FileError} if a file of the page is missing, or the folder cannot be written
 * @throws {ConfigError} for arguments that are wrong, and for a port that cannot be listened at
 */
export async function demo(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    const usage = "fullyshard demo [flags]";
    process.stdout.write(`${await configHelp(SECTIONS, usage, terminal("stdout").columns())}\n`);
    return 0;
  }
  const { port, out } = await resolveConfig(SECTIONS, { argv });
  const folder = pageFolder();
  if (out !== undefined) return await write(folder, out);
  const server = await serveDemo(folder, port).catch((error: unknown) => {
    if (error instanceof FileError) throw error;
    const reason = permissionRemedy(error) ?? (error instanceof Error ? error.message : String(error));
    throw new ConfigError([{ path: "port", expected: "a free port of this machine", got: `${port}: ${reason}` }]);
  });
  process.stdout.write(`FSDP at work: http://${LOOPBACK}:${server.port}/\nCtrl-C ends it\n`);
  await new Promise<void>((resolve) => void watchStopSignals(() => resolve()));
  server.close();
  return 0;
}

/** The folder of the page's files. */
function pageFolder(): string {
  const folders = FOLDERS.map((folder) => new URL(folder, import.meta.url));
  const [first] = folders;
  if (first?.protocol !== "file:") {
    throw new UnsupportedError(
      `Cannot show the page of ${first?.href}: it is served from files. Install the package from npm`,
    );
  }
  const found = folders.map((url) => fileURLToPath(url)).find((folder) => pathKind(`${folder}index.html`) === "file");
  if (found !== undefined) return found.replace(/\/$/, "");
  throw new FileError(fileURLToPath(first), "open", "there is no such page; in a checkout 'npm run prepack' builds it");
}

/** Writes the page for another web server. */
async function write(from: string, to: string): Promise<number> {
  for (const name of [...Object.keys(DEMO_FILES), "_headers"]) {
    makeDirectory(`${to}/${name}`.replace(/\/[^/]*$/, ""));
    replaceFile(`${to}/${name}`, await readBytes(`${from}/${name}`));
  }
  const headers = Object.entries(ISOLATION_HEADERS).map(([name, value]) => `  ${name}: ${value}\n`).join("");
  process.stdout.write(
    shown(`Wrote '${to}'. Ranks share memory where the web server sends these headers; else one rank trains:`) +
      `\n${headers}`,
  );
  return 0;
}
