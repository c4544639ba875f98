/** Ranks of MPI that no launcher of MPI starts: each answers its own library. @module */
import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { connect } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { fieldsOf, PmiServer } from "../../src/comm/data/mpi/pmi_server.ts";
import { RendezvousError } from "../../src/errors.ts";
import { openSockets } from "../../src/ffi/sockets.ts";
import { libraryOf, mpiLaunchers, mpiWorld, NO_MPI, withoutLaunchers } from "../support/mpi_world.ts";
import { RUNTIME, startRank } from "../support/rank_process.ts";
import { sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { freePorts, valuesOf } from "../support/world.ts";
import { essence, flagsIn, metricLines, run, startRun } from "../train/runs.ts";
import { fewCalls, MPI_PLANES } from "./mpi_ranks.ts";

const [absent] = withoutLaunchers(mpiLaunchers());
const library = absent === undefined ? {} : libraryVariables(libraryOf(absent));
const skip = absent === undefined && `${NO_MPI}, of MPICH or Intel MPI`;

function libraryVariables(file: string | undefined): Readonly<Record<string, string>> {
  return file === undefined ? {} : { FULLYSHARD_MPI_LIBRARY: file };
}

/** A library that asks a server, played by the test. */
class Library {
  readonly #socket: ReturnType<typeof connect>;
  readonly #server: PmiServer;
  #said = "";
  isClosed = false;

  constructor(server: PmiServer) {
    const [host, port] = server.variables.PMI_PORT.split(":");
    this.#server = server;
    this.#socket = connect({ host: host ?? "", port: Number(port) });
    this.#socket.on("data", (bytes) => this.#said += String(bytes));
    this.#socket.on("close", () => this.isClosed = true);
  }

  /** Says a line, and takes the answer of `lines` lines. */
  async ask(line: string, lines = 1): Promise<readonly Partial<Record<string, string>>[]> {
    this.#said = "";
    this.#socket.write(`${line}\n`);
    while (this.#said.split("\n").length <= lines && !this.isClosed) {
      this.#server.serve();
      await sleep(1);
    }
    return this.#said.trimEnd().split("\n").map(fieldsOf);
  }

  close(): void {
    this.#socket.destroy();
  }
}

test("a library hears its rank, and gets what other ranks put after a barrier", async () => {
  const other = new TextEncoder().encode(JSON.stringify([["P1-card", "tcp://b=1"]]));
  const put: string[] = [];
  using server = new PmiServer(await openSockets(), { run: "r1", rank: 0, size: 2 }, (own) => {
    put.push(new TextDecoder().decode(own));
    return [own, other];
  });
  const library = new Library(server);
  const hello = await library.ask(`cmd=initack pmiid=${server.variables.PMI_ID}`, 4);
  assert.deepEqual(hello.map(({ cmd, size, rank }) => [cmd, size, rank]), [
    ["initack", undefined, undefined],
    ["set", "2", undefined],
    ["set", undefined, "0"],
    ["set", undefined, undefined],
  ]);
  const [init] = await library.ask("cmd=init pmi_version=1 pmi_subversion=1");
  assert.deepEqual([init?.["cmd"], init?.["pmi_version"], init?.["rc"]], ["response_to_init", "1", "0"]);
  assert.equal((await library.ask("cmd=get_my_kvsname"))[0]?.["kvsname"], "r1");
  assert.equal((await library.ask("cmd=get_universe_size"))[0]?.["size"], "2");
  assert.equal((await library.ask("cmd=put kvsname=r1 key=P0-card value=tcp://a"))[0]?.["rc"], "0");
  assert.equal((await library.ask("cmd=get kvsname=r1 key=P1-card"))[0]?.["rc"], "-1");
  assert.equal((await library.ask("cmd=barrier_in"))[0]?.["cmd"], "barrier_out");
  assert.deepEqual(put, ['[["P0-card","tcp://a"]]']);
  assert.equal((await library.ask("cmd=get kvsname=r1 key=P1-card"))[0]?.["value"], "tcp://b=1");
  assert.equal((await library.ask("cmd=get kvsname=r1 key=P0-card"))[0]?.["value"], "tcp://a");
  await library.ask("cmd=barrier_in");
  assert.equal(put[1], "[]", "what was put is sent once");
  library.close();
});

test("a program that does not know the process' number is sent away, and the library is served", async () => {
  using server = new PmiServer(await openSockets(), { run: "r1", rank: 1, size: 2 }, (own) => [own, own]);
  const stranger = new Library(server);
  await stranger.ask("cmd=initack pmiid=7");
  assert.ok(stranger.isClosed);
  const silent = new Library(server);
  await silent.ask("cmd=put kvsname=r1 key=a value=b");
  assert.ok(silent.isClosed, "it has not said who it is");
  const library = new Library(server);
  assert.equal((await library.ask(`cmd=initack pmiid=${server.variables.PMI_ID}`, 4))[2]?.["rank"], "1");
  await assert.rejects(library.ask("cmd=abort exitcode=9"), RendezvousError);
  await assert.rejects(library.ask("cmd=spawn nprocs=2"), /asks for what nobody gives it: cmd=spawn nprocs=2/);
  library.close();
});

test("ranks without a launcher reduce, gather, split and pass messages, and leave no file", {
  skip,
  timeout: 120_000,
}, async () => {
  assert.ok(absent !== undefined);
  const files = (): string[] => readdirSync("/dev/shm").filter((name) => name.startsWith("mpich_shm"));
  const before = files();
  const ends = await mpiWorld(absent, 3, fewCalls, { runtime: RUNTIME, planes: MPI_PLANES });
  assert.deepEqual(valuesOf(ends), ["mpi of 3", "mpi of 3", "mpi of 3"]);
  for (const { code } of ends) assert.equal(code, 0);
  assert.deepEqual(files().filter((name) => !before.includes(name)), []);
});

const ABSENT = { FULLYSHARD_MPI_LIBRARY: "/nowhere/libmpi.so" };

/** Starts two ranks, as on two hosts, and gives what they print to stderr. */
async function failedRanks(...own: readonly Readonly<Record<string, string>>[]): Promise<readonly string[]> {
  const shared = { WORLD_SIZE: "2", LOCAL_WORLD_SIZE: "1", LOCAL_RANK: "0", FULLYSHARD_TOKEN: "secret" };
  const place = { MASTER_ADDR: "127.0.0.1", MASTER_PORT: String(freePorts()), FULLYSHARD_LAUNCHER: "torchrun" };
  const script = new URL("./unlaunched_rank.ts", import.meta.url);
  const ranks = own.map((variables, rank) =>
    startRank(script, [], { env: { ...shared, ...place, RANK: String(rank), ...variables } })
  );
  assert.deepEqual(await Promise.all(ranks.map(({ ended }) => ended)), [1, 1]);
  return ranks.map(({ stderr }) => stderr);
}

test("ranks without a library say what joins hosts", { timeout: 60_000 }, async () => {
  for (const said of await failedRanks(ABSENT, ABSENT)) {
    const needed =
      /LibraryNotFoundError: Cannot open MPI\. It joins ranks of several hosts, .*install MPICH or Intel MPI .*or start them by 'mpirun -n 2 /;
    assert.match(said, needed);
    assert.match(said, /\/nowhere\/libmpi\.so: no such file/);
  }
});

test("a rank that finds no library is named by the others", { skip, timeout: 60_000 }, async () => {
  const [other = "", own = ""] = await failedRanks(library, ABSENT);
  assert.match(own, /LibraryNotFoundError: Cannot open MPI\.[^]*\/nowhere\/libmpi\.so/);
  assert.match(other, /CollectiveError: .*rank 1 failed: LibraryNotFoundError: Cannot open MPI/);
});

test("two launchers of ours train on the CPU as one run, with the bits of shared memory", {
  skip,
  timeout: 120_000,
}, async () => {
  using folder = temporaryDirectory();
  const flags = flagsIn(folder, "--global-batch", "4", "--steps", "4");
  const port = String(freePorts());
  const hosts = [0, 1].map((host) => {
    const place = ["--nnodes", "2", "--node-rank", String(host), "--master-addr", "127.0.0.1", "--master-port", port];
    return startRun(flags, { ranks: 1, flags: place, env: { ...library, FULLYSHARD_TOKEN: "secret" }, allowAll: true });
  });
  const ends = await Promise.all(hosts.map(({ ended }) => ended));
  assert.deepEqual(ends.map(({ code }) => code), [0, 0], ends.map(({ stderr }) => stderr).join("\n"));
  assert.match(ends[0]?.stderr ?? "", /FSDP over 2 ranks \(mpi\)/);
  const alone = await run([...flags, "--out", folder.file("alone")], { ranks: 2 });
  assert.equal(alone.code, 0, alone.stderr);
  assert.deepEqual(metricLines(folder).map(essence), metricLines(folder, "alone").map(essence));
});
