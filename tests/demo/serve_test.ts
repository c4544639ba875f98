/** The demo's server: its headers, its files and nothing else, and who may not ask. @module */
import assert from "node:assert/strict";
import { request } from "node:http";
import { test } from "node:test";
import { FileError } from "../../src/errors.ts";
import { DEMO_FILES, serveDemo } from "../../src/demo/serve.ts";
import { temporaryDirectory } from "../support/temporary.ts";

interface Answer {
  readonly status: number | undefined;
  readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>;
  readonly body: string;
}

function ask(port: number, path: string, { method = "GET", host = `127.0.0.1:${port}` } = {}): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const asked = request({ host: "127.0.0.1", port, path, method, headers: { host } }, (response) => {
      let body = "";
      response.on("data", (piece) => body += String(piece));
      response.on("end", () => resolve({ status: response.statusCode, headers: response.headers, body }));
    });
    asked.on("error", reject);
    asked.end();
  });
}

test("serveDemo() serves its files with the isolation headers, and nothing else", async () => {
  using folder = temporaryDirectory();
  for (const name of Object.keys(DEMO_FILES)) folder.write(name, `contents of ${name}`);
  folder.write("secret.txt", "not for readers");
  const server = await serveDemo(folder.path, 0);
  try {
    const { port } = server;
    for (const [path, name] of [["/", "index.html"], ...Object.keys(DEMO_FILES).map((name) => [`/${name}?x`, name])]) {
      const { status, headers, body } = await ask(port, path ?? "");
      assert.deepEqual([status, body], [200, `contents of ${name}`]);
      assert.equal(headers["content-type"], DEMO_FILES[name ?? ""]);
      assert.equal(headers["cross-origin-opener-policy"], "same-origin");
      assert.equal(headers["cross-origin-embedder-policy"], "require-corp");
    }
    for (
      const path of ["/secret.txt", "/../secret.txt", "/pkg/../secret.txt", "/toString", "/pkg/", "/%2e%2e/secret.txt"]
    ) {
      assert.equal((await ask(port, path)).status, 404, path);
    }
    assert.deepEqual([
      (await ask(port, "/", { method: "HEAD" })).body,
      (await ask(port, "/", { method: "POST" })).status,
    ], ["", 405]);
    assert.equal((await ask(port, "/", { host: `localhost:${port}` })).status, 200);
    // DNS rebinding: the name of a site that leads to this machine.
    for (const host of [`evil.example:${port}`, "127.0.0.1", `127.0.0.1:${port}.evil.example`]) {
      assert.equal((await ask(port, "/", { host })).status, 403, host);
    }
  } finally {
    server.close();
  }
});

test("serveDemo() names a file that is missing", async () => {
  using folder = temporaryDirectory();
  await assert.rejects(serveDemo(folder.path, 0), FileError);
});
