/** Traces of runs: what is in them, in which order, on one clock, and what is left of a run that fails. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import * as fs from "node:fs";
import { fileURLToPath } from "node:url";
import * as z from "zod";
import { RUNTIME } from "../support/rank_process.ts";
import { longTest, sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { flagsIn, run } from "./runs.ts";

const TIMEOUT = { timeout: 60_000 };
const bin = fileURLToPath(new URL("../../bin/fullyshard.mjs", import.meta.url));
const loop = fileURLToPath(new URL("scripts/traced.ts", import.meta.url));

function fullyshard(...args: readonly string[]) {
  return spawnSync("node", [bin, "--runtime", RUNTIME, ...args], { encoding: "utf8" });
}

const common = { pid: z.int().nonnegative() };
const onTrack = { ...common, tid: z.int().min(0).max(3), ts: z.number().nonnegative() };
const facts = z.record(z.string(), z.union([z.string(), z.number(), z.boolean()]));
const categories = ["step", "collective", "unit", "wait", "free"];
/** The trace event format, as far as it is used. */
const traceSchema = z.strictObject({
  displayTimeUnit: z.literal("ms"),
  traceEvents: z.array(z.discriminatedUnion("ph", [
    z.strictObject({ ...common, ph: z.literal("M"), name: z.string(), tid: z.int().optional(), args: facts }),
    z.strictObject({ ...onTrack, ph: z.literal("B"), name: z.string(), cat: z.enum(categories), args: facts }),
    z.strictObject({ ...onTrack, ph: z.literal("E") }),
    z.strictObject({
      ...onTrack,
      ph: z.literal("X"),
      name: z.string(),
      cat: z.literal("kernel"),
      dur: z.number().nonnegative(),
      args: z.strictObject({ flops: z.number().nonnegative(), bytes: z.number().nonnegative() }),
    }),
  ])),
});
type Event = z.infer<typeof traceSchema>["traceEvents"][number];

function eventsIn(file: string): readonly Event[] {
  return traceSchema.parse(JSON.parse(fs.readFileSync(file, "utf8"))).traceEvents;
}

/** Fails unless whatever begins on a track ends on it before that which it lies in, and times go forward. */
function requireNested(events: readonly Event[], mayBeCut = false): void {
  for (const pid of new Set(events.map((event) => event.pid))) {
    for (let tid = 0; tid < 4; tid++) {
      const spans: number[] = [];
      let [now, kernelsUntil] = [0, 0];
      for (const event of events) {
        if (event.ph === "M" || event.pid !== pid || event.tid !== tid) continue;
        const end = event.ph === "X" ? event.ts + event.dur : event.ts;
        assert.ok(end >= now - 0.002, `time goes back at ${JSON.stringify(event)}`);
        if (event.ph === "X") {
          assert.ok(event.ts >= (spans.at(-1) ?? 0) - 0.002 && event.ts >= kernelsUntil - 0.002, JSON.stringify(event));
          kernelsUntil = end;
        }
        if (event.ph === "B") spans.push(event.ts);
        if (event.ph === "E") assert.notEqual(spans.pop(), undefined, "an end without a beginning");
        now = end;
      }
      if (!mayBeCut) assert.equal(spans.length, 0, "a beginning without an end");
    }
  }
}

test(
  "fullyshard run --trace makes one file of a loop's units, calls and kernels, in their order",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const file = folder.file("run.json");
    const { code, stdout, stderr } = await run([], { script: loop, flags: ["--trace", file], allowAll: true });
    assert.equal(code, 0, stderr);
    assert.match(stderr, /fullyshard: the trace is in '.*run\.json'/);
    assert.deepEqual(fs.readdirSync(folder.path), ["run.json"], "the files of ranks are gone");
    const events = eventsIn(file);
    requireNested(events);
    assert.deepEqual(
      events.flatMap((event) =>
        event.ph === "M" && /_name$/.test(event.name) ? [`${event.pid} ${event.args["name"]}`] : []
      ),
      [0, 1].flatMap((rank) =>
        [`rank ${rank}`, "host", "compute", "gather", "reduce"].map((name) => `${rank} ${name}`)
      ),
    );
    const [first, second] = ["model.layers.0", "model.layers.1"];
    const root = "LlamaForCausalLm";
    const inForward = (unit: string): string[] => [`forward ${unit}`, `gather wait ${unit}`, `gather ${unit}`];
    const inBackward = (unit: string): string[] => [
      ...[`backward ${unit}`, `gather wait ${unit}`],
      ...unit === root ? [] : [`gather ${unit}`, `reduce-scatter ${unit}`],
    ];
    for (const rank of [0, 1]) {
      const began = events.filter((event) => event.ph === "B" && event.pid === rank && event.args["step"] !== 0);
      const names = began.flatMap((event) => event.ph === "B" ? [event.name] : []);
      const steps = [1, 2, 3].map((step) => names.indexOf(`step ${step}`));
      const inStep = names.slice(steps[1], steps[2]);
      const freed = (name: string): boolean => name.startsWith("free ");
      assert.deepEqual(
        inStep.filter(freed),
        [first, second, second, first, root].map((unit) => `free ${unit}`),
        "blocks after both passes, the root at the end",
      );
      assert.deepEqual(inStep.filter((name) => !freed(name)), [
        ...["step 2", "exchange token count"],
        ...[root, first, second].flatMap(inForward),
        ...[root, second, first].flatMap(inBackward),
        ...[`reduce-scatter ${root}`, "exchange used parameters", "all-reduce loss"],
        ...[root, first, second].map((unit) => `write ${unit}`),
      ]);
      const counters = JSON.parse(/\{.*\}/.exec(stdout)?.[0] ?? "");
      const traced: Record<string, number> = {};
      for (const event of began) {
        if (event.ph !== "B" || event.cat !== "collective") continue;
        const { kind, bytes } = event.args;
        traced[String(kind)] = (traced[String(kind)] ?? 0) + Number(bytes);
      }
      assert.deepEqual(traced, counters);
      const kernels = new Set(events.flatMap((event) => event.ph === "X" && event.pid === rank ? [event.name] : []));
      for (const kernel of ["gemm", "adamw", "rmsNorm"]) assert.ok(kernels.has(kernel), [...kernels].join());
    }
  },
);

/** A trace of a small training run, in `folder/trace`. */
async function traceRun(folder: ReturnType<typeof temporaryDirectory>, ...more: readonly string[]): Promise<void> {
  const flags = flagsIn(folder, "--steps", "4", "--trace", folder.file("trace"), ...more);
  const { code, stderr } = await run(flags);
  assert.equal(code, 0, stderr);
}

test("fullyshard trace merges the ranks' files of a run and sums up its steps", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  await traceRun(folder);
  assert.deepEqual(fs.readdirSync(folder.file("trace")).sort(), ["rank0.json", "rank1.json"]);
  const { status, stdout, stderr } = fullyshard("trace", folder.file("trace"));
  assert.equal(status, 0, stderr);
  assert.match(stdout, /^Wrote '.*trace\/trace\.json': open it at https:\/\/ui\.perfetto\.dev\n/);
  assert.match(
    stdout,
    /Rank 1, mean of steps 2 to 3: .* a step; compute [\d.]+ ms, communication .* \(\d+ % of the step\)/,
  );
  assert.match(stdout, /\n {2}model\.layers\.1( +[\d.]+ ms){4} +\d/);
  assert.match(stdout, /\n {2}Rank 0, kernels +calls +time +GFLOP\/s +GB\/s\n/);
  assert.match(stdout, /\n {2}gemm +\d+\.0 +[\d.]+ ms +[\d.e+-]+ +[\d.e+-]+\n/);
  requireNested(eventsIn(folder.file("trace/trace.json")));
  const { ranks } = JSON.parse(fullyshard("trace", folder.file("trace"), "--json").stdout);
  assert.equal(ranks.length, 2);
  for (const rank of ranks) {
    assert.deepEqual([rank.steps, rank.cut_off], [[2, 3], false]);
    assert.ok(rank.compute_seconds > 0 && rank.exposed_seconds <= rank.communication_seconds);
    assert.ok(rank.step_seconds >= rank.compute_seconds + rank.exposed_seconds);
    const layer = rank.units.find(({ unit }: { unit: string }) => unit === "model.layers.0");
    // Gathered twice and reduced once, in float32.
    assert.equal(layer.bytes, 3 * 9728);
    const gemm = rank.kernels.find(({ kernel }: { kernel: string }) => kernel === "gemm");
    assert.ok(gemm.calls > 0 && gemm.seconds > 0 && gemm.flops > 0 && gemm.bytes > 0, JSON.stringify(gemm));
    const seconds = rank.kernels.map((kernel: { seconds: number }) => kernel.seconds);
    assert.deepEqual(seconds, seconds.toSorted((a: number, b: number) => b - a));
    const { forward_seconds: forward, backward_seconds: backward, gather_wait_seconds: wait } = layer;
    assert.ok(forward > 0 && backward > 0 && wait <= forward + backward, JSON.stringify(layer));
  }
});

test("fullyshard trace tells whole bytes of a call in every step, and of one in some", () => {
  using folder = temporaryDirectory();
  const common = { pid: 0, ph: "B", tid: 0 };
  const identity = { rank: 0, worldSize: 1, run: "", origin: 0 };
  const events: object[] = [{ pid: 0, ph: "M", name: "fullyshard", args: identity }];
  const call = (ts: number, unit: string) => [
    { ...common, tid: 3, ts, cat: "collective", name: unit, args: { kind: "all-reduce", unit, bytes: 4 } },
    { ...common, tid: 3, ts: ts + 1, ph: "E" },
  ];
  for (let step = 1; step <= 12; step++) {
    const ts = step * 10;
    events.push({ ...common, ts, cat: "step", name: `step ${step}`, args: { step } });
    events.push(...call(ts + 1, "always"), ...step % 3 === 0 ? call(ts + 3, "often") : []);
    events.push({ ...common, ts: ts + 9, ph: "E" });
  }
  folder.write("trace/rank0.json", `[\n${events.map((event) => JSON.stringify(event)).join(",\n")}\n]\n`);
  const { status, stdout, stderr } = fullyshard("trace", folder.file("trace"));
  assert.equal(status, 0, stderr);
  assert.match(stdout, /\n {2}always .* ms {8}4 bytes\n/);
  assert.match(stdout, /\n {2}often .* ms {9}1 byte\n/);
});

longTest("the traces of ranks whose clocks differ are put on one", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  await traceRun(folder);
  const meetings = (): (readonly [begin: number, end: number])[][] => {
    const { status, stderr } = fullyshard("trace", folder.file("trace"));
    assert.equal(status, 0, stderr);
    const events = eventsIn(folder.file("trace/trace.json"));
    return [0, 1].map((rank) => {
      const host = events.filter((event) => event.ph !== "M" && event.pid === rank && event.tid === 0);
      return host.flatMap((event, i) => {
        const end = host[i + 1];
        const isExchange = event.ph === "B" && event.args["kind"] === "exchange" && end?.ph === "E";
        return isExchange ? [[event.ts, end.ts] as const] : [];
      });
    });
  };
  const requireMet = ([zero = [], one = []]: ReturnType<typeof meetings>): void => {
    assert.ok(zero.length > 5 && zero.length === one.length);
    for (const [i, [begin, end]] of zero.entries()) {
      const [otherBegin = NaN, otherEnd = NaN] = one[i] ?? [];
      assert.ok(begin <= otherEnd + 0.002 && otherBegin <= end + 0.002, `exchange ${i} is none`);
    }
  };
  requireMet(meetings());
  const file = folder.file("trace/rank1.json");
  const text = fs.readFileSync(file, "utf8");
  fs.writeFileSync(file, text.replace(/"origin":([\d.]+)/, (_, origin) => `"origin":${Number(origin) + 7000}`));
  assert.notEqual(fs.readFileSync(file, "utf8"), text);
  requireMet(meetings());
});

test("a rank that is killed leaves its trace up to the call that it was in", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const trace = folder.file("trace");
  const flags = flagsIn(folder, "--steps", "100", "--trace", trace, "fault=1:3:kill-in=gather");
  const { code, stderr } = await run(flags, { allowAll: true });
  assert.equal(code, 137, stderr);
  assert.deepEqual(fs.readdirSync(trace).sort(), ["rank0.json", "rank1.json.partial", "rank1.json.tail"]);
  const { status, stdout, stderr: said } = fullyshard("trace", trace);
  assert.equal(status, 0, said);
  assert.match(stdout, /\nRank 1 did not come to close its trace\n/);
  const events = eventsIn(folder.file("trace/trace.json"));
  requireNested(events, true);
  const last = events.findLast((event) => event.pid === 1);
  assert.ok(last?.ph === "B" && /^(exchange|gather) /.test(last.name), JSON.stringify(last));
  assert.equal(last.args["step"], last.name.startsWith("gather") ? 4 : 3);
});

test("a rank that fails closes its trace, and the launcher makes a file of it all the same", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const file = folder.file("run.json");
  const { code, stderr } = await run(["throw"], { script: loop, flags: ["--trace", file], allowAll: true });
  assert.equal(code, 1, stderr);
  assert.match(stderr, /RangeError: out of tea/);
  requireNested(eventsIn(file));
});

longTest("traces that do not belong together, or are none, are refused by name", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  await traceRun(folder);
  const place = folder.file("trace");
  const zero = fs.readFileSync(`${place}/rank0.json`, "utf8");
  const refused = (expected: RegExp): void => {
    const { status, stderr } = fullyshard("trace", place);
    assert.equal(status, 2, stderr);
    assert.match(stderr, expected);
  };
  const over = fullyshard("trace", place, "--out", `${place}/./rank0.json`);
  assert.equal(over.status, 2, over.stderr);
  assert.match(over.stderr, /Cannot write '.*rank0\.json': it is the trace of rank 0: choose another name/);
  assert.equal(fs.readFileSync(`${place}/rank0.json`, "utf8"), zero);
  fs.writeFileSync(`${place}/rank0.json`, zero.replace(/"run":"[^"]*"/, '"run":"an older one"'));
  refused(/Cannot merge '.*rank1\.json': it is of another run than '.*rank0\.json': remove the older one/);
  fs.writeFileSync(`${place}/rank0.json`, `${zero.slice(0, 3000)}\nnonsense\n${zero.slice(3000)}`);
  refused(/Cannot read '.*rank0\.json': line \d+ is no event of a trace/);
  fs.writeFileSync(`${place}/rank0.json`, "[]\n");
  refused(/Cannot read '.*rank0\.json': it does not begin as a rank's trace does/);
  fs.rmSync(`${place}/rank0.json`);
  refused(/Cannot merge the traces in '.*trace': rank 0 of 2 left none, only rank 1 did/);
  fs.rmSync(`${place}/rank1.json`);
  refused(/Cannot find a trace in '.*trace': no rank has traced into it; ranks do that call 'launch'/);
});

longTest(
  "a trace that cannot be begun is refused before ranks start, and one of a full disk ends alone",
  TIMEOUT,
  async (context) => {
    using folder = temporaryDirectory();
    const below = `${folder.write("file", "")}/below`;
    const refused = await run(flagsIn(folder), { flags: ["--trace", below] });
    assert.equal(refused.code, 2, refused.stderr);
    assert.match(
      refused.stderr,
      /^fullyshard run: Cannot make directory '.*file\/below': a part of the path is a file/,
    );
    fs.mkdirSync(folder.file("folder.json"));
    for (
      const [place, says] of [
        ["", /--trace: expected a folder, or a file that ends in \.json, got ''/],
        [folder.file("folder.json"), /--trace: expected a file, got '.*folder\.json', which is a folder/],
      ] as const
    ) {
      const { code, stderr } = await run(flagsIn(folder), { flags: [`--trace=${place}`] });
      assert.equal(code, 2, stderr);
      assert.match(stderr, says);
    }
    const print = fileURLToPath(new URL("../launch/scripts/print.ts", import.meta.url));
    const untraced = await run([], { script: print, flags: ["--trace", folder.file("none.json")] });
    assert.equal(untraced.code, 1, untraced.stderr);
    assert.match(
      untraced.stderr,
      /fullyshard: Cannot find a trace in '.*none\.json\.ranks': no rank has traced into it; ranks do that call 'launch'/,
    );
    const misplaced = await run([...flagsIn(folder), "--trace", folder.file("x.json")]);
    assert.equal(misplaced.code, 2, misplaced.stderr);
    assert.match(misplaced.stderr, /--trace: expected a folder; 'fullyshard trace' makes a file of it/);
    assert.match(misplaced.stderr, /--trace belongs to the launcher, before the script/);

    const disk = folder.file("disk");
    fs.mkdirSync(disk);
    if (spawnSync("mount", ["-t", "tmpfs", "-o", "size=64k", "none", disk]).status !== 0) {
      return context.skip("needs the right to mount a file system");
    }
    try {
      const { code, stderr } = await run(flagsIn(folder, "--steps", "6", "--trace", disk));
      assert.equal(code, 0, stderr);
      assert.match(stderr, /warn +The trace ends here, with what is in '.*rank\d\.json\.partial': no space is left/);
      const merged = fullyshard("trace", disk, "--out", folder.file("merged.json"));
      assert.equal(merged.status, 0, merged.stderr);
      requireNested(eventsIn(folder.file("merged.json")), true);
    } finally {
      spawnSync("umount", [disk]);
    }
  },
);

longTest("a run of fewer ranks takes the place of one of more", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  await traceRun(folder);
  const { code, stderr } = await run(flagsIn(folder, "--steps", "2", "--overwrite", "--trace", folder.file("trace")), {
    ranks: 1,
  });
  assert.equal(code, 0, stderr);
  assert.deepEqual(fs.readdirSync(folder.file("trace")), ["rank0.json"]);
  assert.equal(fullyshard("trace", folder.file("trace")).status, 0);
});

longTest("fullyshard trace tells what a flight record says", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  fs.mkdirSync(folder.file("flight"));
  const env = { FULLYSHARD_FLIGHT_DIRECTORY: folder.file("flight") };
  const flags = [...flagsIn(folder, "--steps", "100"), "fault=1:3:kill-in=reduce-scatter"];
  assert.equal((await run(flags, { allowAll: true, env })).code, 137);
  const [record = ""] = fs.readdirSync(folder.file("flight"));
  const { status, stdout, stderr } = fullyshard("trace", folder.file(`flight/${record}`));
  assert.equal(status, 0, stderr);
  assert.match(stdout, /^Group 'world' stopped: rank 1 died/);
  assert.match(stdout, /\n {2}rank 0: \w.* call \d+, reduce-scatter '.*' \(backward, step 4, \d+ bytes\)\n/);
  assert.match(stdout, /\n {2}rank 1: dead, was last in call \d+, .*, 1 call behind\n/);
  for (const flags of [["--json"], ["--out", folder.file("out.json")]]) {
    const refused = fullyshard("trace", folder.file(`flight/${record}`), ...flags);
    assert.equal(refused.status, 2, refused.stdout);
    assert.match(refused.stderr, /--(json|out): expected the folder of a trace, got '.*', which is a file/);
  }
  const { status: wrong, stderr: why } = fullyshard("trace", folder.write("other.json", "{}"));
  assert.equal(wrong, 2);
  assert.match(why, /Cannot read '.*other\.json': it is no flight record; of a trace, name the folder/);
});

test("fullyshard run --profile tells how long each kernel takes, and leaves no file", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const env = { TMPDIR: folder.path };
  const { code, stderr } = await run([], { script: loop, flags: ["--profile"], allowAll: true, env });
  assert.equal(code, 0, stderr);
  assert.match(stderr, /^Rank 0, mean of steps? .* a step, of which kernels [\d.]+ ms/m);
  const [, calls = NaN, ms = NaN, rate = NaN] =
    /^ +gemm +([\d.]+) +([\d.]+) ms +([\d.]+) +[\d.]+$/m.exec(stderr)?.map(Number) ?? [];
  assert.ok(calls >= 1 && ms > 0 && rate > 0, stderr);
  assert.match(stderr, /One thread reaches [\d.]+ GFLOP\/s in a product of 512 x 512 x 512, and [\d.]+ GB\/s/);
  const left = fs.readdirSync(folder.path).filter((name) => name.startsWith("fullyshard-"));
  assert.deepEqual(left, [], folder.path);
});

test("fullyshard run --profile of a script that traces nothing fails by name", TIMEOUT, () => {
  using folder = temporaryDirectory();
  const script = folder.file("nothing.ts");
  fs.writeFileSync(script, "");
  const { status, stderr } = fullyshard("run", "--profile", script);
  assert.equal(status, 1);
  assert.match(stderr, /Cannot find a trace in .*ranks do that call 'launch'/);
});
