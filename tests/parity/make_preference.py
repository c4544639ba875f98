"""Makes fixtures of preferences: tokens, losses and rewards of TRL's DPOTrainer.

    python tests/parity/make_preference.py          (torch, transformers, peft, trl and safetensors)

tests/fixtures/preference/model and adapter are a small Llama and a LoRA adapter of it whose product is zero; expected.json has
- tokens: rows of data with the ids and completion masks that the trainer makes of them, for a tokenizer, a template and max_length;
- runs: by name the options of a training on `rows` with all of them in each step, the loss and the figures of each step, and the
  figures of `held` after the last.
"""
import json
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
HERE = FIXTURES / "preference"
FIGURES = ["rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected"]
SIZES = dict(vocab_size=448, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, max_position_embeddings=128, tie_word_embeddings=True, initializer_range=0.3)
LENGTH = 96


def user(text):
    return [dict(role="user", content=text)]


def says(text):
    return [dict(role="assistant", content=text)]


ROWS = [
    dict(prompt=user(question), chosen=says(good), rejected=says(bad)) for question, good, bad in [
        ("What is 2 + 2?", "4.", "It is 5, I am sure of it."), ("Say hi", "hi", "No."), ("And you?", "Well, thanks!", "?"),
        ("Which rank?", "Rank 0 of 4.", "All"), ("Why?", "It was asked for, and it is short.", "because"),
        ("Count to three", "1 2 3", "3 2 1"), ("A letter", "a", "abc"), ("Name a colour", "Blue.", "Seven."),
    ]
]
HELD = [
    dict(prompt=user("What is 3 + 3?"), chosen=says("6."), rejected=says("It is 7.")),
    dict(prompt=user("Say no"), chosen=says("no"), rejected=says("hi hi hi")),
    dict(prompt=user("Which letter?"), chosen=says("b"), rejected=says("1")),
]
IMPLIED = [dict(chosen=row["prompt"] + row["chosen"], rejected=row["prompt"] + row["rejected"]) for row in ROWS[:3]]
SYSTEM = [dict(role="system", content="Be brief.")]
TEXTS = [
    dict(prompt="2 + 2 =", chosen=" 4", rejected=" five"), dict(prompt="Say hi:", chosen=" hi 🙂", rejected=""),
    dict(prompt="a", chosen="b</s>", rejected="c"), dict(prompt="The sky is", chosen="blue", rejected=" green and far away"),
]
IMPLIED_TEXTS = [
    dict(chosen="The sky is blue.", rejected="The sky is green."), dict(chosen="a 🙂 b", rejected="a 🙃 b"),
    dict(chosen="one two", rejected="one two three"), dict(chosen="x", rejected="y"),
]


def tokenizer_of(kind, template=None):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(FIXTURES / "chat" / kind / "tokenizer.json"), bos_token="<s>",
                                        eos_token="</s>", pad_token="<unk>", clean_up_tokenization_spaces=False)
    if template is not None:
        tokenizer.chat_template = (FIXTURES / "chat" / "templates" / f"{template}.jinja").read_text()
    return tokenizer


def base_model():
    return LlamaForCausalLM.from_pretrained(HERE / "model", dtype=torch.float32)


class Recorder(DPOTrainer):
    """Keeps numbers before they are rounded."""

    def __init__(self, *args, **kwargs):
        self.losses, self.figures = [], []
        super().__init__(*args, **kwargs)

    def _compute_loss(self, model, inputs, return_outputs):
        found = super()._compute_loss(model, inputs, return_outputs)
        if model.training:
            self.losses.append(found.item())
            self.figures.append({name: self._metrics["train"][name][-1] for name in FIGURES})
        return found


def trainer_of(model, tokenizer, rows, folder, held=None, **options):
    args = DPOConfig(output_dir=folder, report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no",
                     lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.95,
                     adam_epsilon=1e-8, max_grad_norm=1.0, per_device_train_batch_size=len(rows), per_device_eval_batch_size=8,
                     logging_steps=1, dataloader_pin_memory=False, disable_tqdm=True, **options)
    held = None if held is None else Dataset.from_list(held)
    return Recorder(model, args=args, train_dataset=Dataset.from_list(rows), eval_dataset=held, processing_class=tokenizer)


def tokens():
    made = []

    def add(name, kind, template, rows, max_length=LENGTH):
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_of(base_model(), tokenizer_of(kind, template), rows, folder, max_length=max_length)
            pairs = []
            for row in trainer.train_dataset:
                batch = trainer.data_collator([row])
                pairs.append([dict(ids=ids[mask == 1].tolist(), mask=completion[mask == 1].tolist()) for ids, mask, completion in
                              zip(batch["input_ids"], batch["attention_mask"], batch["completion_mask"])])
            made.append(dict(name=name, tokenizer=kind, template=template, maxLength=max_length, rows=rows, pairs=pairs))

    add("chats", "bytes", "chatml", ROWS + [dict(row, prompt=SYSTEM + row["prompt"]) for row in ROWS[:1]])
    add("chats, cut", "bytes", "chatml", ROWS[4:5], max_length=len(made[0]["pairs"][4][0]["ids"]) - 4)
    add("chats of pieces", "pieces", "zephyr", ROWS[:3])
    add("chats with the prompt in both", "bytes", "chatml", IMPLIED)
    add("texts", "bytes", None, TEXTS)
    add("texts of pieces", "pieces", None, TEXTS)
    add("texts with the prompt in both", "bytes", None, IMPLIED_TEXTS)
    return made


def save_models():
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(**SIZES))
    base.save_pretrained(HERE / "model")
    (HERE / "model" / "generation_config.json").unlink(missing_ok=True)
    adapted = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    adapted.peft_config["default"].base_model_name_or_path = "tests/fixtures/preference/model"
    adapted.save_pretrained(HERE / "adapter")
    (HERE / "adapter" / "README.md").unlink()
    config = json.loads((HERE / "adapter" / "adapter_config.json").read_text())
    config["target_modules"] = sorted(config["target_modules"])
    (HERE / "adapter" / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def runs():
    made = {}

    def add(name, steps, learning_rate, adapter=False, **options):
        model = base_model()
        if adapter:
            model = PeftModel.from_pretrained(model, HERE / "adapter", is_trainable=True)
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_of(model, tokenizer_of("bytes", "chatml"), ROWS, folder, HELD, max_length=LENGTH, max_steps=steps,
                                 learning_rate=learning_rate, **options)
            trainer.train()
            held = trainer.evaluate()
        made[name] = dict(options=dict(options, steps=steps, learning_rate=learning_rate, adapter=adapter), losses=trainer.losses,
                          figures=trainer.figures, held={name: held[f"eval_{name}"] for name in ["loss", *FIGURES]})

    add("sigmoid", 15, 1e-2, precompute_ref_log_probs=True)
    add("adapter", 15, 1e-2, adapter=True)
    add("beta", 4, 1e-2, beta=0.5)
    for kind in ["hinge", "ipo", "apo_zero", "apo_down", "nca_pair", "sppo_hard", "sigmoid_norm"]:
        add(kind, 4, 1e-2, loss_type=[kind])
    add("robust", 4, 1e-2, loss_type=["robust"], label_smoothing=0.2)
    return made


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    save_models()
    found = dict(rows=ROWS, held=HELD, maxLength=LENGTH, tokens=tokens(), runs=runs())
    (HERE / "expected.json").write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")
    for name, run in found["runs"].items():
        print(name, [round(loss, 5) for loss in run["losses"]], run["held"])
