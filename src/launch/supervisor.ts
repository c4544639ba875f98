/**
 * Starts the ranks of a run, passes their output on, and ends them together: the first failure stops the other ranks, and the
 * rank that was the cause decides the exit code (see `failures.ts`). `command.ts` makes the commands of ranks.
 *
 * Note [Stopping ranks]
 * 1. After the first failure, the other ranks have `noticeMs` to notice it themselves, because only they know the collective that
 *   they wait in.
 * 2. Then they get SIGTERM, and after `graceMs` SIGKILL; killed ranks are named.
 * 3. A user's signal is passed on at once. Ranks may be saving then, so they have `userGraceMs`.
 * 4. Each rank leads a process group, so processes that it started are stopped with it.
 * 5. If the launcher itself is killed, a shell at the other end of a pipe kills the groups within a second, without the ranks'
 *   help or a timer. The shell starts before the ranks, and gets each rank's group as soon as it exists. A launcher that is killed
 *   right after it has started a rank does not write the rank's group any more: on Linux the shell finds such a rank by the run's
 *   name and the host's number in its environment. It also removes the state that the launcher keeps in memory. If Node started the launcher and is killed, `bin/run_program.mjs` kills the launcher.
 *
 * @module
 */
import type { ChildProcess } from "node:child_process";
import process from "node:process";
import type { RankCommand, Variables } from "./command.ts";
import type { RankEnd } from "./early_end.ts";
import { startWatchdog } from "./watchdog.ts";
import { rankList } from "../words.ts";
import type { ControlLine, FailureRecord } from "../runtime/control_line.ts";
import {
  exitCodeOf,
  ignoreFileSizeSignal,
  REPEATED_SIGNALS,
  SAME_SIGNAL_MS,
  STOP_SIGNALS,
  type StopSignal,
} from "../runtime/signals.ts";
import { orderFailures, type RankFailure } from "./failures.ts";
import type { StatusTerminal } from "../runtime/terminal.ts";
import { type OutputPlan, RankOutput } from "./rank_output.ts";
import type { RankPool } from "./rank_pool.ts";
import { OUTPUTS, RankProcess } from "./rank_process.ts";

export interface RankStart extends OutputPlan {
  readonly command: RankCommand;
  readonly variables: Variables;
}

/** Times that ranks have to stop, in milliseconds. */
export interface StopTimes {
  /** From the first failure until SIGTERM to the other ranks. */
  readonly noticeMs: number;
  /** From SIGTERM until SIGKILL. */
  readonly graceMs: number;
  /** From a user's signal until SIGKILL. */
  readonly userGraceMs: number;
}

/** The end of a run. */
export interface LaunchOutcome {
  /** 0, the code of the rank that was the cause, or 128 + the user's signal. */
  readonly exitCode: number;
  /** Ranks that failed, the cause first: before they were stopped, or with an error that they reported. */
  readonly failures: readonly RankFailure[];
  /** Ranks that had to be stopped, and reported no error. */
  readonly stopped: readonly number[];
  /** The user's. */
  readonly signal?: StopSignal | undefined;
  /** The last words of the ranks of a run that may start again on other ranks. */
  readonly words: ElasticWords;
}

/** Words of ranks for a run that changes its ranks. */
export interface ElasticWords {
  /** The numbers of ranks that the batch can be divided among; undefined if no rank said. */
  readonly worldSizes: readonly number[] | undefined;
  /** The output folder of the run; undefined if no rank said. */
  readonly out: string | undefined;
  /** True if a step was taken. */
  readonly hasBegun: boolean;
  /** True if the ranks have left at a step's border, for others to go on. */
  readonly regroups: boolean;
}

/** Default times. */
export const defaultStopTimes: StopTimes = { noticeMs: 1500, graceMs: 3000, userGraceMs: 30_000 };

/** Causes of signals that users may meet. */
const SIGNAL_CAUSES: Readonly<Record<string, string>> = {
  SIGXFSZ: ", as a file would be larger than the process' limit ('ulimit -f')",
  SIGXCPU: ", as it has used the processor for longer than its limit ('ulimit -t')",
};

/**
 * Starts all ranks, in order, and waits for their end.
 *
 * @param onEnd receives each rank that has ended by itself
 * @param stop asks all ranks to end, as after a failure
 * @param onKept takes each step whose state is kept in memory
 * @param pool processes that wait for a place, where ranks may be started again
 */
export function supervise(
  starts: readonly RankStart[],
  terminal: StatusTerminal,
  times: StopTimes = defaultStopTimes,
  onEnd: (end: RankEnd) => void = () => {},
  stop?: AbortSignal,
  onKept: (step: number) => void = () => {},
  pool?: RankPool,
): Promise<LaunchOutcome> {
  return new Supervisor(starts, terminal, times, onEnd, stop, onKept, pool).outcome;
}

class Supervisor {
  readonly outcome: Promise<LaunchOutcome>;
  readonly #terminal: StatusTerminal;
  readonly #times: StopTimes;
  readonly #onEnd: (end: RankEnd) => void;
  readonly #onKept: (step: number) => void;
  /** The processes that were started, by rank. */
  readonly #children = new Map<number, RankProcess>();
  readonly #pool: RankPool | undefined;
  /** Of the first rank. */
  readonly #variables: Variables;
  /** True if ranks take another place after a failure. */
  #stays = false;
  readonly #running = new Set<number>();
  /** Ranks that have saved everything, and only have to end. */
  readonly #over = new Set<number>();
  readonly #stopped: number[] = [];
  readonly #watchdog: ChildProcess;
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** Waits before the user, whose signal lets ranks finish a step and save, is asked for patience. */
  #patience: ReturnType<typeof setTimeout> | undefined;
  /** Ranks' reports of their failures, by rank. */
  readonly #records = new Map<number, FailureRecord>();
  readonly #failures: RankFailure[] = [];
  #words: ElasticWords = { worldSizes: undefined, out: undefined, hasBegun: false, regroups: false };
  #userSignal: StopSignal | undefined;
  #userSignalAt = 0;
  #terminated = false;

  constructor(
    starts: readonly RankStart[],
    terminal: StatusTerminal,
    times: StopTimes,
    onEnd: (end: RankEnd) => void,
    stop: AbortSignal | undefined,
    onKept: (step: number) => void,
    pool: RankPool | undefined,
  ) {
    this.#pool = pool;
    this.#variables = starts[0]?.variables ?? {};
    this.#onKept = onKept;
    this.#terminal = terminal;
    this.#times = times;
    ignoreFileSizeSignal();
    this.#onEnd = onEnd;
    const handlers = STOP_SIGNALS.map((signal) => [signal, () => this.#forward(signal)] as const);
    for (const [signal, handler] of handlers) process.on(signal, handler);
    // If nothing reads the ranks' output, as behind `| head`, the run ends as if by a signal. A closed terminal also sends
    // SIGHUP, earlier or later; ranks that save must not be killed by a second signal.
    terminal.onClosed = (what, error) => {
      if (what === "full") {
        const remark = `fullyshard: the ranks' output is not written from here on, as a file is full: ${error.message}`;
        for (const stream of ["stderr", "stdout"] as const) terminal.lines(stream, [remark]);
      } else if (this.#userSignal === undefined) this.#forward(what === "pipe" ? "SIGTERM" : "SIGHUP");
      for (const child of this.#children.values()) for (const stream of OUTPUTS) child.resume(stream);
    };
    this.#watchdog = startWatchdog(this.#variables);
    const ends = starts.map((start) => this.#start(start));
    stop?.addEventListener("abort", () => this.#terminateSoon("a rank of another host ended"), { once: true });
    this.outcome = Promise.all(ends).then(() => {
      for (const [signal, handler] of handlers) process.removeListener(signal, handler);
      terminal.onClosed = () => {};
      clearTimeout(this.#timer);
      clearTimeout(this.#patience);
      this.#watchdog.stdin?.end("done\n");
      // If a rank reports its own failure after the request to stop, the report counts.
      const stopped = this.#stopped.filter((rank) => !this.#records.has(rank));
      const failures = orderFailures(
        this.#failures.filter(({ rank }) => !stopped.includes(rank)).map((failure) => this.#withRecord(failure)),
      );
      const code = this.#userSignal === undefined ? failures[0]?.exitCode ?? 0 : exitCodeOf(this.#userSignal);
      return { exitCode: code, failures, stopped, signal: this.#userSignal, words: this.#words };
    });
  }

  /** Starts a rank; the promise resolves when it has ended and its output was passed on, or when it waits for another place. */
  #start({ command, variables, ...plan }: RankStart): Promise<void> {
    const { rank } = plan;
    // If the run has failed already, this rank is not waited for.
    if (this.#failures.length > 0) return Promise.resolve();
    let child: RankProcess;
    try {
      child = this.#pool?.take(variables) ??
        new RankProcess({ command, variables, keeps: false, isSpare: false });
    } catch (error) {
      // Arguments that no program can take, or a missing permission. The ranks before this one are running.
      this.#ended(rank, { exitCode: 127, detail: `could not be started: ${startProblem(error)}`, lastLines: [] });
      return Promise.resolve();
    }
    this.#children.set(rank, child);
    this.#running.add(rank);
    if (child.pid !== undefined) this.#watchdog.stdin?.write(`${child.pid}\n`);
    const output = new RankOutput(plan, child, this.#terminal, (said) => this.#hear(rank, said));
    const { lastLines } = output;
    let end: Omit<RankEnd, "rank" | "record"> | undefined;
    let isTold = false;
    return new Promise((resolve) => {
      // A rank that ends by itself may leave others waiting.
      const over = (): void => {
        const isOver = this.#terminated || this.#userSignal !== undefined;
        // Once a step is taken, all ranks have joined: none waits for this one to come.
        const isAwaited = !isOver && !isTold && !this.#words.hasBegun;
        if (end !== undefined && isAwaited) this.#onEnd({ rank, ...end, record: this.#records.get(rank) });
        isTold = true;
        resolve();
      };
      const take = (exitCode: number, detail: string): void => {
        end = { exitCode, detail, lastLines };
        this.#ended(rank, end);
      };
      child.follow({
        bytes: (stream, bytes) => output.bytes(stream, bytes),
        lines: (stream, lines) => output.lines(stream, lines),
        left: () => {
          if (end !== undefined) return;
          const exitCode = this.#records.has(rank) ? 1 : 0;
          this.#pool?.add(child);
          take(exitCode, `ended with exit code ${exitCode}`);
          over();
        },
        unstarted: (error) => {
          take(127, `could not be started: ${startProblem(error)}`);
          isTold = true; // nobody waits for it: the others are stopped
          resolve();
        },
        exited: (code, signal) => {
          const exitCode = code ?? (signal === null ? 1 : exitCodeOf(signal));
          const detail = signal === null || code !== null
            ? `ended with exit code ${exitCode}`
            : `was killed by ${signal}${SIGNAL_CAUSES[signal] ?? ""}`;
          // Remaining processes of its group would hold its output open, and outlive the run.
          child.signal("SIGKILL");
          // One that ends while it waits has left its place before.
          if (end === undefined) take(exitCode, detail);
        },
        closed: over,
      });
    });
  }

  /** Takes a message of a rank. */
  #hear(rank: number, said: ControlLine): void {
    if ("failure" in said) this.#records.set(rank, said.failure);
    else if ("over" in said) this.#over.add(rank);
    else if ("worldSizes" in said) this.#words = { ...this.#words, worldSizes: said.worldSizes, out: said.out };
    else if ("begun" in said) this.#begun();
    else if ("kept" in said) this.#onKept(said.kept);
    else if ("regroups" in said) this.#words = { ...this.#words, regroups: true };
    else if ("stays" in said) this.#stays = true;
  }

  /** The first step is taken: what another start needs is prepared now, when it delays no start. */
  #begun(): void {
    this.#words = { ...this.#words, hasBegun: true };
    if (this.#stays) this.#pool?.prepare(this.#variables);
  }

  #ended(rank: number, end: Pick<RankFailure, "exitCode" | "detail" | "lastLines">): void {
    this.#running.delete(rank);
    if (end.exitCode === 0 || this.#userSignal !== undefined) return;
    const pid = this.#children.get(rank)?.pid;
    this.#failures.push({ rank, pid, record: undefined, time: Date.now(), ...end });
    if (this.#failures.length === 1) this.#terminateSoon(`rank ${rank} ${end.detail}`);
  }

  /** Gives ranks the time to notice a failure themselves, and stops them then. */
  #terminateSoon(why: string): void {
    if (this.#running.size === 0 || this.#terminated) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      if (this.#running.size === 0) return;
      this.#terminal.lines("stderr", [`fullyshard: ${why}; stopping ${rankList([...this.#running])}`]);
      this.#terminate("SIGTERM", this.#times.graceMs);
    }, this.#times.noticeMs);
  }

  /** A rank's report may be read only after it has ended. */
  #withRecord(failure: RankFailure): RankFailure {
    const record = this.#records.get(failure.rank);
    return record === undefined ? failure : { ...failure, record, time: record.time };
  }

  #terminate(signal: NodeJS.Signals, graceMs: number): void {
    clearTimeout(this.#timer);
    if (!this.#terminated) this.#stopped.push(...this.#running);
    this.#terminated = true;
    for (const rank of this.#running) this.#children.get(rank)?.signal(signal);
    this.#timer = setTimeout(() => {
      for (const rank of this.#running) {
        this.#terminal.lines("stderr", [
          `fullyshard: killed rank ${rank}, which did not stop within ${graceMs / 1000} s`,
        ]);
        this.#children.get(rank)?.signal("SIGKILL");
      }
    }, graceMs);
  }

  /**
   * A second signal kills. One that follows at once is the same signal, delivered by npm and by the terminal. A closing terminal
   * and its shell both send SIGHUP, so a second SIGHUP kills nothing, and neither does a second SIGUSR1.
   */
  #forward(signal: StopSignal): void {
    const now = performance.now();
    if (this.#userSignal === undefined) {
      this.#userSignal = signal;
      this.#userSignalAt = now;
      this.#terminate(signal, this.#times.userGraceMs);
      this.#patience = setTimeout(() => {
        const seconds = this.#times.userGraceMs / 1000;
        const saving = [...this.#running].filter((rank) => !this.#over.has(rank));
        if (saving.length === 0) return;
        const who = rankList(saving);
        const next = REPEATED_SIGNALS.includes(signal) ? "SIGTERM" : `a second ${signal}`;
        this.#terminal.lines("stderr", [`fullyshard: ${who} may take ${seconds} s to stop; ${next} kills`]);
      }, SAME_SIGNAL_MS);
    } else if (!REPEATED_SIGNALS.includes(signal) && now - this.#userSignalAt > SAME_SIGNAL_MS) {
      clearTimeout(this.#patience);
      this.#terminate("SIGKILL", this.#times.userGraceMs);
    }
  }
}

/** The reason why a process could not be started. */
function startProblem(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error);
  const isLimit = /EAGAIN|Resource temporarily unavailable/.test(text);
  return isLimit ? `${text}: too many processes and threads ('ulimit -u', or pids.max of the container)` : text;
}
