/**
 * A server of HTTP that only programs of this machine reach.
 *
 * Permission on Deno: `--allow-net=127.0.0.1`.
 *
 * @module
 */
import { createServer, type RequestListener } from "node:http";

/** The address that it listens at. */
export const LOOPBACK = "127.0.0.1";

/** A server that listens. */
export interface LoopbackServer {
  readonly port: number;
  /** Ends it, with all its connections. */
  close(): void;
}

/**
 * Listens at a port of the loopback address.
 *
 * @param port 0 for any free one
 * @throws {Error} if the port is taken or may not be listened at, as a rejection
 */
export function serveLoopback(port: number, listener: RequestListener): Promise<LoopbackServer> {
  const server = createServer({ requestTimeout: 10_000, headersTimeout: 10_000, keepAliveTimeout: 5_000 }, listener);
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, LOOPBACK, () => {
      const address = server.address();
      if (typeof address !== "object" || address === null) return reject(new Error("it listens at no port"));
      resolve({
        port: address.port,
        close: () => {
          server.close();
          server.closeAllConnections();
        },
      });
    });
  });
}
