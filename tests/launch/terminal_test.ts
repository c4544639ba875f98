/**
 * Lines, status and the terminal.
 *
 * @module
 */

import assert from "node:assert/strict";
import { test } from "node:test";
import { LineReader } from "../../src/launch/lines.ts";
import { type ControlLine, decodeControlLine, encodeControlLine } from "../../src/runtime/control_line.ts";
import { StatusTerminal, type TextSink } from "../../src/launch/terminal.ts";

test("LineReader.push() gives whole lines only, wherever the bytes were cut", () => {
  const bytes = new TextEncoder().encode("one\ntwo ü\r\n\nlast");
  for (let cut = 0; cut <= bytes.length; cut++) {
    const reader = new LineReader();
    const lines = [...reader.push(bytes.subarray(0, cut)), ...reader.push(bytes.subarray(cut)), ...reader.end()];
    assert.deepEqual(lines, ["one", "two ü", "", "last"]);
    assert.deepEqual(reader.end(), []);
  }
});

test("LineReader.push() does not hold back a line without end", () => {
  const reader = new LineReader();
  const block = new Uint8Array(1 << 19).fill(120);
  assert.deepEqual([block, block, block].flatMap((bytes) => reader.push(bytes)).map((line) => line.length), [3 << 19]);
});

test("decodeControlLine() reads what encodeControlLine() made, and nothing else", () => {
  const failure = { rank: 1, name: "Error", message: "line one\nline two \u001b[2J ü", followed: 0, time: 5 };
  const lines: readonly ControlLine[] = [{ status: "step 3/200 loss 4.21" }, { status: "" }, { failure }];
  for (const line of lines) {
    assert.deepEqual(decodeControlLine(encodeControlLine(line)), line);
    assert.ok(!encodeControlLine(line).includes("\n"));
  }
  const made = encodeControlLine({ status: "y" });
  const torn = made.replace("}", "");
  const strange = ["null", "{}", '{"status":3}', '{"failure":null}', '{"failure":{"rank":1}}']
    .map((text) => made.replace('{"status":"y"}', text));
  for (const line of ["", "step 3", `x${made}`, `${made}x`, torn, ...strange]) {
    assert.equal(decodeControlLine(line), undefined, JSON.stringify(line));
  }
});

/** Both streams write to one screen, as on a terminal. */
function screen(isTTY: boolean, columns: number = 20): { sink: TextSink; text: () => string } {
  let text = "";
  return {
    sink: {
      isTTY,
      columns,
      write(piece): boolean {
        text += piece;
        return true;
      },
    },
    text: () => text.replaceAll("\r\u001b[2K", "<erase>"),
  };
}

test("StatusTerminal redraws the status below the log", () => {
  const { sink, text } = screen(true);
  const terminal = new StatusTerminal(sink, sink);
  terminal.lines("stdout", ["a"]);
  terminal.status("s1");
  terminal.lines("stdout", ["b", "c"]);
  terminal.status("s1");
  terminal.status("s2");
  terminal.status("");
  terminal.lines("stderr", ["d"]);
  assert.equal(text(), "a\n<erase>s1<erase>b\nc\ns1<erase>s2<erase>d\n");
});

test("StatusTerminal cuts a status to the width of the terminal", () => {
  const { sink, text } = screen(true, 6);
  new StatusTerminal(sink, sink).status("ü234567");
  assert.equal(text(), "<erase>ü2345");
});

test("StatusTerminal lets nothing in a status move the cursor", () => {
  const { sink, text } = screen(true);
  new StatusTerminal(sink, sink).status("a\nb\u001b[2Jc\u0007");
  assert.equal(text(), "<erase>a b [2Jc ");
});

test("StatusTerminal leaves streams that are no terminal alone", () => {
  const file = screen(false);
  const shown = screen(true);
  const terminal = new StatusTerminal(file.sink, shown.sink);
  terminal.status("s1");
  terminal.lines("stdout", ["a"]);
  assert.equal(file.text(), "a\n");
  assert.equal(shown.text(), "<erase>s1");
  const none = new StatusTerminal(file.sink, file.sink);
  none.status("s2");
  assert.equal(none.showsStatus, false);
  assert.equal(file.text(), "a\n");
});
