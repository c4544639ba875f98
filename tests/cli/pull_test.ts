/** `fullyshard pull` against a server of this process, and models by name in the cache that it fills. @module */
import assert from "node:assert/strict";
import * as fs from "node:fs";
import type { ServerResponse } from "node:http";
import { describe } from "node:test";
import { FileError } from "../../doors/errors.ts";
import { launch, openModel } from "../../mod.ts";
import { fixturePath } from "../support/golden.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { longTest, sharedTest as it } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { COMMIT, gitHash, NAME, pull, run, sha256, TestHub, type Trick } from "./test_hub.ts";

const read = (name: string): Uint8Array => fs.readFileSync(fixturePath(`llama-odd/${name}`));
const WEIGHTS = read("model.safetensors");
const text = (value: unknown): Uint8Array => new TextEncoder().encode(JSON.stringify(value));

/** A model of one file of weights, beside small files, of which some are not pulled. */
const FILES = new Map([
  ["README.md", text("read me")],
  ["config.json", read("config.json")],
  ["pytorch_model.bin", text("old")],
  ["generation_config.json", text({})],
  ["chat_templates/tool.jinja", text("tools")],
  ["onnx/config.json", text({})],
  ["onnx/model.onnx", text("other weights")],
  ["trainer_state.json", text({})],
  [".gitattributes", text("hidden")],
  ["../../../outside.json", text("leaves the folder")],
  ["/tmp/fullyshard-outside.json", text("leaves the folder")],
  ["model.safetensors", WEIGHTS],
  ["tokenizer_config.json", text({ eos: 1 })],
]);

describe("fullyshard pull", () => {
  it("fills the cache as huggingface_hub does, and gets nothing twice", async () => {
    using temporary = temporaryDirectory();
    await using hub = await TestHub.open(FILES);
    const { code, stdout, stderr } = await pull(hub, temporary.path);
    assert.equal(code, 0, stderr);
    const folder = `${temporary.path}/models--tiny--llama-odd`;
    assert.equal(stdout, `${folder}/snapshots/${COMMIT}\n`);
    assert.equal(fs.readFileSync(`${folder}/refs/main`, "utf8"), COMMIT);
    const small = ["README.md", "chat_templates/tool.jinja", "config.json", "generation_config.json"];
    const pulled = [...small, "model.safetensors", "tokenizer_config.json"];
    const there = fs.readdirSync(`${folder}/snapshots/${COMMIT}`, { recursive: true, encoding: "utf8" });
    assert.deepEqual(there.filter((name) => name !== "chat_templates").sort(), pulled);
    for (const name of pulled) {
      const bytes = FILES.get(name) ?? new Uint8Array();
      const etag = name.endsWith(".safetensors") ? sha256(bytes) : gitHash(bytes);
      const up = name.includes("/") ? "../../../" : "../../";
      assert.equal(fs.readlinkSync(`${folder}/snapshots/${COMMIT}/${name}`), `${up}blobs/${etag}`);
      assert.deepEqual(new Uint8Array(fs.readFileSync(`${folder}/blobs/${etag}`)), new Uint8Array(bytes));
    }
    assert.equal(fs.readdirSync(`${folder}/blobs`).length, new Set(pulled.map((name) => String(FILES.get(name)))).size);
    hub.requests.length = 0;
    const again = await pull(hub, temporary.path, [`${NAME}@v1.0`]);
    assert.equal(again.code, 0, again.stderr);
    assert.match(
      again.stderr,
      /^config\.json: \d+ bytes, was there\n(.*, was there\n){4}model\.safetensors: .*, was there\n$/,
    );
    assert.deepEqual(hub.requests.filter((line) => line.startsWith("GET")), [
      `GET /api/models/${NAME}/revision/v1.0`,
    ]);
    assert.deepEqual(fs.readdirSync(`${folder}/refs`).sort(), ["main", "v1.0"]);
    assert.deepEqual([...hub.tokens], ["none"]);

    const estimate = ["--nproc", "2", "--batch", "2", "--seq", "8"];
    const env = { HF_HUB_CACHE: temporary.path };
    for (const name of [NAME, `${NAME}@v1.0`, `${NAME}@${COMMIT}`]) {
      const { code, stderr } = await run(["estimate", "--model", name, ...estimate], env);
      assert.equal(code, 0, stderr);
    }
    const absent = await run(["estimate", "--model", `${NAME}@v2`, ...estimate], env);
    assert.notEqual(absent.code, 0);
    assert.ok(
      absent.stderr.includes(
        `Cannot open '${NAME}@v2': there is no such folder, nor revision 'v2' of '${NAME}' in the cache '${temporary.path}'; ` +
          `get it by: fullyshard pull ${NAME}@v2`,
      ),
      absent.stderr,
    );
  });

  it("gets shards by their index from another host, to which it shows no token", async () => {
    using temporary = temporaryDirectory();
    const index = { weight_map: { a: "model-00001-of-00002.safetensors", b: "model-00002-of-00002.safetensors" } };
    const files = new Map([
      ["config.json", read("config.json")],
      ["model-00001-of-00002.safetensors", WEIGHTS.subarray(0, 5000)],
      ["model-00002-of-00002.safetensors", WEIGHTS.subarray(5000)],
      ["model-00003-of-00002.safetensors", text("of no use")],
      ["model.safetensors.index.json", text(index)],
    ]);
    await using store = await TestHub.open(files);
    await using hub = await TestHub.open(files);
    hub.store = store.host;
    hub.trick = ({ headers }, response) => {
      if (headers.authorization === "Bearer secret") return false;
      response.writeHead(401).end();
      return true;
    };
    const token = temporary.write("token", "secret\n");
    const named = [NAME, "--file-host", store.host];
    const { code, stderr } = await pull(hub, temporary.path, named, { HF_TOKEN_PATH: token });
    assert.equal(code, 0, stderr);
    const snapshot = `${temporary.path}/models--tiny--llama-odd/snapshots/${COMMIT}`;
    assert.deepEqual(fs.readdirSync(snapshot).sort(), [...files.keys()].filter((name) => !name.includes("00003")));
    assert.deepEqual([[...hub.tokens], [...store.tokens]], [["none", "Bearer secret"], ["none"]]);
    if (RUNTIME !== "deno") return;
    using other = temporaryDirectory();
    const refused = await pull(hub, other.path, [NAME], { HF_TOKEN: "secret" });
    assert.equal(refused.code, 2);
    assert.match(refused.stderr, new RegExp(`sends files from ${store.host}, .*add --file-host ${store.host}`));
  });

  it("goes on where an answer ended, in the same run and in a later one", async () => {
    using temporary = temporaryDirectory();
    await using hub = await TestHub.open(FILES);
    let cuts = 0;
    const cut: Trick = ({ method, headers: { range } }, response, file) => {
      if (method !== "GET" || file !== "model.safetensors") return false;
      const start = Number(/\d+/.exec(range ?? "")?.[0] ?? 0);
      if (start >= 9000) return false;
      cuts++;
      const status = start === 0 ? 200 : 206;
      const content = start === 0 ? {} : { "content-range": `bytes ${start}-${WEIGHTS.length - 1}/${WEIGHTS.length}` };
      response.writeHead(status, { "content-length": WEIGHTS.length - start, ...content });
      response.write(WEIGHTS.subarray(start, start + 3000), () => void setTimeout(() => response.destroy(), 50));
      return true;
    };
    hub.trick = cut;
    const { code, stderr } = await pull(hub, temporary.path);
    assert.equal(code, 0, stderr);
    assert.equal(cuts, 3);
    const ranges = hub.requests.filter((line) => line.startsWith("GET") && line.includes("model.safetensors"))
      .map((line) => line.replace(/^.*safetensors ?/, ""));
    assert.deepEqual(ranges, ["", "bytes=3000-", "bytes=6000-", "bytes=9000-"]);
    const folder = `${temporary.path}/models--tiny--llama-odd`;
    const blob = `${folder}/blobs/${sha256(WEIGHTS)}`;
    assert.deepEqual(new Uint8Array(fs.readFileSync(blob)), new Uint8Array(WEIGHTS));

    // Files that a killed run has left, and a server that does not support ranges.
    for (const knowsRanges of [true, false]) {
      fs.rmSync(blob);
      fs.rmSync(`${folder}/refs/main`);
      fs.writeFileSync(`${blob}.fullyshard.incomplete`, WEIGHTS.subarray(0, 4000));
      hub.requests.length = 0;
      hub.trick = (request) => {
        if (!knowsRanges) delete request.headers.range;
        return false;
      };
      const later = await pull(hub, temporary.path);
      assert.equal(later.code, 0, later.stderr);
      assert.match(later.stderr, /model\.safetensors: going on after 3\.9 KiB/);
      assert.ok(hub.requests.some((line) => line.endsWith("bytes=4000-")), hub.requests.join("\n"));
      assert.deepEqual(new Uint8Array(fs.readFileSync(blob)), new Uint8Array(WEIGHTS));
      assert.ok(!fs.existsSync(`${blob}.fullyshard.incomplete`));
    }
  });

  it("refuses a part of a file that does not tell its place", async () => {
    using temporary = temporaryDirectory();
    await using hub = await TestHub.open(FILES);
    hub.trick = ({ method }, response, file) => {
      if (method !== "GET" || file !== "model.safetensors") return false;
      response.writeHead(206, { "content-length": 3000 });
      response.end(WEIGHTS.subarray(0, 3000));
      return true;
    };
    const { code, stderr } = await pull(hub, temporary.path);
    assert.notEqual(code, 0);
    assert.match(stderr, /expected a part of 'model\.safetensors' with its place, got no usable content-range/);
  });

  it("keeps nothing that is damaged, too large for the disk, or named as a path", async () => {
    using temporary = temporaryDirectory();
    await using hub = await TestHub.open(FILES);
    const head = (headers: Readonly<Record<string, string>>): Trick => ({ method }, response, file) => {
      if (method !== "HEAD" || file !== "model.safetensors") return false;
      response.writeHead(200, { "x-linked-etag": `"${"0".repeat(64)}"`, "x-linked-size": "13", ...headers }).end();
      return true;
    };
    const cases = [
      [
        { "x-linked-size": String(WEIGHTS.length) },
        /What came as 'model\.safetensors' is damaged: expected sha256 0+, got/,
      ],
      [
        { "x-linked-size": "900000000000000" },
        /'model\.safetensors' needs 838190\.\d+ GiB more, .* are free; .*HF_HUB_CACHE/,
      ],
      [{ "x-linked-etag": '"../../../evil"' }, /no usable etag of 'model\.safetensors'/],
    ] as const;
    for (const [headers, message] of cases) {
      hub.trick = head(headers);
      const { code, stderr } = await pull(hub, temporary.path);
      assert.notEqual(code, 0);
      assert.match(stderr, message);
      const folder = `${temporary.path}/models--tiny--llama-odd`;
      assert.ok(!fs.existsSync(`${folder}/refs`));
      assert.deepEqual(fs.readdirSync(`${folder}/blobs`).filter((name) => name.includes("incomplete")), []);
    }
    const index = { weight_map: { a: "../../../../evil.safetensors" } };
    await using evil = await TestHub.open(
      new Map([["config.json", text({})], ["model.safetensors.index.json", text(index)]]),
    );
    assert.match(
      (await pull(evil, temporary.path)).stderr,
      /tensor 'a': weight_map must name a \.safetensors file of the same directory, got ".*evil/,
    );
    await using bare = await TestHub.open(new Map([["config.json", text({})], ["pytorch_model.bin", text("old")]]));
    assert.match(
      (await pull(bare, temporary.path)).stderr,
      /expected weights as model\.safetensors or .*, got pytorch_model\.bin/,
    );
  });

  it("writes a file together with other pulls of it", async () => {
    using temporary = temporaryDirectory();
    await using hub = await TestHub.open(FILES);
    // The first answer stops after 3000 bytes until another pull asks for the rest; then both come piece by piece.
    let goOn: () => void = () => {};
    const second = new Promise<void>((resolve) => goOn = resolve);
    const send = async (response: ServerResponse, start: number): Promise<void> => {
      for (let at = start; at < WEIGHTS.length; at += 3000) {
        response.write(WEIGHTS.subarray(at, at + 3000));
        if (at === 0) await second;
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      response.end();
    };
    const ranges: (string | undefined)[] = [];
    hub.trick = ({ method, headers: { range } }, response, file) => {
      if (method !== "GET" || file !== "model.safetensors") return false;
      ranges.push(range);
      const start = Number(/\d+/.exec(range ?? "")?.[0] ?? 0);
      response.writeHead(start === 0 ? 200 : 206, {
        "content-length": WEIGHTS.length - start,
        ...start === 0 ? {} : { "content-range": `bytes ${start}-${WEIGHTS.length - 1}/${WEIGHTS.length}` },
      });
      void send(response, start);
      if (start > 0) goOn();
      return true;
    };
    const blobs = `${temporary.path}/models--tiny--llama-odd/blobs`;
    const first = pull(hub, temporary.path);
    const partial = `${blobs}/${sha256(WEIGHTS)}.fullyshard.incomplete`;
    while (!(fs.existsSync(partial) && fs.statSync(partial).size === 3000)) {
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    for (const { code, stderr } of await Promise.all([pull(hub, temporary.path), first])) assert.equal(code, 0, stderr);
    assert.deepEqual(ranges, [undefined, "bytes=3000-"]);
    assert.equal(fs.readdirSync(blobs).length, 6);
    assert.deepEqual(new Uint8Array(fs.readFileSync(`${blobs}/${sha256(WEIGHTS)}`)), new Uint8Array(WEIGHTS));
  });

  longTest("ends at answers that lead nowhere", async () => {
    using temporary = temporaryDirectory();
    await using hub = await TestHub.open(FILES);
    const ofWeights =
      (answer: (response: ServerResponse, start: number) => void): Trick => (request, response, file) => {
        if (request.method !== "GET" || file !== "model.safetensors") return false;
        answer(response, Number(/\d+/.exec(request.headers.range ?? "")?.[0] ?? 0));
        return true;
      };
    const ofList = (answer: (response: ServerResponse) => void): Trick => ({ url = "" }, response) => {
      if (!url.startsWith("/api/")) return false;
      answer(response);
      return true;
    };
    const cases: readonly (readonly [Trick, RegExp])[] = [
      [ofList((response) => response.writeHead(302, { location: "again" }).end()), /more than 10 redirects from http/],
      [
        ofList((response) => response.writeHead(302, { location: "http://[" }).end()),
        /redirects to 'http:\/\/\[', which is no/,
      ],
      [
        ofWeights((response) => response.writeHead(302, { location: "file:///etc/passwd" }).end()),
        /redirects to 'file:\/\/\/etc\/passwd', which is no address/,
      ],
      [ofList((response) => void response.write("{")), /got what cannot be read: nothing came for 1 s/],
      [
        // Without an end.
        ofWeights((response) => {
          const more = (): void => void (response.destroyed || response.write(WEIGHTS, more));
          more();
        }),
        new RegExp(`is damaged: expected ${WEIGHTS.length} bytes, got \\d+; pull it again`),
      ],
    ];
    for (const [trick, message] of cases) {
      hub.trick = trick;
      const { code, stderr } = await pull(hub, temporary.path, [NAME], { HF_HUB_DOWNLOAD_TIMEOUT: "1" });
      assert.equal(code, 2, stderr);
      assert.match(stderr, message);
    }
    await using torn = await TestHub.open(
      new Map([["config.json", text({})], ["model.safetensors.index.json", text({}).subarray(1)]]),
    );
    const { code, stderr } = await pull(torn, temporary.path);
    assert.deepEqual([code, /index\.json/.test(stderr)], [2, true], stderr);
  });

  longTest("says why a model cannot be had", async () => {
    using temporary = temporaryDirectory();
    await using hub = await TestHub.open(FILES);
    const answers = [
      [404, "RepoNotFound", {}, /there is no such model on 127.*if it is not public, set HF_TOKEN/],
      [404, "RevisionNotFound", {}, /there is no revision 'main'/],
      [401, "", {}, /wants to know who asks: set HF_TOKEN/],
      [401, "", { HF_TOKEN: "x" }, /the token is not valid/],
      [403, "GatedRepo", {}, /it is gated: ask for access at http:.*\/tiny\/llama-odd, then set HF_TOKEN/],
      [403, "", { HF_TOKEN: "x" }, /does not allow it: the token given may not read it/],
      [503, "", {}, /answered with status 503; try again later/],
    ] as const;
    for (const [status, code, env, message] of answers) {
      hub.trick = (_, response) => {
        response.writeHead(status, code === "" ? {} : { "x-error-code": code }).end();
        return true;
      };
      const failed = await pull(hub, temporary.path, [NAME], env);
      assert.equal(failed.code, 2);
      assert.match(failed.stderr, message);
      assert.match(failed.stderr, /Cannot pull 'tiny\/llama-odd': /);
    }
    const env = { HF_HUB_CACHE: temporary.path };
    const closed = await run(["pull", NAME, "--endpoint", "http://127.0.0.1:61"], env);
    assert.match(closed.stderr, /cannot reach 127\.0\.0\.1:61: .*is this machine online\?/);
    const offline = await run(["pull", NAME], { ...env, HF_HUB_OFFLINE: "1" });
    assert.match(offline.stderr, /HF_HUB_OFFLINE is set/);
    for (const wrong of ["../x", "a/b/c", "a--b", "/abs", "x@", ""]) {
      assert.match((await run(["pull", wrong], env)).stderr, /name: expected a model of the Hub/);
    }
    assert.match((await run(["pull", NAME, "--endpoint", "ftp://x"], env)).stderr, /--endpoint: expected an address/);
    assert.deepEqual(fs.readdirSync(temporary.path), []);
  });
});

describe("openModel() by name", () => {
  it("reads the snapshot of the cache, which a folder of that name comes before", async () => {
    using temporary = temporaryDirectory();
    const commit = "f".repeat(40);
    const folder = temporary.file("hub/models--tiny--odd");
    fs.cpSync(fixturePath("llama-odd"), `${folder}/snapshots/${commit}`, { recursive: true });
    temporary.write("hub/models--tiny--odd/refs/main", commit);
    const [before, where] = [process.env["HF_HOME"], process.cwd()];
    await using run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 25 });
    try {
      process.env["HF_HOME"] = temporary.path;
      const named = await openModel(run, "tiny/odd", { fsdpPlan: "auto" });
      assert.equal(named.files?.folder, `${folder}/snapshots/${commit}`);
      fs.cpSync(fixturePath("llama-padding"), temporary.file("tiny/odd"), { recursive: true });
      process.chdir(temporary.path);
      const local = await openModel(run, "tiny/odd", { fsdpPlan: "auto" });
      assert.deepEqual([local.files?.folder, local.vocabSize], ["tiny/odd", 33]);
      await assert.rejects(openModel(run, "tiny/even"), (error) => {
        return error instanceof FileError && error.message.includes(`in the cache '${temporary.path}/hub'`) &&
          error.message.endsWith("get it by: fullyshard pull tiny/even");
      });
      await assert.rejects(openModel(run, "./tiny/even"), /Cannot read '.\/tiny\/even\/config.json'/);
    } finally {
      process.chdir(where);
      if (before === undefined) delete process.env["HF_HOME"];
      else process.env["HF_HOME"] = before;
    }
  });
});
