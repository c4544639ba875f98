/**
 * TRL, transformers and PEFT, asked through `peer.py`.
 *
 * @module
 */
import { writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import * as z from "zod";
import { runProgram } from "./commands.ts";

const script = fileURLToPath(new URL("./peer.py", import.meta.url));
const liveScript = fileURLToPath(new URL("./live.py", import.meta.url));

/** Tokens and labels of a sample; a label stands at its own token, and is -100 where the loss is not. */
export interface Sample {
  readonly ids: readonly number[];
  readonly labels: readonly number[];
}

/** What to read from a model. */
export interface ReadRequest {
  readonly base: string;
  readonly adapter?: string;
  readonly samples: readonly (readonly number[])[];
  readonly prompts: readonly (readonly number[])[];
  readonly newTokens: number;
  readonly eosId: number;
}

/** Losses of a training, in nats a token, and its learned weights by name as sums. */
export interface Training {
  readonly losses: readonly number[];
  readonly gradNorms: readonly number[];
}

/** What a model gives: scores of each sample, row by row, and texts that go on from prompts. */
export interface Reading {
  readonly logits: readonly (readonly number[])[];
  readonly texts: readonly string[];
}

const integers = z.array(z.int());
const samples: z.ZodType<readonly Sample[]> = z.array(z.object({ ids: integers, labels: integers }));
const training: z.ZodType<Training> = z.object({ losses: z.array(z.number()), gradNorms: z.array(z.number()) });
const reading: z.ZodType<Reading> = z.object({ logits: z.array(z.array(z.number())), texts: z.array(z.string()) });

/** What of a chat or prompt TRL's loss is on. */
export type TrlLoss = "assistant_only_loss" | "completion_only_loss" | "all";

/** A request for a training. */
export interface TrainingRequest {
  readonly base: string;
  readonly adapter?: string;
  /** Rows in the order in which they are taken. */
  readonly rows: string;
  readonly batch: number;
  readonly steps: number;
  readonly maxLength: number;
  readonly learningRate: number;
  readonly weightDecay: number;
  readonly beta2: number;
}

/** A request for a training on pairs, each step of which takes all of them. */
export interface PreferenceRequest
  extends Pick<TrainingRequest, "base" | "adapter" | "rows" | "batch" | "steps" | "maxLength" | "learningRate"> {
  readonly kind: "dpo" | "orpo" | "kto";
}

/** Losses of a training on pairs, and margins of the rewards of chosen answers. */
export interface PreferenceTraining {
  readonly losses: readonly number[];
  readonly margins: readonly number[];
}

const preferences: z.ZodType<PreferenceTraining> = z.object({
  losses: z.array(z.number()),
  margins: z.array(z.number()),
});

/** How far references are from what was recorded of them, as parts of the largest numbers, and packages that are not there. */
export interface LiveNumbers {
  readonly lacks: readonly string[];
  readonly found: Readonly<Record<string, number>>;
}

const liveNumbers: z.ZodType<LiveNumbers> = z.object({
  lacks: z.array(z.string()),
  found: z.record(z.string(), z.number()),
});

/** The peer, run by a Python that has it. */
export class Peer {
  readonly #python: string;
  readonly #folder: string;

  /** @param folder for requests, and for what the peer keeps */
  constructor(python: string, folder: string) {
    this.#python = python;
    this.#folder = folder;
  }

  /** Versions of torch, transformers, peft and trl. */
  versions(): Promise<Readonly<Record<string, string>>> {
    return this.#ask("versions", {}, z.record(z.string(), z.string()));
  }

  /** Tokens and labels that `SFTTrainer` makes of a file of rows. */
  samples(base: string, rows: string, loss: TrlLoss, maxLength: number): Promise<readonly Sample[]> {
    return this.#ask("samples", { base, rows, loss, maxLength }, samples);
  }

  /** Trains by `SFTTrainer`. */
  train(request: TrainingRequest): Promise<Training> {
    return this.#ask("train", { ...request }, training);
  }

  /** Trains by `DPOTrainer`, `ORPOTrainer` or `KTOTrainer`. */
  prefer(request: PreferenceRequest): Promise<PreferenceTraining> {
    return this.#ask("prefer", { ...request }, preferences);
  }

  /** Reads a folder of transformers, or with an adapter one of PEFT beside it. */
  read(request: ReadRequest): Promise<Reading> {
    return this.#ask("read", { ...request }, reading);
  }

  /** Runs the references of optimizers and quantized weights again. @param folder an empty one */
  async live(folder: string): Promise<LiveNumbers> {
    const { code, stdout, stderr } = await runProgram(this.#python, [liveScript, folder], { CUDA_VISIBLE_DEVICES: "" });
    if (code === 0) return liveNumbers.parse(JSON.parse(stdout.trim().split("\n").at(-1) ?? ""));
    throw new Error(
      `Expected PEER_PYTHON to run 'live.py' with torch, got ${code}: ${stderr.trim().split("\n").at(-1)}`,
    );
  }

  async #ask<T>(what: string, request: Readonly<Record<string, unknown>>, answer: z.ZodType<T>): Promise<T> {
    const file = `${this.#folder}/request.json`;
    writeFileSync(file, JSON.stringify(request));
    const { code, stdout, stderr } = await runProgram(this.#python, [script, what, file], {
      ...{ HF_HOME: `${this.#folder}/hugging_face`, HF_HUB_OFFLINE: "1", CUDA_VISIBLE_DEVICES: "" },
      ...{ TOKENIZERS_PARALLELISM: "false", PYTHONWARNINGS: "ignore" },
    });
    const last = stdout.trim().split("\n").at(-1) ?? "";
    if (code === 0) return answer.parse(JSON.parse(last));
    const lines = stderr.trim().split("\n");
    throw new Error(
      `Expected PEER_PYTHON to run 'peer.py ${what}' with torch, transformers, peft and trl, got ${code}: ${
        lines.at(-1)
      }`,
    );
  }
}
