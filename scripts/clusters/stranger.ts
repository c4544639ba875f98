/** Calls at ports of a run's store without its token: with bytes that are no frame, in silence, and as a rank. @module */
import { connect, type Socket } from "node:net";
import process from "node:process";
import { codePieces, FrameWriter, NUMBER_BYTES, VERSION } from "../../src/comm/hosts/frames.ts";
import { hmacSha256 } from "../../src/runtime/checksum.ts";

/** More than a store lets wait. */
const SILENT = 100;

const [address = "", ...ports] = process.argv.slice(2);
const call = (port: string): Socket => connect(Number(port), address).on("error", () => {});
for (const port of ports) {
  const sockets = Array.from({ length: SILENT }, () => call(port));
  call(port).end("GET / HTTP/1.1\r\n\r\n");
  const liar = call(port);
  liar.once("data", (challenge) => {
    const number = crypto.getRandomValues(new Uint8Array(NUMBER_BYTES));
    const code = hmacSha256(
      "a wrong token",
      codePieces("rank", new Uint8Array(challenge.subarray(5, 5 + NUMBER_BYTES)), number),
    );
    const writer = new FrameWriter();
    writer.write("hello", 1, 4, number, code, new TextEncoder().encode(VERSION));
    liar.write(writer.pending);
    liar.once("data", (answer) => process.stderr.write(`the store says: ${answer.subarray(5).toString("utf8")}\n`));
  });
  await new Promise((resolve) => setTimeout(resolve, 500));
  for (const socket of [...sockets, liar]) socket.destroy();
}
