/** Trackers beside a run: what they are sent, and that their faults are told once and stop nothing. @module */
import assert from "node:assert/strict";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer, type IncomingMessage, type Server } from "node:http";
import { describe, it } from "node:test";
import { environmentFrom } from "../../src/runtime/env.ts";
import type { EnvName } from "../../src/runtime/variables.ts";
import { mlflow } from "../../src/trackers/mlflow.ts";
import { openTrackers } from "../../src/trackers/open.ts";
import { tensorBoard } from "../../src/trackers/tensorboard.ts";
import { scalarsOf, type TrackedRun } from "../../src/trackers/tracker.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const TIMES = { answerMs: 2000, retryMs: 50, betweenMs: 0, finishMs: 1000 };

function runIn(folder: string, warnings: string[], part: Partial<TrackedRun> = {}): TrackedRun {
  return { folder, name: "mine", step: 0, settings: { steps: "3" }, warn: (text) => warnings.push(text), ...part };
}

function environment(values: Partial<Record<EnvName, string>>): ReturnType<typeof environmentFrom> {
  return environmentFrom((name) => values[name]);
}

/** A request as MLflow gets it. */
interface Asked {
  readonly path: string;
  readonly body: Record<string, unknown>;
  readonly authorization: string | undefined;
}

/** A server that takes what the client sends. `answer` gives a status and a body, by path. */
async function mlflowServer(
  answer: (path: string) => readonly [number, unknown],
): Promise<AsyncDisposable & { readonly url: string; readonly asked: Asked[] }> {
  const asked: Asked[] = [];
  const server: Server = createServer((request: IncomingMessage, response) => {
    let text = "";
    request.setEncoding("utf8").on("data", (piece) => text += piece).on("end", () => {
      const path = (request.url ?? "").replace("/api/2.0/mlflow/", "");
      asked.push({ path, body: JSON.parse(text || "{}"), authorization: request.headers.authorization });
      const [status, body] = answer(path);
      response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(body));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  assert.ok(typeof address === "object" && address !== null);
  return {
    url: `http://127.0.0.1:${address.port}`,
    asked,
    [Symbol.asyncDispose]: () => new Promise((resolve) => server.close(() => resolve())),
  };
}

const found = (path: string): readonly [number, unknown] => {
  if (path.startsWith("experiments/get-by-name")) {
    return [404, { error_code: "RESOURCE_DOES_NOT_EXIST", message: "no" }];
  }
  if (path === "experiments/create") return [200, { experiment_id: "7" }];
  if (path === "runs/create") return [200, { run: { info: { run_id: "abc" } } }];
  return [200, {}];
};

describe("scalarsOf()", () => {
  it("gives the Trainer's tags, and leaves out what trackers have of their own", () => {
    const line = { step: 3, wall_time: 1, loss: 2, learning_rate: 0.1, eval_loss: 1.5, eval_accuracy: undefined };
    assert.deepEqual(scalarsOf(line), { "train/loss": 2, "train/learning_rate": 0.1, "eval/loss": 1.5 });
    const figures = {
      "rewards/margins": 1,
      "logps/chosen": 2,
      nll_loss: 3,
      log_odds_ratio: 4,
      log_odds_chosen: 5,
      eval_nll_loss: 6,
    };
    assert.deepEqual(scalarsOf(figures), {
      ...{ "train/rewards/margins": 1, "train/logps/chosen": 2, "train/nll_loss": 3 },
      ...{ "train/log_odds_ratio": 4, "train/log_odds_chosen": 5, "eval/nll_loss": 6 },
    });
  });
});

describe("tensorBoard()", () => {
  it("makes its file with the first step, beside the files of earlier starts", async () => {
    using folder = temporaryDirectory();
    const [warnings, place]: [string[], string] = [[], folder.file("board")];
    const tracker = tensorBoard(runIn(folder.path, warnings), place);
    assert.throws(() => readdirSync(place));
    tracker.log(1, { "train/loss": 2 });
    await tracker.finish("finished");
    const [name = ""] = readdirSync(place);
    assert.match(name, /^events\.out\.tfevents\.\d+\..+\.\d+\.0$/);
    const text = readFileSync(`${place}/${name}`, "latin1");
    for (const part of ["brain.Event:2", "args/text_summary", "| steps | 3 |", "train/loss"]) {
      assert.ok(text.includes(part));
    }
    assert.deepEqual(warnings, []);
  });

  it("says once that its folder cannot be written, and takes the rest in silence", async () => {
    using folder = temporaryDirectory();
    writeFileSync(folder.file("board"), "a file");
    const warnings: string[] = [];
    const tracker = tensorBoard(runIn(folder.path, warnings), folder.file("board"));
    for (const step of [1, 2, 3]) tracker.log(step, { "train/loss": 2 });
    await tracker.finish("finished");
    assert.equal(warnings.length, 1);
    assert.match(warnings[0] ?? "", /^TensorBoard's file is not written any more: .*board.*Training goes on/s);
  });
});

describe("mlflow()", () => {
  it("makes experiment and run, and sends settings, every number and the end", async () => {
    await using server = await mlflowServer(found);
    const warnings: string[] = [];
    const values = { MLFLOW_TRACKING_URI: server.url.replace("//", "//me:secret@"), MLFLOW_EXPERIMENT_NAME: "Mine" };
    const tracker = mlflow(runIn("r", warnings), environment(values), TIMES);
    for (let step = 1; step <= 1200; step++) tracker.log(step, { "train/loss": step === 2 ? NaN : step });
    await tracker.finish("finished");
    assert.deepEqual(warnings, []);
    const paths = server.asked.map(({ path }) => path);
    assert.deepEqual(paths.slice(0, 4), [
      "experiments/get-by-name?experiment_name=Mine",
      "experiments/create",
      "runs/create",
      "runs/log-batch",
    ]);
    assert.equal(paths.at(-1), "runs/update");
    assert.equal(server.asked.at(-1)?.body["status"], "FINISHED");
    assert.equal(server.asked[2]?.body["run_name"], "mine");
    const metrics = server.asked.flatMap(({ body }) => Array.isArray(body["metrics"]) ? body["metrics"] : []);
    assert.deepEqual(metrics.map(({ step }) => step), Array.from({ length: 1200 }, (_, i) => i + 1));
    assert.equal(metrics[1].value, "NaN");
    assert.ok(server.asked.every(({ authorization }) => authorization === `Basic ${btoa("me:secret")}`));
  });

  it("goes on with the run that MLFLOW_RUN_ID names, whose settings it leaves", async () => {
    await using server = await mlflowServer(found);
    const values = { MLFLOW_TRACKING_URI: server.url, MLFLOW_RUN_ID: "old", MLFLOW_TRACKING_TOKEN: "t" };
    const tracker = mlflow(runIn("r", []), environment(values), TIMES);
    tracker.log(4, { "train/loss": 1 });
    await tracker.finish("failed");
    assert.deepEqual(server.asked.map(({ path, body }) => [path, body["run_id"], body["status"]]), [
      ["runs/update", "old", "RUNNING"],
      ["runs/log-batch", "old", undefined],
      ["runs/update", "old", "FAILED"],
    ]);
    assert.equal(server.asked[0]?.authorization, "Bearer t");
  });

  it("keeps what a server that is down did not take, and sends it when it is back", async () => {
    let isDown = true;
    await using server = await mlflowServer((path) => isDown ? [503, { message: "later" }] : found(path));
    const warnings: string[] = [];
    const tracker = mlflow(runIn("r", warnings), environment({ MLFLOW_TRACKING_URI: server.url }), TIMES);
    tracker.log(1, { "train/loss": 1 });
    while (warnings.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    assert.match(warnings[0] ?? "", /^MLflow at http:\/\/127\.0\.0\.1:\d+ cannot be used now: it answers 503/);
    isDown = false;
    tracker.log(2, { "train/loss": 2 });
    await tracker.finish("finished");
    const metrics = server.asked.flatMap(({ body }) => Array.isArray(body["metrics"]) ? body["metrics"] : []);
    assert.deepEqual(metrics.map(({ step }) => step), [1, 2]);
    assert.equal(warnings.length, 1);
  });

  it("ends within its time where no server answers, and says how many numbers are missing", async () => {
    const warnings: string[] = [];
    const silent = createServer(() => {});
    await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", resolve));
    const address = silent.address();
    assert.ok(typeof address === "object" && address !== null);
    const values = { MLFLOW_TRACKING_URI: `http://127.0.0.1:${address.port}` };
    const tracker = mlflow(runIn("r", warnings), environment(values), {
      answerMs: 150,
      retryMs: 50,
      betweenMs: 0,
      finishMs: 400,
    });
    tracker.log(1, { "train/loss": 1, "train/grad_norm": 1 });
    await tracker.finish("finished");
    assert.match(warnings.at(-1) ?? "", /did not get the last 2 numbers; 'metrics\.jsonl' has them/);
    silent.closeAllConnections();
    await new Promise<void>((resolve) => silent.close(() => resolve()));
  });
});

describe("openTrackers()", () => {
  it("refuses MLflow without the address of a server, and shows no password", () => {
    for (const uri of [undefined, "./mlruns", "sqlite:///me:secret@x.db"]) {
      const values = uri === undefined ? {} : { MLFLOW_TRACKING_URI: uri };
      assert.throws(() => openTrackers(["mlflow"], runIn("r", []), environment(values)), (error) => {
        assert.ok(error instanceof Error);
        assert.match(error.message, /MLFLOW_TRACKING_URI: expected the http:\/\/ address/);
        assert.doesNotMatch(error.message, /secret/);
        return true;
      });
    }
  });
});
