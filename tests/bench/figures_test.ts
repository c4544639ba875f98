/** The figures that benchmarks compute from rounds, and read from the output of programs. @module */
import assert from "node:assert/strict";
import fs from "node:fs";
import { test } from "node:test";
import { COLLECTIVES } from "../../bench/collectives.ts";
import { readSide } from "../../bench/dataloader.ts";
import { figureOf } from "../../bench/figures.ts";
import { GEMM } from "../../bench/gemm.ts";
import { STEP } from "../../bench/step.ts";
import { jaxJsIn } from "../../bench/jax_js.ts";
import { jsonOf, lineOf, measure, reasonOf, type Row } from "../../bench/runner.ts";
import { casesOf, outcomeOf, type Side, type Subject, targetOf } from "../../bench/subject.ts";
import { temporaryDirectory } from "../support/temporary.ts";

test("figureOf() gives the median, and why a round has none", () => {
  assert.deepEqual(figureOf([3, 1, 2], false), {
    value: 2,
    rounds: [3, 1, 2],
    by: undefined,
    medians: {},
    cannot: undefined,
  });
  const { value, cannot } = figureOf([4, "no library", 2, undefined], false);
  assert.deepEqual([value, cannot], [3, "no library"]);
  assert.equal(figureOf([], false).value, undefined);
});

test("figureOf() takes the better of several by their medians, not by a lucky round", () => {
  const rounds = [[10, 9], [11, 30], [12, 31]].map(([a = NaN, b = NaN]) => new Map([["Open MPI", a], ["MPICH", b]]));
  const { value, by, medians } = figureOf(rounds, false);
  assert.deepEqual([value, by, medians], [11, "Open MPI", { "Open MPI": 11, "MPICH": 30 }]);
  assert.deepEqual([figureOf(rounds, true).by, figureOf(rounds, true).value], ["MPICH", 30]);
});

test("figureOf() goes on with one of several where the others are missing, and names them", () => {
  const round = new Map<string, number | string>([["Open MPI", "there is no prterun"], ["MPICH 5.0.2", 7]]);
  const { value, by, cannot } = figureOf([round, round], false);
  assert.deepEqual([value, by, cannot], [7, "MPICH 5.0.2", "Open MPI: there is no prterun"]);
  const none = new Map([["Open MPI", "there is no prterun"], ["MPICH", "no mpi4py"]]);
  assert.equal(figureOf([none, none], false).cannot, "Open MPI: there is no prterun; MPICH: no mpi4py");
});

test("outcomeOf() finds a case by its whole name, behind what a launcher writes", () => {
  const output = "wasm-relaxed-add 5\n[rank0]: native-add 3.5\nnative-gelu cannot: no AVX2\nadd 7\n";
  assert.equal(outcomeOf(output, "native-add"), 3.5);
  assert.equal(outcomeOf(output, "add"), 7);
  assert.equal(outcomeOf(output, "native-gelu"), "no AVX2");
  assert.equal(outcomeOf(output, "gelu"), "nothing was printed of it");
});

test("readSide() gives a side's tokens beside its figures", () => {
  const { digest, outcomes } = readSide("tokens 5eed\n4x256 50.25\n", ["4x256"]);
  assert.deepEqual([digest, outcomes.get("4x256")], ["5eed", 50.25]);
  assert.throws(() => readSide("4x256 50.25\n", ["4x256"]), /nothing was printed of the tokens/);
});

test("casesOf() and targetOf() know which peers a case is compared with", () => {
  assert.deepEqual(casesOf(STEP, "apart").map(({ name }) => name), ["llama-8m-f32"]);
  assert.deepEqual(casesOf(GEMM, "jax-js").map(({ name }) => name), ["wasm-relaxed-512x512x512"]);
  assert.equal(casesOf(GEMM, undefined).length, GEMM.cases.length);
  const target = (name: string, peer: "torch" | "mpi"): number | undefined => {
    const found = COLLECTIVES.cases.find((one) => one.name === name);
    assert.ok(found !== undefined, name);
    return targetOf(found, peer, "avx2");
  };
  assert.deepEqual([target("gather-64MiB", "torch"), target("gather-64MiB", "mpi")], [8, 1]);
  assert.deepEqual([target("gather-64KiB", "mpi"), target("reduce-scatter-1MiB", "mpi")], [1.2, 2]);
  assert.equal(target("all-reduce-8B", "mpi"), undefined);
  assert.equal(targetOf({ name: "a", target: { avx512: 2 } }, "torch", "avx2"), undefined);
  assert.equal(targetOf({ name: "a", target: { avx512: 2 } }, "torch", "avx512-bf16"), 2);
});

test("jaxJsIn() takes the folder of the package only", () => {
  using folder = temporaryDirectory();
  const place = folder.file(".");
  assert.ok("missing" in jaxJsIn(place));
  folder.write("package.json", '{"name":"jax","version":"1"}');
  assert.ok("missing" in jaxJsIn(place));
  fs.writeFileSync(folder.file("package.json"), '{"name":"@jax-js/jax","version":"0.1.25"}');
  assert.deepEqual(jaxJsIn(place), { folder: place, version: "0.1.25" });
});

test("reasonOf() tells the line that names an error", () => {
  assert.equal(reasonOf(new Error("python ended with 1:\nImportError: no MPI\nat exit")), "ImportError: no MPI");
  assert.equal(reasonOf(new Error("ended with 1:\nlast")), "last");
});

/** Rows of one round with a peer. */
async function rowsOf(ours: Side, theirs: Side, more?: Subject["more"]): Promise<Row[]> {
  const subject: Subject = {
    name: "made-up",
    unit: "us",
    higherIsBetter: false,
    isApart: true,
    cases: [{ name: "one", targets: { mpi: 2 } }, { name: "two" }],
    ours,
    ...more === undefined ? {} : { more },
  };
  const rows: Row[] = [];
  const setting = { runtime: "bun", python: "python3", threads: 1 } as const;
  await measure(subject, subject.cases, { name: "mpi", side: theirs }, 1, setting, (row) => rows.push(row));
  return rows;
}

test("measure() goes on where a peer or what is told besides is missing, and says so in the case's line", async () => {
  const ours: Side = (_setting, names) => Promise.resolve(new Map(names.map((name) => [name, 4])));
  const theirs: Side = (_setting, [name = ""]) => {
    if (name === "one") throw new Error("TypeError: gone");
    return Promise.resolve(new Map([[name, new Map([["MPICH", 12]])]]));
  };
  const [one, two] = await rowsOf(ours, theirs, (_setting, name) => {
    if (name === "two") return Promise.reject(new Error("spawn gcc ENOENT"));
    return Promise.resolve({ "GFLOP/s": 8 });
  });
  assert.ok(one !== undefined && two !== undefined);
  assert.deepEqual([one.ours, one.theirs, one.ratio, one.target], [4, undefined, undefined, 2]);
  assert.match(lineOf(one), /^made-up one \(bun\): 4\.000 us, peer -, .*, GFLOP\/s 8\.000; cannot: TypeError: gone$/);
  assert.deepEqual([two.theirs, two.ratio, two.by, two.medians], [12, 3, "MPICH", { MPICH: 12 }]);
  assert.match(lineOf(two), /peer 12\.00 \(MPICH\), ratio 3\.000.*; cannot: spawn gcc ENOENT$/);
  assert.equal(JSON.parse(jsonOf(one))["GFLOP/s"], 8);
});
