/**
 * Lines, status and the terminal.
 *
 * @module
 */

import assert from "node:assert/strict";
import { test } from "node:test";
import { LineReader } from "../../src/runtime/lines.ts";
import { type ControlLine, decodeControlLine, encodeControlLine } from "../../src/runtime/control_line.ts";
import { environmentFrom } from "../../src/runtime/env.ts";
import {
  StatusTerminal,
  styled,
  type TerminalManners,
  terminalManners,
  type TextSink,
  unstyled,
} from "../../src/runtime/terminal.ts";

const redraws: TerminalManners = { redraws: true, colors: false };

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
  const failure = {
    name: "Error",
    message: "line one\nline two \u001b[2J ü",
    frames: ["at x"],
    uncaught: true,
    followed: 0,
    time: 5,
  };
  const lines: readonly ControlLine[] = [{ status: "step 3/200 loss 4.21" }, { status: "" }, { plain: "a\nb" }, {
    failure,
  }];
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

test("StatusTerminal throws where the reader of a stream is gone and nobody ends the run for it", () => {
  const broken = Object.assign(new Error("broken pipe"), { code: "EPIPE" });
  const sink = {
    write(): boolean {
      throw broken;
    },
  };
  assert.throws(() => new StatusTerminal(sink, sink, redraws).lines("stdout", ["a"]), broken);
});

test("StatusTerminal redraws the status below the log", () => {
  const { sink, text } = screen(true);
  const terminal = new StatusTerminal(sink, sink, redraws);
  terminal.lines("stdout", ["a"]);
  terminal.status("s1");
  terminal.lines("stdout", ["b", "c"]);
  terminal.status("s1");
  terminal.status("s2");
  terminal.status("");
  terminal.lines("stderr", ["d"]);
  assert.equal(text(), "a\ns1<erase>b\nc\ns1<erase>s2<erase>d\n");
});

test("StatusTerminal cuts a status to the width of the terminal", () => {
  const { sink, text } = screen(true, 6);
  new StatusTerminal(sink, sink, redraws).status("ü234567");
  assert.equal(text(), "ü2345");
});

test("StatusTerminal shows as many fields of a status as fit, also after a resize", () => {
  let columns = 30;
  const shown: string[] = [];
  const sink = {
    isTTY: true,
    get columns(): number {
      return columns;
    },
    write: (piece: string): boolean => shown.push(piece) > 0,
  };
  const terminal = new StatusTerminal(sink, sink, redraws);
  terminal.status("step 1/9  4 min 05 s left  loss 4.1");
  columns = 25;
  terminal.lines("stdout", ["a line"]);
  columns = 80;
  terminal.status("step 2/9  4 min 05 s left  loss 4.1");
  assert.deepEqual(shown.filter((piece) => piece.startsWith("step")), [
    "step 1/9  4 min 05 s left",
    "step 1/9",
    "step 2/9  4 min 05 s left  loss 4.1",
  ]);
});

test("StatusTerminal takes the status away before a line on either stream, and leaves the line of a pipe its time", () => {
  for (const piped of ["stdout", "stderr"] as const) {
    const { sink, text } = screen(true);
    // As with `| tee`, both are seen on one terminal.
    const pipe = { write: sink.write };
    const [stdout, stderr] = piped === "stdout" ? [pipe, sink] : [sink, pipe];
    const terminal = new StatusTerminal(stdout, stderr, redraws);
    terminal.status("s1");
    terminal.lines(piped, ["a"]);
    terminal.status("s1");
    terminal.status("");
    assert.equal(text(), "s1<erase>a\ns1<erase>");
  }
});

test("StatusTerminal sends a terminal only what the user's variables allow", () => {
  const manners = (variables: Readonly<Record<string, string>>): TerminalManners =>
    terminalManners(environmentFrom((name) => variables[name]));
  assert.deepEqual(manners({ TERM: "xterm" }), { redraws: true, colors: true });
  assert.deepEqual(manners({ TERM: "dumb" }), { redraws: false, colors: false });
  assert.deepEqual(manners({ NO_COLOR: "1" }), { redraws: true, colors: false });
  assert.deepEqual(manners({ CI: "true" }), { redraws: false, colors: true });
  const { sink, text } = screen(true);
  const dumb = new StatusTerminal(sink, sink, manners({ TERM: "dumb" }));
  dumb.status("s1");
  dumb.lines("stderr", ["a"]);
  assert.deepEqual([text(), dumb.showsStatus, dumb.hasColors("stderr")], ["a\n", false, false]);
  const colored = new StatusTerminal(sink, screen(false).sink, manners({}));
  assert.deepEqual([colored.hasColors("stdout"), colored.hasColors("stderr")], [true, false]);
});

test("styled() and unstyled() are each other's opposite", () => {
  assert.equal(styled("red", "error", false), "error");
  assert.equal(styled("red", "error", true), "\u001b[31merror\u001b[39m");
  assert.equal(unstyled(styled("dim", "error", true)), "error");
});

test("StatusTerminal lets nothing in a status move the cursor", () => {
  const { sink, text } = screen(true);
  new StatusTerminal(sink, sink, redraws).status("a\nb\u001b[2Jc\u0007");
  assert.equal(text(), "a b [2Jc ");
});

test("StatusTerminal leaves streams that are no terminal alone", () => {
  const file = screen(false);
  const shown = screen(true);
  const terminal = new StatusTerminal(file.sink, shown.sink, redraws);
  terminal.status("s1");
  terminal.lines("stdout", ["a"]);
  assert.equal(file.text(), "a\n");
  assert.equal(shown.text(), "s1<erase>");
  const none = new StatusTerminal(file.sink, file.sink, redraws);
  none.status("s2");
  assert.equal(none.showsStatus, false);
  assert.equal(file.text(), "a\n");
});
