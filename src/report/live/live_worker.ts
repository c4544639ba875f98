/**
 * The Worker that serves a live page: the report of the run's folder, and its newest state as server-sent events.
 *
 * @module
 */
import * as z from "zod";
import type { IncomingMessage, ServerResponse } from "node:http";
import { givenData } from "../../runtime/background_worker.ts";
import { type LoopbackServer, serveLoopback } from "../../runtime/loopback_server.ts";
import { permissionRemedy } from "../../runtime/permissions.ts";
import { safe } from "../html.ts";
import { renderReport } from "../render.ts";
import { Feed } from "./feed.ts";
import { judge } from "./gate.ts";
import { LiveRun } from "./live_run.ts";
import { LiveWords } from "./words.ts";

/** Least milliseconds between two looks at the folder. */
const LOOK_EVERY_MS = 250;

/** The Worker rests this many times as long as a look took, so that looks take about 0.5 % of a core from the ranks, */
const REST_PER_LOOK = 200;
/** but by no more milliseconds than these. */
const MOST_REST_MS = 5000;

/** Most readers at a time. */
const MOST_READERS = 16;

/** Headers of every answer. */
const HEADERS = {
  "Cache-Control": "no-store",
  "X-Content-Type-Options": "nosniff",
  "X-Frame-Options": "DENY",
  "Referrer-Policy": "no-referrer",
  "Cross-Origin-Resource-Policy": "same-origin",
  "Cross-Origin-Opener-Policy": "same-origin",
} as const;

const job = z.object({
  folder: z.string(),
  name: z.string(),
  port: z.int(),
  secret: z.string(),
  begun: z.number(),
  words: z.instanceof(SharedArrayBuffer),
}).parse(givenData());

const words = new LiveWords(job.words);
const live = new LiveRun(job.folder, job.name, job.begun);
const feed = new Feed();
/** Time of the next look. */
let due = 0;
/** Milliseconds of the last look; the first one, whose code runs for the first time, tells nothing of the next ones. */
let lastLook = 0;
const controls =
  safe`<div id="live"><p id="live-state" role="status">Connecting to the run.</p><button id="save" type="button">Save now</button> <button id="stop" type="button">Stop after this step</button></div>`;

const server = await listen();
if (server !== undefined) {
  words.set("port", server.port);
  look(server);
}

/** Listens; leaves the reason where it cannot. */
async function listen(): Promise<LoopbackServer | undefined> {
  try {
    return await serveLoopback(job.port, (request, response) => {
      answer(request, response).catch((error) => end(response, 500, reasonOf(error)));
    });
  } catch (error) {
    words.fail(reasonOf(error));
    return undefined;
  }
}

function reasonOf(error: unknown): string {
  return permissionRemedy(error) ?? (error instanceof Error ? error.message : String(error));
}

async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { method = "GET", url = "/", headers } = request;
  const site = headers["sec-fetch-site"];
  const asked = { method, path: url, host: headers.host, origin: headers.origin };
  const verdict = judge({ ...asked, site: typeof site === "string" ? site : undefined }, {
    port: words.get("port"),
    secret: job.secret,
  });
  request.resume(); // a body is not looked at
  if (!("route" in verdict)) return end(response, verdict.status, verdict.text);
  switch (verdict.route) {
    case "page": {
      lookIfDue();
      const page = await renderReport([live.run], controls);
      response.writeHead(200, { ...HEADERS, "Content-Type": "text/html; charset=utf-8" });
      response.end(page);
      return;
    }
    case "events":
      return follow(response);
    default:
      words.set(verdict.route);
      response.writeHead(204, HEADERS);
      response.end();
  }
}

/** Keeps a connection on which states are sent. */
function follow(response: ServerResponse): void {
  if (feed.size >= MOST_READERS) return end(response, 403, `${MOST_READERS} pages are open: close one.`);
  response.writeHead(200, { ...HEADERS, "Content-Type": "text/event-stream" });
  lookIfDue();
  const reader = feed.add({ write: (text) => response.write(text), end: () => void response.end() });
  response.on("drain", () => reader.drained());
  response.on("close", () => reader.gone());
}

function end(response: ServerResponse, status: number, text: string): void {
  if (!response.headersSent) response.writeHead(status, { ...HEADERS, "Content-Type": "text/plain; charset=utf-8" });
  response.end(`${text}\n`);
}

/** Looks at the folder, if that is due, and tells readers what has changed. */
function lookIfDue(): void {
  const started = performance.now();
  if (started < due) return;
  if (live.look()) {
    const { run, rest } = live.state();
    feed.publish("run", run);
    feed.publish("rest", rest);
  }
  const now = performance.now();
  due = now + Math.min(MOST_REST_MS, REST_PER_LOOK * Math.min(lastLook, now - started));
  lastLook = now - started;
}

/** Looks at the run's words each time, and at the folder while there are readers. */
function look(server: LoopbackServer): void {
  const hasEnded = words.get("ended") !== 0;
  if (hasEnded) due = 0;
  if (hasEnded || feed.size > 0) lookIfDue();
  if (hasEnded) {
    feed.end("end", JSON.stringify({ failure: words.reason }));
    words.set("closed");
    // Answers that are on their way get a moment.
    setTimeout(() => server.close(), 100);
    return;
  }
  setTimeout(() => look(server), LOOK_EVERY_MS);
}
