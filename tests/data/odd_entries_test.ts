/** Names, links and files in a data folder that cannot be read: each is left out and named, or refused where it is named. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { chmodSync, symlinkSync, truncateSync } from "node:fs";
import { createServer } from "node:net";
import process from "node:process";
import { test } from "node:test";
import { openText, packInMemory, type TextDocument } from "../../doors/data.ts";
import { ArgumentError, ConfigError } from "../../doors/errors.ts";
import { BYTE_TOKENIZER } from "../../src/data/tokenizer.ts";
import { describeSkipped, findFiles } from "../../src/data/find_files.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { temporaryDirectory } from "../support/temporary.ts";

/** Runs a shell's line in a folder. */
function shell(cwd: string, line: string): void {
  const { status, stderr } = spawnSync("/bin/sh", ["-c", line], { cwd, encoding: "utf8" });
  assert.equal(status, 0, stderr);
}

function said(inputs: readonly string[]): readonly [files: readonly string[], skipped: string | undefined] {
  const { files, skipped } = findFiles(inputs);
  return [files, describeSkipped(skipped)];
}

test("findFiles() leaves out names that are not UTF-8, and names them", () => {
  using folder = temporaryDirectory();
  const text = folder.write("b.txt", "b");
  const real = folder.write("real \ufffd.txt", "a name that has the character itself");
  shell(
    folder.path,
    `echo x > "$(printf 'caf\\351.txt')"; mkdir "$(printf 'd\\377')"; echo x > "$(printf 'd\\377/a.txt')"`,
  );
  const lost = RUNTIME === "bun" ? ["caf\\xe9.txt", "d\\xff"] : ["caf\ufffd.txt", "d\ufffd"];
  for (const input of [folder.path, `${folder.path}/*`, `${folder.path}/**/*.txt`]) {
    assert.deepEqual(said([input]), [[text, real], `2 names that are not UTF-8 (${lost.join(", ")})`], input);
  }
  // A path that a shell gives with such bytes comes to the program with U+FFFD in their place.
  assert.throws(
    () => findFiles([folder.file("caf\ufffd.txt")]),
    /a name that is not UTF-8 opens nothing, so rename the file/,
  );
});

test("findFiles() takes a name with U+FFFD beside one that looks the same", () => {
  using folder = temporaryDirectory();
  const real = folder.write("caf\ufffd.txt", "real");
  shell(folder.path, `echo x > "$(printf 'caf\\351.txt')"`);
  const [files, skipped] = said([folder.path]);
  assert.deepEqual(files, [real]);
  assert.match(skipped ?? "", /^1 name that is not UTF-8 \(caf(\\xe9|\ufffd)\.txt\)$/);
});

test("findFiles() leaves out links to nowhere, rings of links, pipes and sockets alike, and names them", async () => {
  using folder = temporaryDirectory();
  const text = folder.write("sub/b.txt", "b");
  for (
    const [name, to] of [["c1", "c2"], ["c2", "c1"], ["self", "self"], ["dangling", "nowhere"], [
      ".hidden",
      "x",
    ]] as const
  ) {
    symlinkSync(to, folder.file(`sub/${name}`));
  }
  symlinkSync("b.txt/c", folder.file("sub/through"));
  symlinkSync("/dev/null", folder.file("sub/null"));
  symlinkSync("b.txt", folder.file("sub/link.txt"));
  shell(folder.file("sub"), "mkfifo fifo");
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(folder.file("sub/socket"), resolve));
  try {
    const links = "5 links to nowhere (c1, c2, dangling, …)";
    const special = "3 pipes, sockets or devices (fifo, null, socket)";
    const files = [text, folder.file("sub/link.txt")].sort();
    for (const input of [folder.path, `${folder.path}/sub/*`]) {
      assert.deepEqual(said([input]), [files, `${links}, ${special}`]);
    }
    for (
      const [name, why] of [
        ["c1", "a link that leads nowhere"],
        ["dangling", "a link that leads nowhere"],
        ["fifo", "a pipe, a socket or a device: text is read several times, so save it to a file"],
        ["socket", "a pipe, a socket or a device: .*"],
      ] as const
    ) {
      assert.throws(() => findFiles([folder.file(`sub/${name}`)]), new RegExp(`got '.*${name}', ${why}$`));
    }
  } finally {
    await new Promise((resolve) => server.close(resolve));
  }
});

test("findFiles() leaves out what this user may not read, and names it", {
  skip: process.getuid?.() === 0 ? "needs a user who is not root" : false,
}, () => {
  using folder = temporaryDirectory();
  const [text, closed] = [folder.write("a.txt", "a"), folder.write("closed.txt", "b")];
  folder.write("locked/c.txt", "c");
  chmodSync(closed, 0);
  chmodSync(folder.file("locked"), 0);
  try {
    assert.deepEqual(said([folder.path]), [[text], "2 names without permission to read (locked, closed.txt)"]);
    assert.throws(() => findFiles([closed]), /permission denied/);
  } finally {
    chmodSync(folder.file("locked"), 0o700);
  }
});

async function refusal(file: string): Promise<string> {
  try {
    for await (const _ of openText([file]).documents());
  } catch (error) {
    assert.ok(error instanceof ConfigError, String(error));
    return error.message;
  }
  throw new Error("the text was taken");
}

test("openText() refuses half of a surrogate pair, a zero byte and a document without end", async () => {
  using folder = temporaryDirectory();
  for (
    const [text, said] of [
      ["cut \\ud83d here", /\\ud83d, at character 4: the text was cut/],
      ["\\udc00", /\\udc00, at character 0/],
      ["\\ude00\\ud83d", /\\ude00, at character 0/],
      ["😀\\ud83d\\ud83d\\ude00", /\\ud83d, at character 2/],
    ] as const
  ) {
    const file = folder.write("a.jsonl", `{"text":"fine \\ud83d\\ude00"}\r\n{"text":"${text}"}\r\n`);
    const message = await refusal(file);
    assert.match(message, said);
    assert.ok(message.includes(`${file}:2: data: expected valid Unicode text, got half of a surrogate pair`), message);
  }
  // Escaped zeros in JSON are characters; a byte is a sign that this is no text.
  const zero = folder.write("zero.txt", `${"é".repeat(5000)}\0text`);
  assert.match(await refusal(zero), /zero\.txt: data: expected UTF-8 text, got a zero byte at byte 10000/);
  const long = folder.write("long.txt", "a".repeat(2 ** 20));
  truncateSync(long, 2 ** 29);
  assert.match(
    await refusal(long),
    /long\.txt: data: expected at most 536870848 bytes of a document, got 536870912 or more: split it/,
  );
});

test("packInMemory() refuses half of a surrogate pair of a source of one's own", async () => {
  const source = {
    files: ["memory"],
    byteLength: 3,
    fingerprint: () => "x",
    async *documents(): AsyncIterable<TextDocument> {
      yield { text: "a\ud83db", file: "memory", line: undefined, bytesRead: 3 };
    },
  };
  await assert.rejects(
    packInMemory(source, BYTE_TOKENIZER),
    (error) => error instanceof ArgumentError && /document of memory has half of a surrogate pair/.test(error.message),
  );
});
