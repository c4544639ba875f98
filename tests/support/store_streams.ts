/**
 * Ranks that join at a store, and streams of others to it.
 *
 * @module
 */
import assert from "node:assert/strict";
import {
  codePieces,
  FrameReader,
  FrameWriter,
  NUMBER_BYTES,
  RANK_BYTES,
  VERSION,
} from "../../src/comm/hosts/frames.ts";
import { type HostsJoinOptions, joinHosts } from "../../src/comm/hosts/join.ts";
import type { Sockets } from "../../src/ffi/sockets.ts";
import { hmacSha256 } from "../../src/runtime/checksum.ts";
import { freePorts } from "./world.ts";

const TOKEN = "a secret of the tests";

/** Options of the ranks of one run. */
export function runOf(worldSize: number, more: Partial<HostsJoinOptions> = {}): (rank: number) => HostsJoinOptions {
  const port = freePorts();
  return (rank) => ({
    rank,
    worldSize,
    localWorldSize: 2,
    address: "127.0.0.1",
    port,
    token: TOKEN,
    joinTimeoutSeconds: 20,
    timeoutSeconds: 20,
    ...more,
  });
}

/** Joins ranks, each of which is this process; gives the error of each that failed. */
export async function errorsOf(options: readonly HostsJoinOptions[]): Promise<readonly (string | undefined)[]> {
  const ends = await Promise.allSettled(options.map(joinHosts));
  for (const end of ends) if (end.status === "fulfilled") end.value.dispose();
  return ends.map((end) => end.status === "rejected" ? String(end.reason) : undefined);
}

/** Opens a stream to the store as a stranger. */
export async function openStream(sockets: Sockets, port: number): Promise<number> {
  for (let attempt = 0; attempt < 400; attempt++) {
    const stream = sockets.connect(sockets.resolve("127.0.0.1", port));
    assert.ok(typeof stream === "number");
    await pause(25);
    if (sockets.connected(stream) === true) return stream;
    sockets.close(stream);
  }
  assert.fail("there is no store");
}

export const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** Sends bytes and gives what comes until the store ends the stream, and how long that took. */
export async function untilEnd(
  sockets: Sockets,
  stream: number,
  bytes: Uint8Array,
): Promise<[text: string, seconds: number]> {
  sockets.send(stream, bytes);
  const [begin, room] = [performance.now(), new Uint8Array(4096)];
  let text = "";
  for (;;) {
    const moved = sockets.receive(stream, room);
    const seconds = (performance.now() - begin) / 1000;
    if ("end" in moved) {
      sockets.close(stream);
      return [text, seconds];
    }
    text += new TextDecoder().decode(room.subarray(0, moved.count));
    assert.ok(seconds < 20, "the store keeps the stream");
    await pause(5);
  }
}

/** Proves on a stream to be a rank, as a rank does; gives what the store said to it. @param answered another challenge that it answers */
export async function enter(
  sockets: Sockets,
  stream: number,
  rank: number,
  worldSize: number,
  version: string = VERSION,
  answered?: Uint8Array,
): Promise<readonly [kind: string | undefined, text: string | undefined]> {
  const reader = new FrameReader(RANK_BYTES);
  const next = async (): Promise<ReturnType<FrameReader["next"]>> => {
    for (let frame = reader.next();; frame = reader.next()) {
      if (frame !== undefined) return frame;
      const moved = sockets.receive(stream, reader.room);
      assert.ok("count" in moved);
      reader.received(moved.count);
      await pause(5);
    }
  };
  const challenge = (await next())?.body.bytes(NUMBER_BYTES).slice() ?? assert.fail();
  const number = crypto.getRandomValues(new Uint8Array(NUMBER_BYTES));
  const writer = new FrameWriter();
  writer.write(
    "hello",
    rank,
    worldSize,
    number,
    hmacSha256(TOKEN, codePieces("rank", answered ?? challenge, number)),
    version,
  );
  sockets.send(stream, writer.pending);
  const answer = await next();
  return [answer?.kind, answer?.body.text()];
}
