/** Launchers of several hosts: who leads, when ranks start, and what a token is for. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { type HostLimits, Leader, type LeadState } from "../../src/launch/hosts/leader.ts";
import type { Hello, HostEnd, HostStart, LauncherMessage } from "../../src/launch/hosts/messages.ts";
import { connectPeer, type Peer, servePeers } from "../../src/launch/hosts/wire.ts";

const limits: HostLimits = { fewestHosts: 1, mostHosts: 3, maxRestarts: 2 };
const fresh: LeadState = {
  ...{ id: "a", run: "run", number: -1, restarts: 0, goesOn: false, worldSizes: undefined },
  ...{ awaited: [], quorum: 1 },
};

/** A leader, its hosts by name, and what it said. */
class Scene {
  readonly said: string[] = [];
  readonly leader: Leader;
  readonly sent = new Map<string, LauncherMessage[]>();

  constructor(state: LeadState = fresh, over = limits) {
    this.leader = new Leader(over, state, (text) => this.said.push(text));
  }

  come(id: string, nodeRank: number, more: Partial<Hello> = {}): void {
    const got: LauncherMessage[] = [];
    this.sent.set(id, got);
    const hello = { kind: "hello", id, nodeRank, numRanks: 2, port: 1, rankPort: 100 + nodeRank, machine: id } as const;
    const known = { number: -1, restarts: 0, goesOn: false, held: [], ...more };
    this.leader.join({ ...hello, ...known }, { address: `host-${id}`, send: (message) => got.push(message) });
  }

  end(id: string, more: Partial<HostEnd> = {}): void {
    const usual = {
      rankPort: 7,
      isAsked: false,
      failed: false,
      isSetting: false,
      regroups: false,
      goesOn: true,
      held: [],
    };
    this.leader.take(id, { kind: "ended", number: this.start(id)?.number ?? NaN, ...usual, ...more });
  }

  /** The last start of a host. */
  start(id: string): HostStart | undefined {
    return this.sent.get(id)?.findLast((message) => message.kind === "start");
  }

  kinds(id: string): string[] {
    return this.sent.get(id)?.map(({ kind }) => kind) ?? [];
  }

  [Symbol.dispose](): void {
    this.leader.close();
  }
}

test("a leader starts ranks when all hosts are there, in the order of their ranks", () => {
  using scene = new Scene();
  scene.come("c", 2);
  scene.come("a", 0);
  assert.deepEqual(scene.kinds("a"), ["welcome"]);
  scene.come("b", 1);
  const start = scene.start("b");
  assert.deepEqual(start?.hosts.map(({ id }) => id), ["a", "b", "c"]);
  assert.deepEqual([start?.index, start?.masterAddr, start?.masterPort, start?.number, start?.isOneMachine], [
    ...[1, "host-a", 100, 0, false],
  ]);
});

test("a leader goes on with the hosts that are left, without a restart, and with one that comes at a step's border", () => {
  using scene = new Scene();
  for (const [rank, id] of ["a", "b", "c"].entries()) scene.come(id, rank);
  scene.leader.lose("a");
  assert.equal(scene.sent.get("b")?.at(-1)?.kind, "stop");
  for (const id of ["b", "c"]) scene.end(id, { failed: true, error: "rank 0 died" });
  const start = scene.start("c");
  assert.deepEqual([start?.number, start?.restarts, start?.goesOn, start?.masterAddr, start?.masterPort], [
    ...[1, 0, true, "host-b", 7],
  ]);
  assert.equal(start?.why, "as host 0 is lost");
  scene.come("a2", 0);
  assert.equal(scene.sent.get("b")?.at(-1)?.kind, "regroup");
  assert.equal(scene.start("a2"), undefined);
  for (const id of ["b", "c"]) scene.end(id, { regroups: true });
  assert.deepEqual(scene.start("a2")?.hosts.map(({ id }) => id), ["a2", "b", "c"]);
});

test("a leader starts only on numbers of hosts whose ranks the batch can be divided among", () => {
  using scene = new Scene();
  for (const [rank, id] of ["a", "b", "c"].entries()) scene.come(id, rank);
  scene.end("c", { failed: true, worldSizes: [2, 6] });
  scene.leader.lose("b");
  scene.end("a", { failed: true });
  assert.deepEqual(scene.start("a")?.hosts.map(({ id }) => id), ["a"]);
  assert.equal(scene.start("c")?.number, 0);
});

test("a leader counts failures, and ends by an error that comes again, a signal, or the last step", () => {
  using scene = new Scene();
  for (const [rank, id] of ["a", "b", "c"].entries()) scene.come(id, rank);
  const all = (more: Partial<HostEnd>): void => ["a", "b", "c"].forEach((id) => scene.end(id, more));
  all({ failed: true, error: "out of tea" });
  assert.deepEqual([scene.start("a")?.restarts, scene.start("a")?.why], [1, "restart 1 of 2"]);
  all({ failed: true, error: "out of tea" });
  assert.match(scene.said.join(), /the same error came twice/);
  assert.equal(scene.kinds("b").at(-1), "end");
  using finished = new Scene({ ...fresh, restarts: 2 });
  for (const [rank, id] of ["a", "b", "c"].entries()) finished.come(id, rank);
  ["a", "b", "c"].forEach((id) => finished.end(id));
  assert.deepEqual([finished.said, finished.kinds("c").at(-1)], [[], "end"]);
});

test("a leader that takes over from a silent one needs more than a half of the hosts", async () => {
  const state = { ...fresh, number: 4, awaited: ["b", "c"], quorum: 2 };
  using half = new Scene(state, { ...limits, gatherMs: 1 });
  half.come("b", 1, { number: 4, goesOn: true });
  assert.equal(half.start("b"), undefined);
  while (half.said.length === 0) await new Promise((resolve) => setTimeout(resolve, 1));
  assert.match(half.said.join(), /cannot tell whether the others live/);
  using most = new Scene(state);
  most.come("b", 1, { number: 4 });
  most.come("c", 2, { number: 4, restarts: 1 });
  assert.deepEqual([most.start("c")?.number, most.start("c")?.restarts], [5, 1]);
});

test("a leader takes the newest state of which the hosts have all files, and says who has them", () => {
  using scene = new Scene();
  for (const [rank, id] of ["a", "b", "c"].entries()) scene.come(id, rank);
  const needs = ["manifest.json", "1.safetensors", "2.safetensors", "3.safetensors"];
  scene.leader.lose("b");
  // Host b's part of step 8 had not come to host c.
  const ofA = [{ step: 8, holds: needs.slice(0, 2), needs }, { step: 6, holds: needs.slice(0, 2), needs }];
  const ofC = [{ step: 6, holds: needs.slice(2), needs }, { step: 8, holds: needs.slice(3), needs }];
  scene.end("a", { failed: true, held: ofA });
  scene.end("c", { failed: true, held: ofC });
  const [first, second] = [needs.slice(0, 2), needs.slice(2)];
  const sources = [{ address: "host-a", port: 1, files: first }, { address: "host-c", port: 1, files: second }];
  assert.deepEqual(scene.start("a")?.from, { step: 6, sources });
});

test("hosts with other numbers of ranks are refused", () => {
  using scene = new Scene();
  scene.come("a", 0);
  scene.come("b", 1, { numRanks: 4 });
  assert.match(JSON.stringify(scene.sent.get("b")), /this host has 4 ranks, others have 2/);
});

test("launchers meet by the token, and tell when the other one is gone", { timeout: 20_000 }, async () => {
  const met = Promise.withResolvers<Peer>();
  using server = await servePeers(0, "secret", (peer) => met.resolve(peer));
  assert.equal(await connectPeer("127.0.0.1", server.port, "another"), undefined);
  const peer = await connectPeer("127.0.0.1", server.port, "secret");
  const other = await met.promise;
  const heard = Promise.withResolvers<LauncherMessage>();
  other.onMessage = heard.resolve;
  peer?.send({ kind: "stop", number: 3 });
  assert.deepEqual(await heard.promise, { kind: "stop", number: 3 });
  const ended = Promise.withResolvers<string>();
  other.onEnd = ended.resolve;
  peer?.close();
  assert.equal(await ended.promise, "closed");
  other.close();
});
