/** The order between gathers and computation, on streams that keep a log. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { type DeviceEvent, Streams } from "../../src/device/stream.ts";
import { GatherTurns } from "../../src/fsdp/gather_turns.ts";

/**
 * The computation that each gather waits for, as `gather: computation`, of a play: `A` gathers unit A, `a` computes with it and reshards
 * it, and `a+` computes with it and keeps it.
 */
function waitsOf(play: string): readonly string[] {
  const names = new Map<DeviceEvent, string>();
  let [computed, waited] = ["", "-"];
  const streams = new Streams((name) => ({
    name,
    record: () => {
      const event = { done: false };
      names.set(event, computed);
      return event;
    },
    wait: (event) => {
      assert.equal(name, "gather");
      waited = names.get(event) ?? assert.fail();
    },
  }));
  const turns = new GatherTurns(streams);
  const units = new Map<string, object>();
  const waits: string[] = [];
  for (const move of play.split(" ")) {
    const name = move.toUpperCase().charAt(0);
    const unit = units.get(name) ?? {};
    units.set(name, unit);
    if (move === name) {
      waited = "-";
      turns.beginGather(unit);
      turns.beginGather(unit); // its second segment
      waits.push(`${move}: ${waited}`);
    } else {
      computed = name;
      if (!move.endsWith("+")) {
        turns.endUse(unit);
        turns.endUse(unit);
      }
    }
  }
  return waits;
}

test("a gather overlaps with the computation of one unit, and waits for those before", () => {
  assert.deepEqual(waitsOf("A a B b C c D d"), ["A: -", "B: -", "C: A", "D: B"]);
});

test("a gather that is prefetched waits for the unit before the one that computes", () => {
  assert.deepEqual(waitsOf("A B a C b D c E d e"), ["A: -", "B: -", "C: A", "D: B", "E: C"]);
  assert.deepEqual(waitsOf("A B C a D b E c d e"), ["A: -", "B: -", "C: -", "D: A", "E: B"]);
});

test("a root that stays unsharded keeps no gather from overlapping", () => {
  assert.deepEqual(waitsOf("R r+ A a B b C c"), ["R: -", "A: -", "B: -", "C: A"]);
});

test("the last unit of a forward is gathered again beside its own computation", () => {
  assert.deepEqual(waitsOf("A a B b B b A a"), ["A: -", "B: -", "B: A", "A: B"]);
});

test("what was awaited once is not awaited again", () => {
  assert.deepEqual(waitsOf("A a B b C D c d"), ["A: -", "B: -", "C: A", "D: B"]);
  assert.deepEqual(waitsOf("A a B C D b c d"), ["A: -", "B: -", "C: A", "D: -"]);
});
