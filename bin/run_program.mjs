/**
 * Runs a program in place of this process, as far as Node can: same streams, same signals, same exit code. The program is
 * killed if this process is killed, which gets no chance to pass that on: a shell waits at the other end of a pipe, which
 * closes then.
 *
 * @module
 */

import { spawn } from "node:child_process";
import { constants } from "node:os";
import process from "node:process";
import { isatty } from "node:tty";

/**
 * Runs a program to its end and takes over its exit code.
 *
 * @param {string} program path of the program
 * @param {readonly string[]} args its arguments
 * @param {Record<string, string | undefined>} env its variables
 */
export function runProgram(program, args, env) {
  const watchdog = startWatchdog();
  const child = spawn(program, args, { stdio: "inherit", env });
  if (child.pid !== undefined) watchdog.stdin?.write(`${child.pid}\n`);
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"]) process.on(signal, () => child.kill(signal));
  const terminals = [0, 1, 2].filter((descriptor) => isatty(descriptor));
  const exit = (code) => {
    // Node aborts where it cannot restore a terminal that was closed.
    if (terminals.some((descriptor) => !isatty(descriptor))) process.kill(process.pid, "SIGKILL");
    process.exit(code);
  };
  const end = (code) => {
    if (watchdog.stdin === undefined) exit(code);
    watchdog.stdin.end("done\n", () => exit(code));
  };
  child.once("error", (error) => {
    const why = error.code === "EAGAIN"
      ? ": too many processes and threads ('ulimit -u', or pids.max of the container)"
      : "";
    process.stderr.write(`Cannot start '${program}': ${error.message}${why}\n`);
    end(127);
  });
  child.once("exit", (code, signal) => {
    if (signal === "SIGXFSZ") {
      process.stderr.write(`'${program}' was killed by SIGXFSZ: a file would be larger than 'ulimit -f' allows\n`);
    }
    end(code ?? 128 + constants.signals[signal]);
  });
}

const watchdogScript = `read -r program || exit 0
read -r word || kill -s KILL "$program" 2>/dev/null`;

/** Without a shell the program runs all the same; only a killed Node would then leave it behind. */
function startWatchdog() {
  const watchdog = spawn("/bin/sh", ["-c", watchdogScript, "fullyshard-watchdog"], {
    stdio: ["pipe", "ignore", "ignore"],
    detached: true,
  });
  watchdog.once("error", () => {});
  watchdog.stdin?.on("error", () => {});
  watchdog.unref();
  return watchdog;
}
