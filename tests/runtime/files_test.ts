/**
 * Files: reading parts, replacing as one, and what is said when the system refuses. The tests run as root in
 * containers, where permission bits mean nothing; so they use paths below a file, /proc, /dev/full and a file size
 * limit.
 *
 * @module
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { FileError } from "../../src/errors.ts";
import * as files from "../../src/runtime/files.ts";
import { executablePath, platform, runtime } from "../../src/runtime/processes.ts";
import { temporaryDirectory } from "../support/temporary.ts";

/** The FileError that an action throws. */
function refusal(action: () => unknown): FileError {
  try {
    action();
  } catch (error) {
    assert.ok(error instanceof FileError, `threw ${String(error)}`);
    return error;
  }
  assert.fail("no error");
}

describe("replaceFile()", () => {
  it("makes and replaces a file, from text, bytes and pieces", () => {
    using directory = temporaryDirectory();
    const file = `${directory.path}/a.json`;
    files.replaceFile(file, "zwölf");
    assert.equal(files.readTextSync(file), "zwölf");
    files.replaceFile(file, new Uint8Array([1, 2, 3]));
    assert.deepEqual([...readFileSync(file)], [1, 2, 3]);
    files.replaceFile(file, [new Uint8Array([4]), new Uint8Array(0), new Uint8Array([5, 6])]);
    assert.deepEqual([...readFileSync(file)], [4, 5, 6]);
    assert.deepEqual(readdirSync(directory.path), ["a.json"]);
  });

  it("leaves the old file and nothing beside it when the data fails half way", () => {
    using directory = temporaryDirectory();
    const file = `${directory.path}/a.bin`;
    writeFileSync(file, "old");
    function* pieces(): Generator<Uint8Array> {
      yield new Uint8Array(100_000);
      throw new Error("the source is gone");
    }
    assert.throws(() => files.replaceFile(file, pieces()), /the source is gone/);
    assert.equal(readFileSync(file, "utf8"), "old");
    assert.deepEqual(readdirSync(directory.path), ["a.bin"]);
  });

  it("leaves the old file when there is no room, and says so", (context) => {
    if (platform().os !== "linux") return context.skip("needs a shell with ulimit -f and an ignored SIGXFSZ");
    using directory = temporaryDirectory();
    const file = `${directory.path}/a.bin`;
    writeFileSync(file, "old");
    const script = fileURLToPath(new URL("./scripts/replace_large.ts", import.meta.url));
    const start = runtime().name === "deno" ? "run -A --no-check" : "run";
    const command = `trap '' XFSZ; ulimit -f 8; exec "$RUNTIME" ${start} "$0" "$1"`;
    // Deno rewrites the arguments of a command line that names its own binary, so the shell gets that in a variable.
    const env = { PATH: "/usr/bin:/bin", RUNTIME: executablePath() };
    const child = spawnSync("sh", ["-c", command, script, file], { encoding: "utf8", env });
    assert.equal(child.stdout, `FileError EFBIG Cannot write '${file}': ${LIMIT} (EFBIG)\n`, child.stderr);
    assert.equal(readFileSync(file, "utf8"), "old");
    assert.deepEqual(readdirSync(directory.path), ["a.bin"]);
  });

  it("names the path, the reason and the remedy when the directory cannot be written", () => {
    using directory = temporaryDirectory();
    const plain = `${directory.path}/plain`;
    writeFileSync(plain, "x");
    const below = refusal(() => files.replaceFile(`${plain}/a.json`, "{}"));
    assert.equal(below.code, "ENOTDIR");
    assert.equal(below.path, `${plain}/a.json`);
    assert.match(below.message, /^Cannot write '.*plain\/a\.json': a part of the path is a file, not a directory/);
    assert.equal(refusal(() => files.replaceFile(`${directory.path}/no/a.json`, "{}")).code, "ENOENT");
    mkdirSync(`${directory.path}/taken`);
    assert.match(refusal(() => files.replaceFile(`${directory.path}/taken`, "x")).message, /directory/);
    assert.deepEqual(readdirSync(directory.path).sort(), ["plain", "taken"]);
    if (platform().os === "linux") assert.throws(() => files.replaceFile("/proc/nothing", "x"), FileError);
  });
});

const LIMIT = "the file would be larger than the process' limit (ulimit -f)";

describe("openWritable()", () => {
  it("creates and appends", () => {
    using directory = temporaryDirectory();
    const path = `${directory.path}/metrics.jsonl`;
    {
      using file = files.openWritable(path, "create");
      file.write("a\n");
      file.write(new Uint8Array([98, 10]));
      file.sync();
    }
    {
      using file = files.openWritable(path, "append");
      file.write("c\n");
      file.close();
    }
    assert.equal(readFileSync(path, "utf8"), "a\nb\nc\n");
    files.openWritable(path, "create").close();
    assert.equal(readFileSync(path, "utf8"), "");
  });

  it("reports a full device", (context) => {
    if (platform().os !== "linux") return context.skip("needs /dev/full");
    using file = files.openWritable("/dev/full", "append");
    const error = refusal(() => file.write("x"));
    assert.equal(error.code, "ENOSPC");
    assert.match(
      error.message,
      /^Cannot write '\/dev\/full': no space is left .* \(ENOSPC\); 1 bytes were to be written, \d+ bytes are free$/,
    );
  });
});

describe("openReadable()", () => {
  it("reads parts into memory of the caller's", () => {
    using directory = temporaryDirectory();
    const path = `${directory.path}/data`;
    writeFileSync(path, Uint8Array.from({ length: 1000 }, (_, i) => i % 251));
    const memory = new WebAssembly.Memory({ initial: 1, maximum: 1 });
    using file = files.openReadable(path);
    assert.equal(file.byteLength, 1000);
    file.read(500, new Uint8Array(memory.buffer, 100, 3));
    assert.deepEqual([...new Uint8Array(memory.buffer, 99, 5)], [0, 249, 250, 0, 0]);
    file.read(1000, new Uint8Array(0));
  });

  it("refuses to read past the end, and what is no file", () => {
    using directory = temporaryDirectory();
    const path = `${directory.path}/data`;
    writeFileSync(path, "0123456789");
    using file = files.openReadable(path);
    assert.match(
      refusal(() => file.read(8, new Uint8Array(4))).message,
      /^Cannot read '.*data': it ends at byte 10, but bytes up to 12 are wanted$/,
    );
    assert.throws(() => files.openReadable(directory.path), FileError);
    assert.equal(refusal(() => files.openReadable(`${directory.path}/none`)).code, "ENOENT");
  });
});

describe("paths", () => {
  it("pathKind() tells what there is", () => {
    using directory = temporaryDirectory();
    const file = `${directory.path}/file`;
    writeFileSync(file, "");
    assert.equal(files.pathKind(file), "file");
    assert.equal(files.pathKind(directory.path), "directory");
    assert.equal(files.pathKind(`${directory.path}/none`), "none");
    assert.equal(files.pathKind(`${file}/below`), "none");
    assert.equal(files.pathExists(file), true);
  });

  it("requireWritableDirectory() refuses what cannot be a directory, and leaves nothing of its own", () => {
    using directory = temporaryDirectory();
    mkdirSync(directory.file("runs"));
    files.requireWritableDirectory(directory.file("runs/a/b"));
    files.requireWritableDirectory(directory.file("runs"));
    assert.deepEqual(readdirSync(directory.path), ["runs"]);
    assert.deepEqual(readdirSync(directory.file("runs")), []);
    const below = `${directory.write("file", "")}/runs`;
    assert.equal(refusal(() => files.requireWritableDirectory(below)).code, "ENOTDIR");
  });

  it("makeDirectory(), listDirectory(), renamePath(), removePath() do as they say", () => {
    using directory = temporaryDirectory();
    const deep = `${directory.path}/a/b`;
    files.makeDirectory(deep);
    files.makeDirectory(deep);
    for (const name of ["z", "a10", "a9", "B"]) writeFileSync(`${deep}/${name}`, name);
    assert.deepEqual(files.listDirectory(deep), ["B", "a10", "a9", "z"]);
    files.renamePath(`${deep}/z`, `${deep}/B`);
    assert.equal(files.readTextSync(`${deep}/B`), "z");
    symlinkSync(deep, `${directory.path}/link`);
    assert.equal(files.resolveLinks(`${directory.path}/link`), files.resolveLinks(deep));
    files.removePath(`${directory.path}/a`);
    files.removePath(`${directory.path}/a`);
    assert.equal(files.pathExists(deep), false);
    assert.equal(refusal(() => files.listDirectory(deep)).code, "ENOENT");
    writeFileSync(`${directory.path}/file`, "12345");
    assert.equal(files.fileByteLength(`${directory.path}/file`), 5);
    assert.equal(refusal(() => files.makeDirectory(`${directory.path}/file/below`)).code, "ENOTDIR");
  });

  it("spaceAt() measures the file system", () => {
    using directory = temporaryDirectory();
    const { freeBytes, totalBytes } = files.spaceAt(directory.path);
    assert.ok(totalBytes > 2 ** 20 && freeBytes <= totalBytes && freeBytes > 0);
  });

  it("readText() refuses what is not UTF-8", async () => {
    using directory = temporaryDirectory();
    const path = `${directory.path}/text`;
    writeFileSync(path, new Uint8Array([0x61, 0xff]));
    await assert.rejects(files.readText(path), /^FileError: Cannot read '.*text': it is not valid UTF-8 text$/);
    await assert.rejects(files.readBytes(`${path}.none`), { code: "ENOENT" });
    assert.deepEqual([...await files.readBytes(path)], [0x61, 0xff]);
  });
});

describe("what is not a regular file", () => {
  const readers: readonly (readonly [string, (file: string) => unknown])[] = [
    ["openReadable", files.openReadable],
    ["readTextSync", files.readTextSync],
    ["readBytesSync", files.readBytesSync],
  ];

  for (const [name, read] of readers) {
    it(`is refused by ${name}() with its kind, at once`, () => {
      using directory = temporaryDirectory();
      const pipe = directory.file("pipe");
      assert.equal(spawnSync("mkfifo", [pipe]).status, 0);
      symlinkSync(pipe, directory.file("link"));
      for (const file of [pipe, directory.file("link")]) {
        assert.match(refusal(() => read(file)).message, /it is a named pipe \(FIFO\), not a regular file; write what/);
      }
      assert.match(refusal(() => read(directory.path)).message, /it is a directory, not a regular file/);
      assert.match(refusal(() => read(directory.file("none"))).message, /there is no such file/);
    });
  }

  it("is refused by readBytes() and openWritable() too", async () => {
    using directory = temporaryDirectory();
    const pipe = directory.file("pipe");
    assert.equal(spawnSync("mkfifo", [pipe]).status, 0);
    await assert.rejects(files.readBytes(pipe), /a named pipe \(FIFO\)/);
    await assert.rejects(files.readText(directory.path), /it is a directory, not a regular file/);
    for (const mode of ["create", "append", "update", "resume"] as const) {
      assert.match(refusal(() => files.openWritable(pipe, mode)).message, /a named pipe \(FIFO\)/);
    }
  });
});

it("pathKind() finds nothing at a link to nowhere and at a ring of links alike", () => {
  using directory = temporaryDirectory();
  for (const [name, to] of [["c1", "c2"], ["c2", "c1"], ["self", "self"], ["dangling", "nowhere"]] as const) {
    symlinkSync(to, directory.file(name));
  }
  for (const name of ["c1", "c2", "self", "dangling", "c1/a"]) {
    assert.equal(files.pathKind(directory.file(name)), "none", name);
  }
});

it("a path with U+FFFD that is not there says that its name may not be UTF-8", async () => {
  using directory = temporaryDirectory();
  const lost = directory.file("caf\ufffd.txt");
  await assert.rejects(files.readBytes(lost), /a name that is not UTF-8 opens nothing: rename it \(ENOENT\)$/);
  directory.write("caf\ufffd.txt", "real");
  assert.equal((await files.readBytes(lost)).length, 4);
});
