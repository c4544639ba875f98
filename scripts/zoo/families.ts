/**
 * The families of models, each with a small configuration (`tests/fixtures/zoo`) and the modules that Hugging Face's automatic
 * plan makes units of it.
 *
 * @module
 */
import { readdirSync, readFileSync } from "node:fs";

const CONFIGS = new URL("../../tests/fixtures/zoo/", import.meta.url);

/** The names of a model's parts. */
interface Places {
  readonly embeddings: readonly string[];
  /** The prefix of the names of blocks. */
  readonly blocks: string;
  /** Final norm and head. */
  readonly tail: readonly string[];
}

const MOST: Places = { embeddings: ["model.embed_tokens"], blocks: "model.layers", tail: ["model.norm", "lm_head"] };
const OTHERS: Readonly<Record<string, Partial<Places>>> = {
  gpt2: {
    embeddings: ["transformer.wte", "transformer.wpe"],
    blocks: "transformer.h",
    tail: ["transformer.ln_f", "lm_head"],
  },
  lfm2: { tail: ["model.embedding_norm", "lm_head"] },
  "modernbert-decoder": {
    embeddings: ["model.embeddings.tok_embeddings"],
    tail: ["model.final_norm", "lm_head", "decoder"],
  },
  phi: { tail: ["model.final_layernorm", "lm_head"] },
};

/** A family, with its head tied to its embedding or not. */
export interface ZooModel {
  readonly family: string;
  readonly tied: boolean;
  readonly hfConfig: Readonly<Record<string, unknown>>;
  /** Units of the automatic plan, each as the names of its modules, in any order; without the root. */
  readonly units: readonly (readonly string[])[];
  /** A plan that names blocks, keeps the head and frees all else. */
  readonly manual: Readonly<Record<string, readonly ("free_full_weight" | "keep_full_weight")[]>>;
}

function numLayersOf(config: Readonly<Record<string, unknown>>): number {
  const layers = config["num_hidden_layers"] ?? config["n_layer"];
  if (typeof layers !== "number") throw new Error("a configuration that says nothing of layers");
  return layers;
}

function modelOf(family: string, tied: boolean): ZooModel {
  const config: Readonly<Record<string, unknown>> = JSON.parse(
    readFileSync(new URL(`${family}.json`, CONFIGS), "utf8"),
  );
  const { embeddings, blocks, tail }: Places = { ...MOST, ...OTHERS[family] };
  const layers = Array.from({ length: numLayersOf(config) }, (_, i) => [`${blocks}.${i}`]);
  // Modules that share a weight are one unit.
  const [table, ...rest] = embeddings.map((name) => [name]);
  if (table === undefined) throw new Error(`${family} has no embedding`);
  const units = tied ? [[...table, ...tail], ...rest, ...layers] : [table, ...rest, ...layers, tail];
  const manual = Object.fromEntries([
    ...embeddings.map((name) => [name, ["free_full_weight"]] as const),
    [`${blocks}.*`, ["free_full_weight"]] as const,
    ...tail.map((name) => [name, ["keep_full_weight"]] as const),
  ]);
  return { family, tied, hfConfig: { ...config, tie_word_embeddings: tied }, units, manual };
}

/** Names of all families. */
export const ZOO: readonly string[] = readdirSync(CONFIGS).map((file) => file.replace(/\.json$/, "")).sort();

/** A family untied, and tied. */
export function zooModels(family: string): readonly ZooModel[] {
  return [modelOf(family, false), modelOf(family, true)];
}
