/** A run's numbers at Weights & Biases, sent to a stand-in that holds requests to the protocol of its SDK. @module */
import assert from "node:assert/strict";
import { createServer, type IncomingMessage } from "node:http";
import { describe, it } from "node:test";
import { z } from "zod";
import { environmentFrom } from "../../src/runtime/env.ts";
import type { EnvName } from "../../src/runtime/variables.ts";
import { openTrackers } from "../../src/trackers/open.ts";
import { wandb } from "../../src/trackers/wandb.ts";
import type { TrackedRun } from "../../src/trackers/tracker.ts";

const TIMES = { answerMs: 2000, retryMs: 20, betweenMs: 0, finishMs: 3000 };
const KEY = "0123456789abcdef-secret";

/** The fields of the mutation that the service has, with the variables' types: `core/api/graphql/mutation_run.graphql` of wandb/wandb. */
const INPUT = {
  ...{ id: "id", name: "name", modelName: "project", entityName: "entity", displayName: "displayName" },
  ...{
    description: "description",
    notes: "notes",
    config: "config",
    host: "host",
    state: "state",
    groupName: "groupName",
  },
};
const TYPES: Readonly<Record<string, string>> = { config: "JSONString", summaryMetrics: "JSONString" };

const graphql = z.strictObject({
  query: z.string(),
  operationName: z.literal("UpsertBucket"),
  variables: z.strictObject({
    name: z.string().regex(/^[\w-]{1,64}$/),
    project: z.string(),
    entity: z.string().optional(),
    displayName: z.string().optional(),
    host: z.string().optional(),
    config: z.string(),
  }),
});
const chunk = z.strictObject({ offset: z.int().nonnegative(), content: z.array(z.string()) });
const stream = z.strictObject({
  files: z.strictObject({ "wandb-history.jsonl": chunk, "wandb-summary.json": chunk }).optional(),
  complete: z.boolean().optional(),
  exitcode: z.int().optional(),
});
const line = z.record(z.string(), z.union([z.number(), z.string()]));
type Line = z.infer<typeof line>;

/** What the service has of a run. */
interface Kept {
  readonly displayName: string | undefined;
  readonly config: Readonly<Record<string, { readonly value: unknown }>>;
  readonly history: Line[];
  summary: Line;
  exitCode: number | undefined;
}

/** Checks the mutation: every variable is declared with its type, and given to the field of the service. */
function requireMutation(query: string): void {
  assert.match(query, /^mutation UpsertBucket\(/);
  const declared = new Map([...query.matchAll(/\$(\w+): (\w+)/g)].map(([, name = "", type]) => [name, type] as const));
  const given = [...query.matchAll(/(\w+): \$(\w+)/g)].map(([, field, name]) => [field, name] as const);
  assert.equal(given.length, declared.size);
  for (const [field = "", name = ""] of given) {
    assert.equal(Reflect.get(INPUT, field), name, `${field}: $${name}`);
    assert.equal(declared.get(name), TYPES[name] ?? "String", name);
  }
}

/** A service on this machine. `fails` says before each request whether it is refused, and with what. */
async function service(fails: (path: string) => number | undefined = () => undefined) {
  const runs = new Map<string, Kept>();
  const problems: unknown[] = [];
  const paths: string[] = [];
  const answerTo = (path: string, text: string): unknown => {
    if (path === "/graphql") {
      const { query, variables } = graphql.parse(JSON.parse(text));
      requireMutation(query);
      const { name, project, entity = "me", displayName, config } = variables;
      const key = `/files/${entity}/${project}/${name}/file_stream`;
      const before = runs.get(key);
      const settings = z.record(z.string(), z.strictObject({ value: z.unknown() })).parse(JSON.parse(config));
      const kept = before ?? { displayName, config: settings, history: [], summary: {}, exitCode: undefined };
      runs.set(key, kept);
      const found = { name: project, entity: { name: entity } };
      const bucket = { id: "QnVja2V0", name, project: found, historyLineCount: kept.history.length };
      return { data: { upsertBucket: { bucket, inserted: before === undefined } } };
    }
    const run = runs.get(decodeURIComponent(path));
    assert.ok(run !== undefined, `no run at ${path}`);
    assert.equal(run.exitCode, undefined, "the run is over");
    const { files, complete, exitcode } = stream.parse(JSON.parse(text));
    if (files !== undefined) {
      const { offset, content } = files["wandb-history.jsonl"];
      assert.ok(offset <= run.history.length, `a gap before line ${offset}`);
      for (const [i, one] of content.entries()) run.history[offset + i] = line.parse(JSON.parse(one));
      const summary = files["wandb-summary.json"];
      assert.deepEqual([summary.offset, summary.content.length], [0, 1]);
      run.summary = line.parse(JSON.parse(summary.content[0] ?? ""));
    }
    if (complete === true) run.exitCode = exitcode;
    return { exitcode: null, limits: {} };
  };
  const server = createServer((request: IncomingMessage, response) => {
    let text = "";
    request.setEncoding("utf8").on("data", (piece) => text += piece).on("end", () => {
      const { url: path = "", headers, method } = request;
      paths.push(path);
      let [status, answer]: [number, unknown] = [fails(path) ?? 200, { error: "refused" }];
      try {
        assert.equal(method, "POST");
        assert.equal(headers["content-type"], "application/json");
        assert.equal(headers.authorization, `Basic ${btoa(`api:${KEY}`)}`);
        // What the service takes before it fails, as behind a gateway whose answer is lost.
        if (status === 200 || status === 502) answer = answerTo(path, text);
      } catch (error) {
        problems.push(error);
        status = 400;
      }
      response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(answer));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  assert.ok(typeof address === "object" && address !== null);
  return {
    ...{ runs, problems, paths, url: `http://127.0.0.1:${address.port}` },
    [Symbol.asyncDispose]: () => new Promise<void>((resolve) => server.close(() => resolve())),
  };
}

function environment(values: Partial<Record<EnvName, string>>): ReturnType<typeof environmentFrom> {
  return environmentFrom((name) => values[name]);
}

function tracked(warnings: string[], part: Partial<TrackedRun> = {}): TrackedRun {
  const settings = { steps: "3", model: "llama" };
  return { folder: "r", name: "mine", step: 0, settings, warn: (text) => warnings.push(text), ...part };
}

/** The only run of a service. */
function only<T>(runs: ReadonlyMap<string, T>): readonly [path: string, run: T] {
  const [first] = runs;
  assert.ok(first !== undefined && runs.size === 1, `${runs.size} runs`);
  return first;
}

describe("wandb()", () => {
  it("makes a run, and sends settings, every number in its place, the summary and the end", async () => {
    await using server = await service();
    const warnings: string[] = [];
    const values = {
      WANDB_BASE_URL: `${server.url}/`,
      WANDB_API_KEY: KEY,
      WANDB_PROJECT: "a project",
      WANDB_ENTITY: "team",
    };
    const tracker = wandb(tracked(warnings), environment(values), TIMES);
    for (let step = 1; step <= 2500; step++) tracker.log(step, { "train/loss": step === 2 ? NaN : 1 / step });
    tracker.log(2501, { "eval/loss": Infinity });
    await tracker.finish("finished");
    assert.deepEqual(server.problems, []);
    assert.deepEqual(warnings, []);
    const [path, run] = only(server.runs);
    assert.match(path, /^\/files\/team\/a project\/[0-9a-z]{8}\/file_stream$/);
    assert.equal(run.displayName, "mine");
    assert.deepEqual(run.config, { steps: { value: "3" }, model: { value: "llama" } });
    assert.deepEqual(run.history.map(({ _step }) => _step), Array.from({ length: 2501 }, (_, i) => i + 1));
    assert.equal(run.history[0]?.["train/loss"], 1);
    assert.equal(run.history[1]?.["train/loss"], "NaN");
    assert.ok(run.history.every(({ _timestamp, _runtime }) => Number(_timestamp) > 1e9 && Number(_runtime) >= 0));
    const { "train/loss": loss, "eval/loss": evalLoss, _step } = run.summary;
    assert.deepEqual([loss, evalLoss, _step, run.exitCode], [1 / 2500, "Infinity", 2501, 0]);
  });

  it("goes on with the run that WANDB_RUN_ID names, behind its lines, and tells the step that it resumed at", async () => {
    await using server = await service();
    const values = { WANDB_BASE_URL: server.url, WANDB_API_KEY: KEY, WANDB_RUN_ID: "old" };
    for (const step of [0, 2]) {
      const tracker = wandb(tracked([], { step }), environment(values), TIMES);
      tracker.log(step + 1, { "train/loss": 1 });
      tracker.log(step + 2, { "train/loss": 2 });
      await tracker.finish("failed");
      const [path, run] = only(server.runs);
      assert.equal(path, "/files/me/uncategorized/old/file_stream");
      assert.equal(run.exitCode, 1);
      assert.equal(run.displayName, undefined);
      run.exitCode = undefined;
    }
    assert.deepEqual(only(server.runs)[1].history.map(({ _step }) => _step), [1, 2, 3, 4]);
    assert.deepEqual(server.problems, []);
  });

  it("sends again what a server did not take, or took without an answer, to the same places", async () => {
    const failures = new Map([["/graphql", [503, 502]], ["stream", [502, 503]]]);
    await using server = await service((path) => failures.get(path === "/graphql" ? path : "stream")?.shift());
    const warnings: string[] = [];
    const values = { WANDB_BASE_URL: server.url, WANDB_API_KEY: KEY };
    const tracker = wandb(tracked(warnings), environment(values), { ...TIMES, retryMs: 0 });
    for (let step = 1; server.paths.length < 6; step++) {
      tracker.log(step, { "train/loss": step });
      await new Promise<void>((resolve) => setTimeout(resolve, 2));
    }
    await tracker.finish("finished");
    const { history, exitCode } = only(server.runs)[1];
    assert.deepEqual(history.map(({ _step }) => _step), history.map((_, i) => i + 1));
    assert.deepEqual([exitCode, server.problems, warnings.length], [0, [], 1]);
    assert.match(
      warnings[0] ?? "",
      /^W&B at http:\/\/127\.0\.0\.1:\d+ cannot be used now: it answers 50\d.*Training goes on/,
    );
    assert.ok(!warnings.join().includes(KEY) && !warnings.join().includes(btoa(`api:${KEY}`)));
  });

  it("says what a server refuses, and how many numbers it did not get, without the key", async () => {
    await using server = await service(() => 401);
    const warnings: string[] = [];
    const values = { WANDB_BASE_URL: server.url, WANDB_API_KEY: KEY };
    const tracker = wandb(tracked(warnings), environment(values), TIMES);
    tracker.log(1, { "train/loss": 1, "train/grad_norm": 2 });
    await tracker.finish("finished");
    assert.match(warnings[0] ?? "", /it answers 401/);
    assert.match(warnings[1] ?? "", /^W&B did not get the last 2 numbers; 'metrics\.jsonl' has them$/);
    assert.ok(warnings.every((text) => !text.includes("secret")));
  });

  it("ends within its time where no server answers", async () => {
    const silent = createServer(() => {});
    await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", resolve));
    const address = silent.address();
    assert.ok(typeof address === "object" && address !== null);
    const values = { WANDB_BASE_URL: `http://127.0.0.1:${address.port}`, WANDB_API_KEY: KEY };
    const warnings: string[] = [];
    const tracker = wandb(tracked(warnings), environment(values), { ...TIMES, answerMs: 100, finishMs: 300 });
    tracker.log(1, { "train/loss": 1 });
    await tracker.finish("finished");
    assert.match(warnings.at(-1) ?? "", /did not get the last 1 numbers/);
    silent.closeAllConnections();
    await new Promise<void>((resolve) => silent.close(() => resolve()));
  });

  it("sends nothing for a run without steps", async () => {
    await using server = await service();
    const values = { WANDB_BASE_URL: server.url, WANDB_API_KEY: KEY };
    await wandb(tracked([]), environment(values), TIMES).finish("failed");
    assert.deepEqual(server.paths, []);
  });
});

describe("openTrackers()", () => {
  it("refuses W&B without a key or with an address that is none, and shows neither", () => {
    const cases: readonly (readonly [values: Partial<Record<EnvName, string>>, expected: RegExp])[] = [
      [{}, /WANDB_API_KEY: expected a key of W&B, .*, got nothing/],
      [
        { WANDB_API_KEY: "two words-secret" },
        /WANDB_API_KEY: expected a key of W&B, .*, got characters that no key has/,
      ],
      [
        { WANDB_API_KEY: KEY, WANDB_BASE_URL: "me.secret" },
        /WANDB_BASE_URL: expected the http:\/\/ or https:\/\/ address/,
      ],
      [
        { WANDB_API_KEY: KEY, WANDB_BASE_URL: "https://me:secret@x" },
        /WANDB_BASE_URL: expected .* without a name or password/,
      ],
    ];
    for (const [values, expected] of cases) {
      assert.throws(() => openTrackers(["wandb"], tracked([]), environment(values)), (error) => {
        assert.ok(error instanceof Error);
        assert.match(error.message, expected);
        assert.doesNotMatch(error.message, /secret/);
        return true;
      });
    }
  });
});
