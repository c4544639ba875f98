/** Files in the shared-memory directory that are not what they seem: another user's, and links. @module */
import assert from "node:assert/strict";
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import process from "node:process";
import { test } from "node:test";
import { RunFiles } from "../../src/comm/control/run_files.ts";
import { joinShm } from "../../src/comm/control/shm_join.ts";
import { openPosix } from "../../src/ffi/posix.ts";
import { sha256 } from "../../src/runtime/checksum.ts";

const posix = await openPosix();
const isRoot = process.getuid?.() === 0;
const skip = isRoot ? false : "only root can give files to another user";

/** A directory, and paths of the files of a run in it. */
function directory(): { path: string; fileOf(run: string, name: string): string; [Symbol.dispose](): void } {
  const path = mkdtempSync("/dev/shm/foreign-");
  return {
    path,
    fileOf: (run, name) => new RunFiles(posix, path, sha256([run]).slice(0, 16)).path(name),
    [Symbol.dispose]: () => rmSync(path, { recursive: true }),
  };
}

function join(path: string, rank: number, worldSize: number): ReturnType<typeof joinShm> {
  return joinShm(posix, { rank, worldSize, run: "mine", directory: path, joinTimeoutSeconds: 1 });
}

test("joinShm() uses no lock file of another user, and says whose it is", { skip }, async () => {
  using place = directory();
  const file = place.fileOf("mine", "lock-0");
  writeFileSync(file, "theirs");
  chmodSync(file, 0o666);
  chownSync(file, 12_345, 12_345);
  const pattern =
    /lock-0': it belongs to user 12345, and this process is user 0\. .*MASTER_PORT.*FULLYSHARD_SHM_DIRECTORY/;
  for (const rank of [0, 1]) await assert.rejects(join(place.path, rank, 2), pattern);
  assert.equal(readFileSync(file, "utf8"), "theirs");
});

test("joinShm() starts beside files of another user, and leaves them", { skip }, async () => {
  using place = directory();
  const files = ["lock-0", "lock-7", "shared-x"].map((name) => place.fileOf("theirs", name));
  for (const file of files) {
    writeFileSync(file, "theirs");
    chownSync(file, 12_345, 12_345);
  }
  (await join(place.path, 0, 1)).dispose();
  for (const file of files) assert.ok(existsSync(file));
});

test("joinShm() follows no link, and leaves what it leads to", async () => {
  using place = directory();
  const target = `${place.path}/precious`;
  const words = new Int32Array(8192).fill(7);
  writeFileSync(target, new Uint8Array(words.buffer));
  symlinkSync(target, place.fileOf("mine", "lock-0"));
  for (const rank of [0, 1]) await assert.rejects(join(place.path, rank, 2), /ELOOP/);
  // Among what other runs have left, too.
  rmSync(place.fileOf("mine", "lock-0"));
  symlinkSync(target, place.fileOf("other", "lock-3"));
  (await join(place.path, 0, 1)).dispose();
  assert.deepEqual(new Int32Array(readFileSync(target).buffer.slice(0, 64)), words.slice(0, 16));
});
