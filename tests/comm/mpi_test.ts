/**
 * Ranks that a launcher of MPI starts: finding its library, where ranks meet, and the suite of planes over an MPI that is found on
 * this machine. `npm run clusters` runs the suite over every MPI, both runtimes and several hosts.
 *
 * @module
 */
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { addressFor } from "../../src/comm/data/mpi/meeting.ts";
import { launcherDirectories, libraryNames } from "../../src/comm/data/mpi/library.ts";
import { chunkBytesOf } from "../../src/comm/data/mpi/memory.ts";
import { MPI_BINDINGS, MPI_HANDLES, MPI_THREAD_FUNNELED } from "../../src/ffi/bindings/mpi.ts";
import { environmentFrom } from "../../src/runtime/env.ts";
import { isNear } from "../../src/runtime/network.ts";
import type { EnvName } from "../../src/runtime/variables.ts";
import { conform } from "../conformance/planes.ts";
import { mpiLaunchers, mpiWorld, NO_MPI } from "../support/mpi_world.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { onlyInAll } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { valuesOf } from "../support/world.ts";
import { endLate, fewCalls, MPI_PLANES } from "./mpi_ranks.ts";

const environment = (values: Partial<Record<EnvName, string>>) => environmentFrom((name) => values[name]);

test("libraryNames() has no file of Open MPI for MPICH's launchers, nor of MPICH for Open MPI's", () => {
  assert.deepEqual(libraryNames("openmpi"), ["libmpi.so.40", "libmpi_abi.so.1", "libmpi_abi.so.0"]);
  const ofMpich = libraryNames("mpich");
  assert.equal(ofMpich[0], "libmpi.so.12");
  assert.ok(!ofMpich.includes("libmpi.so.40") && ofMpich.includes("libmpi_abi.so.1"));
  assert.equal(libraryNames(undefined).length, ofMpich.length + 1);
});

test("launcherDirectories() follows the launcher's variables, then the programs that started this process", () => {
  const programs = ["/bin/bash", "/opt/mpich/bin/hydra_pmi_proxy", "/usr/bin/mpirun", "/opt/tools/bin/npm"];
  assert.deepEqual(launcherDirectories(environment({}), programs), ["/opt/mpich/lib"]);
  const values = { OMPI_LIBDIR_LOC: "/opt/o/lib", OPAL_PREFIX: "/opt/o", I_MPI_ROOT: "/opt/intel" };
  assert.deepEqual(launcherDirectories(environment(values), ["/opt/o/bin/prted"]), [
    "/opt/o/lib",
    "/opt/intel/lib",
    "/opt/intel/lib/release",
  ]);
});

test("addressFor() takes an address that the rank's host does not have itself, a near one first", () => {
  const bridge = { address: "172.17.0.1", netmask: "255.255.0.0" };
  const own = [bridge, { address: "10.1.0.7", netmask: "255.255.255.0" }];
  const offer = { host: "first", addresses: [bridge.address, "192.168.3.1", "10.1.0.1"] };
  assert.equal(addressFor(offer, "second", own), "10.1.0.1");
  assert.equal(addressFor(offer, "second", [bridge]), "192.168.3.1");
  assert.equal(addressFor({ host: "first", addresses: ["10.9.9.9"] }, "second", own), "10.9.9.9");
  assert.equal(addressFor({ ...offer, addresses: own.map(({ address }) => address) }, "first", own), "127.0.0.1");
  assert.equal(addressFor({ host: "first", addresses: [] }, "second", own), "first");
  assert.throws(() => addressFor({ host: null, addresses: [] }, "second", own), /set MASTER_ADDR/);
  assert.equal(isNear("10.1.0.200", { address: "10.1.0.7", netmask: "255.255.255.0" }), true);
  assert.equal(isNear("10.1.1.200", { address: "10.1.0.7", netmask: "255.255.255.0" }), false);
  assert.equal(isNear("::1", { address: "10.1.0.7", netmask: "0.0.0.0" }), false);
});

test("chunkBytesOf() keeps staging within its bound for any number of ranks", () => {
  assert.equal(chunkBytesOf(2, {}), 2 ** 20);
  for (const size of [2, 64, 1024, 16_384]) {
    const chunk = chunkBytesOf(size, {});
    assert.equal(chunk % 256, 0);
    assert.ok(2 * (size - 1) * chunk <= 2 ** 26, `${size}`);
  }
  assert.equal(chunkBytesOf(1000, { stagingBytes: 1 }), 256);
});

const [launcher] = mpiLaunchers();

const headers = mpiLaunchers().map(({ program }) => program.replace(/\/bin\/[^/]+$/, "/include"));
const read = (file: string): string =>
  headers.map((folder) => `${folder}/${file}`).filter((path) => existsSync(path))
    .map((path) => readFileSync(path, "utf8")).join("\n");

test("MPI_HANDLES are what the headers of this machine's MPI say", {
  skip: read("mpi_abi.h") === "" && "needs mpi_abi.h and mpi.h of MPICH 5 beside its mpiexec",
}, () => {
  for (const [abi, text] of [["mpi5", read("mpi_abi.h")], ["mpich", read("mpi.h")]] as const) {
    for (const [name, handle] of Object.entries(MPI_HANDLES)) {
      const found = new RegExp(`define ${name}\\s+\\(\\(\\w+\\)(0x[0-9a-fA-F]+)\\)`).exec(text)?.[1];
      if (found !== undefined) assert.equal(Number(found), handle[abi], `${name} of ${abi}`);
    }
    for (const [, level] of text.matchAll(/MPI_THREAD_FUNNELED\s+=?\s*(\d+)/g)) {
      assert.equal(Number(level), MPI_THREAD_FUNNELED[abi], `MPI_THREAD_FUNNELED of ${abi}`);
    }
  }
});

test("MPI_BINDINGS have no call that waits for other ranks but those of the beginning and the end", () => {
  const waiting = /^MPI_(?!I[a-z]|Init|Finalize|Test|Cancel|Request_free|Comm_(idup|rank|size|set)|Error|Get|Abi)/;
  assert.deepEqual(Object.keys(MPI_BINDINGS).filter((name) => waiting.test(name)), []);
});

test("ranks of mpirun reduce, gather, split and pass messages", {
  skip: launcher === undefined && NO_MPI,
  timeout: 120_000,
}, async () => {
  assert.ok(launcher !== undefined);
  const ends = await mpiWorld(launcher, 2, fewCalls, { runtime: RUNTIME, planes: MPI_PLANES });
  assert.deepEqual(valuesOf(ends), ["mpi of 2", "mpi of 2"]);
  for (const { code } of ends) assert.equal(code, 0);
});

for (const one of mpiLaunchers()) {
  test(`${one.name} kills no rank that ends later than others`, { timeout: 120_000 }, async () => {
    using folder = temporaryDirectory();
    const file = folder.file("at-the-end.txt");
    const ends = await mpiWorld(one, 2, endLate, { runtime: RUNTIME, data: file });
    assert.deepEqual(valuesOf(ends), ["mpi", "mpi"]);
    for (const { code } of ends) assert.equal(code, 0);
    assert.equal(readFileSync(file, "utf8"), "written");
  });
}

for (const one of onlyInAll(mpiLaunchers())) {
  test(`the suite of planes over ${one.name}`, { timeout: 600_000 }, async () => {
    const problems = valuesOf(await mpiWorld(one, 3, conform, { runtime: RUNTIME, timeoutMs: 500_000 }));
    assert.deepEqual(problems.flat().filter((text) => text !== ""), []);
  });
}
