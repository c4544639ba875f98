/**
 * Streams between launchers: lines of JSON over TCP, after both ends have proved that they know the run's token. What is sent is not
 * encrypted.
 *
 * Note [Closed or silent]: a stream that the other host's kernel closes proves that the launcher there has ended, and its shell kills
 * its ranks. Silence proves nothing: the host may live behind a cut link.
 *
 * @module
 */
import { Buffer } from "node:buffer";
import { connect, createServer, type Server, type Socket } from "node:net";
import { equalCodes, hmacSha256 } from "../../runtime/checksum.ts";
import { LineReader } from "../../runtime/lines.ts";
import { type LauncherMessage, readMessage } from "./messages.ts";

/** Time between two signs of life, and the silence after which a launcher counts as gone. */
const [BEAT_MS, SILENT_MS] = [1000, 5000] as const;

/** Longest time of a connection, and of its proofs. */
const PROOF_MS = 3000;

/** The end of a stream: see Note [Closed or silent]. */
export type PeerEnd = "closed" | "silent";

/** Another launcher, which has proved that it knows the token. */
export class Peer {
  /** Its address. */
  readonly address: string;
  /** Receives its messages, in their order. */
  onMessage: (message: LauncherMessage) => void = () => {};
  /** Called once, at its end. */
  onEnd: (how: PeerEnd) => void = () => {};
  readonly #socket: Socket;
  readonly #beat: ReturnType<typeof setInterval>;
  #heardAt: number = performance.now();
  #end: PeerEnd | undefined;

  constructor(socket: Socket, reader: LineReader) {
    this.#socket = socket;
    this.address = (socket.remoteAddress ?? "").replace(/^::ffff:/, "");
    socket.on("data", (bytes: Uint8Array) => {
      this.#heardAt = performance.now();
      for (const line of reader.push(bytes)) {
        const message = readMessage(jsonOf(line));
        if (message !== undefined) this.onMessage(message);
      }
    });
    socket.on("error", (error) => this.#over("code" in error && error.code === "ETIMEDOUT" ? "silent" : "closed"));
    socket.on("close", () => this.#over("closed"));
    this.#beat = setInterval(() => {
      if (performance.now() - this.#heardAt > SILENT_MS) this.#over("silent");
      else socket.write("{}\n");
    }, BEAT_MS);
  }

  send(message: LauncherMessage): void {
    if (this.#end === undefined) this.#socket.write(`${JSON.stringify(message)}\n`);
  }

  /** Waits until at most `most` bytes wait for the network, or the stream has ended. */
  async drained(most: number): Promise<void> {
    while (this.#end === undefined && this.#socket.writableLength > most) {
      await new Promise<void>((resolve) => {
        const done = (): void => {
          this.#socket.off("drain", done);
          this.#socket.off("close", done);
          resolve();
        };
        this.#socket.on("drain", done);
        this.#socket.on("close", done);
      });
    }
  }

  /** Ends the stream after what was sent; nothing is called any more. */
  close(): void {
    this.onMessage = () => {};
    this.onEnd = () => {};
    this.#over("closed");
  }

  #over(how: PeerEnd): void {
    if (this.#end !== undefined) return;
    this.#end = how;
    clearInterval(this.#beat);
    if (how === "closed") this.#socket.end();
    else this.#socket.destroy();
    this.onEnd(how);
  }
}

/** A server of launchers. */
export interface PeerServer extends Disposable {
  readonly port: number;
}

/**
 * Listens for launchers.
 *
 * @param port 0 for any free one
 * @param onPeer receives each that proves that it knows the token
 * @throws {Error} if the port is taken, as a rejection
 */
export function servePeers(port: number, token: string, onPeer: (peer: Peer) => void): Promise<PeerServer> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.once("close", () => sockets.delete(socket));
    const own = nonce();
    const reader = new LineReader();
    const timer = setTimeout(() => socket.destroy(), PROOF_MS);
    socket.once("error", () => socket.destroy());
    socket.write(`${JSON.stringify({ challenge: own })}\n`);
    readLine(socket, reader, (line) => {
      clearTimeout(timer);
      const said = jsonOf(line);
      const number = textOf(said, "number");
      if (number === undefined || !isProof(said, token, "joins", own, number)) return socket.destroy();
      socket.write(`${JSON.stringify({ proof: proof(token, "serves", number, own) })}\n`);
      onPeer(new Peer(socket, reader));
    });
  });
  return listening(server, port).then((port) => ({
    port,
    [Symbol.dispose]: () => {
      server.close();
      for (const socket of sockets) socket.destroySoon();
    },
  }));
}

/** Connects to a launcher. @returns undefined if none answers there that knows the token */
export function connectPeer(address: string, port: number, token: string): Promise<Peer | undefined> {
  return new Promise((resolve) => {
    const socket = connect({ host: address, port });
    const reader = new LineReader();
    const fail = (): void => {
      clearTimeout(timer);
      socket.destroy();
      resolve(undefined);
    };
    const timer = setTimeout(fail, PROOF_MS);
    socket.once("error", fail);
    socket.once("close", fail);
    readLine(socket, reader, (line) => {
      const challenge = textOf(jsonOf(line), "challenge");
      if (challenge === undefined) return fail();
      const own = nonce();
      socket.write(`${JSON.stringify({ number: own, proof: proof(token, "joins", challenge, own) })}\n`);
      readLine(socket, reader, (answer) => {
        if (!isProof(jsonOf(answer), token, "serves", own, challenge)) return fail();
        clearTimeout(timer);
        socket.off("error", fail);
        socket.off("close", fail);
        resolve(new Peer(socket, reader));
      });
    });
  });
}

/** A port that is free on this host. */
export async function freePort(): Promise<number> {
  const server = createServer();
  const port = await listening(server, 0);
  await new Promise((resolve) => server.close(resolve));
  return port;
}

function listening(server: Server, port: number): Promise<number> {
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, () => {
      const address = server.address();
      if (typeof address !== "object" || address === null) return reject(new Error("it listens at no port"));
      resolve(address.port);
    });
  });
}

/** Takes one line of a stream. Neither end sends a second one before it is answered. */
function readLine(socket: Socket, reader: LineReader, take: (line: string) => void): void {
  const onData = (bytes: Uint8Array): void => {
    const [line] = reader.push(bytes);
    if (line === undefined) return;
    socket.off("data", onData);
    take(line);
  };
  socket.on("data", onData);
}

function nonce(): string {
  return Buffer.from(crypto.getRandomValues(new Uint8Array(16))).toString("hex");
}

/** The code by which one end proves that it knows the token: over the other end's number and its own. */
function proof(token: string, what: "joins" | "serves", first: string, second: string): string {
  const text = new TextEncoder().encode(`fullyshard launchers 1 ${what} ${first} ${second}`);
  return Buffer.from(hmacSha256(token, [text])).toString("hex");
}

function isProof(said: unknown, token: string, what: "joins" | "serves", first: string, second: string): boolean {
  const code = textOf(said, "proof");
  if (code === undefined) return false;
  return equalCodes(Buffer.from(code, "hex"), Buffer.from(proof(token, what, first, second), "hex"));
}

function jsonOf(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}

function textOf(said: unknown, name: string): string | undefined {
  if (typeof said !== "object" || said === null) return undefined;
  const value: unknown = Object.entries(said).find(([key]) => key === name)?.[1];
  return typeof value === "string" ? value : undefined;
}
