/**
 * Serves the demo's page on the loopback address, with the headers that let it share memory between its ranks.
 *
 * @module
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import { readBytes } from "../runtime/files.ts";
import { LOOPBACK, type LoopbackServer, serveLoopback } from "../runtime/loopback_server.ts";

/** Headers by which a browser isolates a page from others, and so lets it share memory. */
export const ISOLATION_HEADERS: Readonly<Record<string, string>> = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
};

/** Files of the page, with their types. */
export const DEMO_FILES: Readonly<Record<string, string>> = {
  "index.html": "text/html; charset=utf-8",
  "demo.css": "text/css; charset=utf-8",
  "demo.js": "text/javascript; charset=utf-8",
  "rank.js": "text/javascript; charset=utf-8",
  "pkg/strict.wasm": "application/wasm",
};

const HEADERS = {
  ...ISOLATION_HEADERS,
  "Cache-Control": "no-cache",
  "Cross-Origin-Resource-Policy": "same-origin",
  "Referrer-Policy": "no-referrer",
  "X-Content-Type-Options": "nosniff",
  "X-Frame-Options": "DENY",
};

/**
 * Serves the page.
 *
 * @param folder holds the files of {@link DEMO_FILES}
 * @param port 0 for any free one
 * @throws {FileError} if a file is missing
 * @throws {Error} if the port is taken or may not be listened at
 */
export async function serveDemo(folder: string, port: number): Promise<LoopbackServer> {
  const files = new Map<string, Uint8Array>();
  for (const name of Object.keys(DEMO_FILES)) files.set(name, await readBytes(`${folder}/${name}`));
  const server = await serveLoopback(port, (request, response) => answer(request, response));
  const hosts = [LOOPBACK, "localhost"].map((name) => `${name}:${server.port}`);
  return server;

  function answer({ method, url = "/", headers }: IncomingMessage, response: ServerResponse): void {
    const refuse = (status: number, text: string): void => {
      response.writeHead(status, { ...HEADERS, "Content-Type": "text/plain; charset=utf-8" }).end(`${text}\n`);
    };
    // A site whose name leads to this machine (DNS rebinding) names another host.
    if (!hosts.includes(headers.host?.toLowerCase() ?? "")) return refuse(403, "This server has another name.");
    if (method !== "GET" && method !== "HEAD") return refuse(405, "Ask by GET.");
    const path = url.replace(/[?#].*$/, "").slice(1);
    const name = path === "" ? "index.html" : path;
    const [bytes, type] = [files.get(name), Object.hasOwn(DEMO_FILES, name) ? DEMO_FILES[name] : undefined];
    if (bytes === undefined || type === undefined) return refuse(404, "There is no such file.");
    response.writeHead(200, { ...HEADERS, "Content-Type": type, "Content-Length": bytes.length });
    response.end(method === "HEAD" ? undefined : bytes);
  }
}
