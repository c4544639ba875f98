/**
 * A Hub in the process of a test, and the command line that pulls from it.
 *
 * @module
 */
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { RUNTIME } from "../support/rank_process.ts";

const bin = fileURLToPath(new URL("../../bin/fullyshard.mjs", import.meta.url));
/** The one revision of the one model. */
export const COMMIT = "0123456789abcdef0123456789abcdef01234567";
export const NAME = "tiny/llama-odd";

export const sha256 = (bytes: Uint8Array): string => createHash("sha256").update(bytes).digest("hex");
export const gitHash = (bytes: Uint8Array): string =>
  createHash("sha1").update(`blob ${bytes.length}\0`).update(bytes).digest("hex");

/** The answer that a test chooses for a request; undefined for the usual one. */
export type Trick = (request: IncomingMessage, response: ServerResponse, file: string) => boolean;

/** A Hub of one model. */
export class TestHub implements AsyncDisposable {
  readonly requests: string[] = [];
  readonly tokens: Set<string> = new Set();
  trick: Trick = () => false;
  readonly #files: ReadonlyMap<string, Uint8Array>;
  readonly #server: Server;
  /** The address of another server, which has the large files. */
  store: string | undefined;

  readonly #kind: "model" | "dataset";

  constructor(files: ReadonlyMap<string, Uint8Array>, kind: "model" | "dataset" = "model") {
    this.#files = files;
    this.#kind = kind;
    this.#server = createServer((request, response) => this.#answer(request, response));
  }

  static async open(files: ReadonlyMap<string, Uint8Array>, kind?: "model" | "dataset"): Promise<TestHub> {
    const hub = new TestHub(files, kind);
    await new Promise<void>((resolve) => hub.#server.listen(0, "127.0.0.1", resolve));
    return hub;
  }

  get host(): string {
    const address = this.#server.address();
    return `127.0.0.1:${typeof address === "object" && address !== null ? address.port : 0}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  #answer(request: IncomingMessage, response: ServerResponse): void {
    const { method = "", url = "", headers: { range, authorization } } = request;
    const file = decodeURIComponent(url.replace(/^.*\/resolve\/[^/]*\//, ""));
    this.requests.push(`${method} ${url}${range === undefined ? "" : ` ${range}`}`);
    this.tokens.add(authorization ?? "none");
    if (this.trick(request, response, file)) return;
    if (url.startsWith(`/api/${this.#kind}s/${NAME}/revision/`)) {
      const siblings = [...this.#files.keys()].map((rfilename) => ({ rfilename }));
      response.setHeader("content-type", "application/json");
      response.end(JSON.stringify({ sha: COMMIT, siblings }));
      return;
    }
    const bytes = this.#files.get(file);
    if (
      bytes === undefined ||
      !url.startsWith(`/${this.#kind === "dataset" ? "datasets/" : ""}${NAME}/resolve/${COMMIT}/`)
    ) {
      response.writeHead(404).end();
      return;
    }
    const isLarge = file.endsWith(".safetensors");
    response.setHeader("etag", isLarge ? '"of-the-redirect"' : `"${gitHash(bytes)}"`);
    if (isLarge) {
      response.setHeader("x-linked-etag", `"${sha256(bytes)}"`);
      response.setHeader("x-linked-size", String(bytes.length));
    }
    if (isLarge && this.store !== undefined) {
      response.writeHead(302, { location: `http://${this.store}${url}` }).end();
      return;
    }
    const [, from] = /^bytes=(\d+)-$/.exec(range ?? "") ?? [];
    const start = Number(from ?? 0);
    if (from !== undefined) response.setHeader("content-range", `bytes ${start}-${bytes.length - 1}/${bytes.length}`);
    response.writeHead(from === undefined ? 200 : 206, { "content-length": bytes.length - start });
    response.end(method === "HEAD" ? undefined : bytes.subarray(start));
  }
}

/** The outcome of a command line. */
export interface Ended {
  readonly code: unknown;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs the command line, while this process answers. */
export async function run(args: readonly string[], env: Readonly<Record<string, string>>): Promise<Ended> {
  const child = spawn("node", [bin, "--runtime", RUNTIME, ...args], {
    env: { ...process.env, HF_ENDPOINT: "", HF_TOKEN: "", HF_HUB_OFFLINE: "", ...env },
  });
  const [out, err]: [string[], string[]] = [[], []];
  child.stdout.on("data", (data) => out.push(String(data)));
  child.stderr.on("data", (data) => err.push(String(data)));
  const code = await new Promise((resolve) => child.on("close", resolve));
  return { code, stdout: out.join(""), stderr: err.join("") };
}

/** Pulls from a hub into a cache. */
export function pull(
  hub: TestHub,
  cache: string,
  args: readonly string[] = [NAME],
  env: Readonly<Record<string, string>> = {},
): Promise<Ended> {
  return run(["pull", ...args, "--endpoint", `http://${hub.host}`], { HF_HUB_CACHE: cache, HF_HOME: cache, ...env });
}
