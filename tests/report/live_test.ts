/** Live pages: who may ask for what, readers that are slow or late, and the buttons of the page. @module */
import assert from "node:assert/strict";
import { appendFileSync } from "node:fs";
import { type IncomingMessage, request } from "node:http";
import { test } from "node:test";
import { ConfigError } from "../../doors/errors.ts";
import { Logger } from "../../src/runtime/log.ts";
import { Feed } from "../../src/report/live/feed.ts";
import { type Asked, judge } from "../../src/report/live/gate.ts";
import { openLivePage } from "../../src/train/live.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { metricsLine, writeStoredRun } from "../support/stored_run.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const door = { port: 4000, secret: "0123456789abcdef" };
const page: Asked = {
  method: "GET",
  path: `/${door.secret}/`,
  host: "127.0.0.1:4000",
  origin: undefined,
  site: "none",
};

test("judge() lets the page itself in, by either name of this machine", () => {
  assert.deepEqual(judge(page, door), { route: "page" });
  assert.deepEqual(judge({ ...page, host: "localhost:4000", path: `/${door.secret}/events?x` }, door), {
    route: "events",
  });
  const post = { ...page, method: "POST", site: "same-origin", origin: "http://127.0.0.1:4000" };
  for (const route of ["save", "stop"]) {
    assert.deepEqual(judge({ ...post, path: `/${door.secret}/${route}` }, door), { route });
  }
});

test("judge() refuses other secrets, hosts, origins and methods", () => {
  const post = { ...page, method: "POST", path: `/${door.secret}/stop`, origin: "http://127.0.0.1:4000" };
  const refused: readonly (readonly [number, Asked])[] = [
    ...["/", "//", "/0123456789abcde/", "/0123456789abcdef0/", "/0123456789abcdeF/", "/events"].map((path) =>
      [403, { ...page, path }] as const
    ),
    // DNS rebinding: the name of a site that leads to this machine; or no name, another port, another address.
    ...["evil.example:4000", undefined, "127.0.0.1:4001", "127.0.0.1", "0.0.0.0:4000", "127.0.0.1:4000.evil.example"]
      .map((
        host,
      ) => [403, { ...page, host }] as const),
    ...["http://evil.example", "null", "https://127.0.0.1:4000", "http://localhost:4000", "http://127.0.0.1:4000/"].map(
      (
        origin,
      ) => [403, { ...post, origin }] as const,
    ),
    ...["cross-site", "same-site"].map((site) => [403, { ...page, site }] as const),
    [403, { ...post, origin: undefined }],
    [405, { ...post, method: "GET", origin: undefined }],
    [405, { ...page, method: "POST" }],
    ...["", "/stop/", "/toString", "/save/x"].map((rest) =>
      [404, { ...page, path: `/${door.secret}${rest}` }] as const
    ),
  ];
  for (const [status, asked] of refused) {
    const verdict = judge(asked, door);
    assert.equal("status" in verdict ? verdict.status : 200, status, JSON.stringify(asked));
  }
});

test("Feed sends a slow reader the newest state only, and a late one at once", () => {
  const feed = new Feed();
  const reader = (takes: boolean) => {
    const written: string[] = [];
    const sink = {
      takes,
      write: (text: string): boolean => {
        written.push(text);
        return sink.takes;
      },
      end: () => void written.push("end"),
    };
    return { written, sink, connection: feed.add(sink) };
  };
  const [fast, slow] = [reader(true), reader(false)];
  for (let i = 1; i <= 1000; i++) feed.publish("run", String(i));
  assert.equal(fast.written.length, 1001);
  assert.deepEqual(slow.written, ["retry: 1000\n\n"], "no queue");
  slow.connection.drained();
  slow.connection.drained();
  assert.deepEqual(slow.written.slice(1), ["event: run\ndata: 1000\n\n"]);
  const late = reader(true);
  assert.deepEqual(late.written.slice(1), ["event: run\ndata: 1000\n\n"]);
  fast.connection.gone();
  assert.equal(feed.size, 2);
  feed.publish("run", "1001");
  feed.end("end", "{}");
  assert.equal(fast.written.length, 1001);
  for (const { written } of [slow, late]) {
    assert.deepEqual(written.slice(-3), ["event: run\ndata: 1001\n\n", "event: end\ndata: {}\n\n", "end"]);
  }
});

test("Feed sends the newest state of each part, and none that a reader has", () => {
  const feed = new Feed();
  const written: string[] = [];
  const sink = { takes: false, write: (text: string) => (written.push(text), sink.takes), end: () => {} };
  const reader = feed.add(sink);
  for (const data of ["1", "2"]) feed.publish("run", data);
  for (const data of ["a", "b", "b"]) feed.publish("rest", data);
  sink.takes = true;
  reader.drained();
  assert.deepEqual(written.splice(0), ["retry: 1000\n\n", "event: run\ndata: 2\n\nevent: rest\ndata: b\n\n"]);
  feed.publish("run", "3");
  feed.publish("rest", "b");
  assert.deepEqual(written, ["event: run\ndata: 3\n\n"]);
});

/** Status and text of an answer to a request with any headers. */
function ask(
  address: string,
  { method = "GET", headers = {} }: { method?: string; headers?: Readonly<Record<string, string>> } = {},
): Promise<{ readonly status: number | undefined; readonly text: string }> {
  return new Promise((resolve, reject) => {
    const asked = request(address, { method, headers }, (answer) => {
      let text = "";
      answer.setEncoding("utf8").on("data", (piece: string) => text += piece)
        .on("end", () => resolve({ status: answer.statusCode, text }));
    });
    asked.on("error", reject);
    asked.end();
  });
}

/** Events as they come. */
async function* eventsAt(address: string): AsyncGenerator<{ readonly name: string; readonly data: string }> {
  const { body } = await fetch(`${address}events`);
  assert.ok(body !== null);
  let text = "";
  for await (const piece of body.pipeThrough(new TextDecoderStream())) {
    text += piece;
    const blocks = text.split("\n\n");
    text = blocks.pop() ?? "";
    for (const block of blocks) {
      const [, name = "", data = ""] = /^event: (.*)\ndata: (.*)$/.exec(block) ?? [];
      if (name !== "") yield { name, data };
    }
  }
}

/** The steps that a state has; none where it is of the sections that seldom change. */
function stepsOf(data: string): readonly number[] {
  const { data: numbers }: { data?: { runs: readonly { steps: readonly number[] }[] } } = JSON.parse(data);
  return numbers?.runs[0]?.steps ?? [];
}

test(
  `openLivePage() serves the run's page, follows its folder and takes wishes, under ${RUNTIME}`,
  { timeout: 30_000 },
  async () => {
    using folder = temporaryDirectory();
    writeStoredRun(folder, "run", { record: { name: "an earlier run" } });
    const lines: string[] = [];
    const log = new Logger({ sink: ({ message }) => void lines.push(message) });
    const config = { out: folder.file("run"), runName: "mine", livePort: 0 };
    using live = await openLivePage(config, log);
    const [address = ""] = /http:\S+/.exec(lines[0] ?? "") ?? [];
    assert.match(address, /^http:\/\/127\.0\.0\.1:\d+\/[0-9a-f]{32}\/$/);
    const { origin } = new URL(address);

    const first = await ask(address);
    assert.equal(first.status, 200);
    assert.match(first.text, /<h1>mine<\/h1>[^]*Save now[^]*The run has not finished its first step yet/);
    assert.doesNotMatch(first.text, /an earlier run|once upon/);
    const second = openLivePage({ ...config, livePort: Number(new URL(address).port) }, log);
    await assert.rejects(second, (error) => error instanceof ConfigError && /livePort/.test(error.message));

    for (
      const [status, path, options] of [
        [403, `${origin}/`, {}],
        [403, address.replace(/.(?=\/$)/, "g"), {}],
        [403, address, { headers: { host: "evil.example" } }],
        [403, `${address}stop`, { method: "POST" }],
        [403, `${address}stop`, { method: "POST", headers: { origin: "http://evil.example" } }],
        [405, `${address}stop`, {}],
        [404, `${address}other`, {}],
      ] as const
    ) assert.equal((await ask(path, options)).status, status, `${path} ${JSON.stringify(options)}`);
    assert.deepEqual(live.take(), { saves: false, stops: false });
    for (const name of ["save", "save", "stop"]) {
      assert.equal((await ask(address + name, { method: "POST", headers: { origin } })).status, 204);
    }
    assert.deepEqual([live.take(), live.take()], [{ saves: true, stops: true }, { saves: false, stops: false }]);

    const events = eventsAt(address);
    const began = events.next();
    writeStoredRun(folder, "run", { record: { name: "mine", started: Date.now() + 1000 }, steps: 3, sample: "<b>" });
    const { value: state } = await began;
    assert.equal(state?.name, "run");
    let steps = stepsOf(state?.data ?? "");
    let markup = "";
    // A look may fall between two files.
    while (steps.length < 3 || !markup.includes("&#60;b&#62;")) {
      const { value: next = assert.fail("the events have ended") } = await events.next();
      if (next.name === "rest") markup = next.data;
      else steps = stepsOf(next.data);
    }
    assert.deepEqual(steps, [1, 2, 3]);
    const late = eventsAt(address);
    assert.deepEqual(stepsOf((await late.next()).value?.data ?? ""), [1, 2, 3], "a reload gets the newest state");
    await live.finish();
    for (const reader of [events, late]) {
      let name = "";
      for await (const event of reader) name = event.name;
      assert.equal(name, "end");
    }
    assert.equal(lines.length, 1);
  },
);

test("a live page that is read by 50, of which none goes on to read, follows its run, and tells why it has failed", async () => {
  using folder = temporaryDirectory();
  let line = "";
  const log = new Logger({ sink: ({ message }) => void (line = message) });
  using live = await openLivePage({ out: folder.file("run"), runName: "mine", livePort: 0 }, log);
  const [address = ""] = /http:\S+/.exec(line) ?? [];
  // They take the headers, and nothing more.
  const opened = await Promise.all(Array.from({ length: 50 }, () =>
    new Promise<IncomingMessage>((resolve, reject) => {
      request(`${address}events`, resolve).on("error", reject).end();
    })));
  const statuses = opened.map(({ statusCode }) => statusCode);
  assert.deepEqual([200, 403].map((status) => statuses.filter((one) => one === status).length), [16, 34]);
  const run = writeStoredRun(folder, "run", {
    record: { started: Date.now() + 1000 },
    steps: 3,
    sample: "x".repeat(2e5),
  });
  for (let step = 4; step < 40; step++) appendFileSync(`${run}/metrics.jsonl`, `${metricsLine(step)}\n`);
  for (const one of opened) if (one.statusCode === 403) one.destroy();
  opened.find(({ statusCode }) => statusCode === 200)?.destroy();
  // There is room for one more as soon as the server has seen that; it gets the newest state, and the run's last word.
  let events = eventsAt(address);
  let next = await events.next().catch(() => undefined);
  while (next?.value === undefined) {
    events = eventsAt(address);
    next = await events.next().catch(() => undefined);
  }
  while (stepsOf(next?.value?.data ?? "{}").length < 39) next = await events.next();
  await live.finish("CollectiveError: rank 1 died");
  let { value: last } = await events.next();
  while (last !== undefined && last.name !== "end") ({ value: last } = await events.next());
  assert.deepEqual([last?.name, last?.data], ["end", '{"failure":"CollectiveError: rank 1 died"}']);
  for (const one of opened) one.destroy();
});
