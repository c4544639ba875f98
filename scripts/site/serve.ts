/**
 * Serves a built site on the loopback address, with the headers that let the demo share memory between its ranks.
 *
 * @module
 */
import { existsSync, readFileSync, statSync } from "node:fs";
import { extname, join, normalize } from "node:path";
import { ISOLATION_HEADERS } from "../../src/demo/serve.ts";
import { type LoopbackServer, serveLoopback } from "../../src/runtime/loopback_server.ts";

const TYPES: Readonly<Record<string, string>> = {
  ".html": "text/html; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".json": "application/json",
  ".svg": "image/svg+xml",
  ".jpg": "image/jpeg",
  ".wasm": "application/wasm",
};

/** Serves the files of a folder. @param port 0 for any free one */
export function serveSite(folder: string, port: number): Promise<LoopbackServer> {
  return serveLoopback(port, ({ url = "/" }, response) => {
    const path = normalize(decodeURIComponent(url.replace(/[?#].*$/, ""))).replace(/\/$/, "/index.html");
    const [file, type] = [join(folder, path), TYPES[extname(path)]];
    if (type === undefined || !existsSync(file) || !statSync(file).isFile()) {
      response.writeHead(404, { "Content-Type": "text/plain" }).end("There is no such page.\n");
    } else response.writeHead(200, { ...ISOLATION_HEADERS, "Content-Type": type }).end(readFileSync(file));
  });
}
