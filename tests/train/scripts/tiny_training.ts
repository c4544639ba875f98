/**
 * The training of `tiny.ts`: a model that takes milliseconds a step, and faults to order. All arguments that are not listed here are
 * the trainer's flags.
 *
 * - `fault=<rank or *>:<step>:<what>`: `what` is `exit=<code>`, `kill`, `throw`, `sleep=<seconds>`, `hang`, `other` (calls what the other
 *   ranks do not), `poison` (a weight becomes NaN), `allocate`, `config` or `nonfinite` (throws such an error). After a comma stands the
 *   fault of ranks that are started again.
 * - `kill-in=<kind>`, `hang-in=<kind>`, `other-in=<kind>` and `vanish-in=<kind>` as `what`: from then on, at the first call of that kind, or
 *   about something that begins so, the rank is killed, hangs, calls something else in the call's group right behind it, or the
 *   checkpoint that is being written vanishes.
 * - `experts=<n>`: a mixture whose routers are balanced. `dropout=<p>`: a Phi that drops out.
 * - `layers=<n>`, `hidden=<n>`, `vocab=<n>`: sizes of the model.
 * - `tokens=bytes`: bytes are tokens. `data=<file>`: the script's own data.
 * - `peak=<step>`: tells the most memory that the process had at that step.
 *
 * @module
 */
import { readdirSync, readFileSync, rmSync, writeSync } from "node:fs";
import process from "node:process";
import type { CallListener } from "../../../doors/comm.ts";
import { ConfigError, NonFiniteError } from "../../../doors/errors.ts";
import { ownedPtr, writeParameters } from "../../../doors/nn.ts";
import { runTrainingScript, type StepContext } from "../../../doors/config.ts";

/**
 * Trains as the arguments say, on this rank; returns the exit code.
 *
 * @param argv arguments, without program and script
 */
export async function trainTiny(argv: readonly string[]): Promise<number> {
  const own = argv.filter((text) => /^(fault|experts|layers|hidden|vocab|dropout|data|tokens|peak)=/.test(text));
  const valueOf = (name: string): string | undefined =>
    own.find((text) => text.startsWith(`${name}=`))?.slice(name.length + 1);
  const hidden = Number(valueOf("hidden") ?? 16);
  const p = Number(valueOf("dropout") ?? 0);
  const data = valueOf("data");
  const experts = valueOf("experts");
  const out = argv[argv.indexOf("--out") + 1] ?? "";
  return await runTrainingScript({
    usage: "tiny.ts [flags]",
    staysAfterFailure: true,
    argv: argv.filter((text) => !own.includes(text)),
    hfConfig: {
      ...experts === undefined ? { model_type: "llama" } : {
        model_type: "mixtral",
        num_local_experts: Number(experts),
        num_experts_per_tok: 2,
        router_aux_loss_coef: 0.02,
        output_router_logits: true,
      },
      vocab_size: Number(valueOf("vocab") ?? 4096),
      hidden_size: hidden,
      intermediate_size: hidden * 2,
      num_hidden_layers: Number(valueOf("layers") ?? 2),
      num_attention_heads: Math.max(2, hidden / 256), // of at most 256 elements
      num_key_value_heads: 1,
      max_position_embeddings: 64,
      rms_norm_eps: 1e-6,
      rope_theta: 10000,
      initializer_range: 0.02,
      tie_word_embeddings: false,
      ...p === 0 ? {} : { model_type: "phi", embd_pdrop: p, attention_dropout: p, resid_pdrop: p },
    },
    data: () => data === undefined ? [] : [data],
    prompt: "once ",
    ...valueOf("tokens") === "bytes"
      ? {}
      : { tokenizer: new URL("../../../examples/data/tokenizer.json", import.meta.url) },
    onStep: ({ step }, context) => {
      if (step === Number(valueOf("peak"))) {
        writeSync(2, `peak ${/VmHWM:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))?.[1]} kB\n`);
      }
      const start = Number(process.env["TORCHELASTIC_RESTART_COUNT"] ?? "0");
      const [rank, at, what = ""] = valueOf("fault")?.split(",")[start]?.split(":") ?? [];
      // Writing to parameters is collective.
      if ((rank === "*" || Number(rank) === context.group.rank) && Number(at) === step) commit(what, out, context);
    },
  });
}

function commit(fault: string, out: string, { device, group, model }: StepContext): void {
  const [what, value = ""] = fault.split("=");
  if (what?.endsWith("-in")) {
    let calls = 0;
    let isDone = false;
    const other: CallListener = ({ kind, unit }, over) => {
      if (isDone || (kind !== value && !unit.startsWith(value))) return;
      isDone = true;
      say("now");
      over.barrier("a call of my own");
    };
    if (what === "other-in") return void group.observe(() => undefined, other);
    group.observe(({ kind, unit }) => {
      if (kind !== value && !unit.startsWith(value)) return;
      // The first call about a save makes its directory; there is something of it at the second.
      if (what === "vanish-in" && ++calls < 2) return;
      say("now");
      if (what === "hang-in") sleep(2 ** 31 - 1);
      if (what === "kill-in") process.kill(process.pid, "SIGKILL");
      for (const name of readdirSync(out)) if (name.endsWith(".partial")) rmSync(`${out}/${name}`, { recursive: true });
    });
    return;
  }
  say("now");
  if (what === "exit") process.exit(Number(value));
  else if (what === "kill") process.kill(process.pid, "SIGKILL");
  else if (what === "throw") throw new Error("out of coffee");
  else if (what === "sleep" || what === "hang") sleep(what === "hang" ? 2 ** 31 - 1 : Number(value) * 1000);
  else if (what === "config") throw new ConfigError([{ path: "x", expected: "y", got: "z, only here" }]);
  else if (what === "nonfinite") throw new NonFiniteError("Found only here");
  else if (what === "other") group.barrier("a call of my own");
  else if (what === "allocate") device.allocator.allocate(2 ** 40, "a table of everything");
  else if (what === "poison") {
    const nan = new Uint8Array(new Float32Array([NaN]).buffer);
    writeParameters(model.parameters(), (parameter) => {
      const isTarget = parameter.fqn === "model.layers.1.mlp.up_proj.weight";
      if (isTarget && parameter.storage.shard.numel > 0) device.copyIn(ownedPtr(parameter), nan);
    });
  }
}

/** Tells when the fault is. */
function say(when: string): void {
  writeSync(2, `fault ${when}\n`);
}

/** Blocks this thread, as a rank in a long call would. */
function sleep(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}
