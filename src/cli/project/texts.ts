/**
 * Texts of a new project's files that no choice changes.
 *
 * @module
 */

/** A training from scratch: a Llama of 1.8 M parameters on the pages of this package. */
export const SCRATCH_SCRIPT: string = `import process from "node:process";
import { fileURLToPath } from "node:url";
import { runTrainingScript } from "fullyshard/config";

/** A file of the package. */
const packaged = (path: string): URL => new URL(\`../\${path}\`, import.meta.resolve("fullyshard"));

process.exitCode = await runTrainingScript({
  hfConfig: {
    architectures: ["LlamaForCausalLM"],
    model_type: "llama",
    vocab_size: 4096,
    hidden_size: 128,
    intermediate_size: 352,
    num_hidden_layers: 4,
    num_attention_heads: 4,
    max_position_embeddings: 512,
    bos_token_id: 0,
    eos_token_id: 0,
  },
  data: () => [fileURLToPath(packaged("docs/*.md"))], // without \`data\` in train.yaml, or --data
  tokenizer: packaged("examples/data/tokenizer.json"), // or learn your own: fullyshard tokenizer
  prompt: "Each rank ",
});
`;

/** A fine-tuning: all settings are keys of `train.yaml`. */
export const TUNE_SCRIPT: string = `import process from "node:process";
import { runTrainingScript } from "fullyshard/config";

process.exitCode = await runTrainingScript();
`;

/** A module and a loop of one's own. */
export const MODULE_SCRIPT: string =
  `import { AdamW, fullyShard, launch, scope, type Tensor, tensor } from "fullyshard";
import { saveModule } from "fullyshard/checkpoint";
import { initializeParameters, Linear, Module, mseLoss } from "fullyshard/nn";

/** A network that learns the sine. */
class Net extends Module<[Tensor], Tensor> {
  readonly up: Linear;
  readonly down: Linear;

  constructor(device: Tensor["device"]) {
    super();
    this.up = new Linear(device, 1, 64);
    this.down = new Linear(device, 64, 1);
  }

  override forward(x: Tensor): Tensor {
    return this.down.call(this.up.call(x).tanh());
  }
}

await using run = await launch(); // the ranks that the launcher started, or this one alone
const model = new Net(run.device); // no memory yet
fullyShard(model, { mesh: run.mesh });
initializeParameters(model, 0); // each rank draws its own part
const optimizer = new AdamW(model.parameters(), { learningRate: 0.01 });
for (let step = 1; step <= 300; step++) {
  using _frame = scope(); // frees what the step made
  const inputs = Array.from({ length: 32 }, () => 6 * Math.random() - 3);
  const x = tensor(run.device, inputs, { shape: [32, 1] });
  const y = tensor(run.device, inputs.map(Math.sin), { shape: [32, 1] });
  optimizer.zeroGrad();
  const loss = mseLoss(model.call(x), y);
  loss.backward();
  optimizer.step();
  if (step % 50 === 0 && run.isMain) console.log(\`step \${step}  loss \${loss.item().toFixed(4)}\`);
}
await saveModule(model, "runs/net", run.group); // every rank writes its own part
`;

/** Questions and answers about a shop, as rows of chats. */
const TURNS: readonly (readonly [string, string])[] = [
  ["When do you open?", "We open at nine from Monday to Saturday, and stay closed on Sundays."],
  ["Do you repair bicycles?", "Yes. Most repairs are done within two days; a flat tire takes half an hour."],
  ["What does a new chain cost?", "Chains cost 18 to 45 euros. Fitting one is 15 euros."],
  ["Can I return a helmet?", "Unworn helmets can be returned within 30 days, with the receipt."],
  ["Do you rent bikes?", "We rent city bikes for 12 euros a day. Please bring an identity card."],
  ["Is there parking nearby?", "There is a car park behind the shop; the first hour is free."],
  ["Do you sell lights?", "Yes, front and rear lights, from 9 euros. Rechargeable ones start at 19 euros."],
  ["How do I book a service?", "Call us, or come in with the bike. We note a day that suits you."],
];

/** A few chats in JSON lines, in place of one's own. */
export const CHATS: string = TURNS.map(([question, answer]) =>
  `${JSON.stringify({ messages: [{ role: "user", content: question }, { role: "assistant", content: answer }] })}\n`
).join("");
