"""Makes fixtures of odds ratio preference optimization: tokens, losses and figures of TRL's ORPOTrainer.

    python tests/parity/make_odds_ratio.py          (torch, transformers, peft, trl and safetensors; after make_preference.py)

tests/fixtures/preference/orpo.json has what expected.json has of the DPOTrainer, for the same model, rows and held-out rows.
"""
import json
import tempfile

import torch
from datasets import Dataset
from make_preference import HELD, HERE, IMPLIED, IMPLIED_TEXTS, LENGTH, ROWS, SYSTEM, TEXTS, base_model, tokenizer_of
from peft import PeftModel
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

FIGURES = ["rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected",
           "nll_loss", "log_odds_ratio", "log_odds_chosen"]


class Recorder(ORPOTrainer):
    """Keeps numbers before they are rounded."""

    def __init__(self, *args, **kwargs):
        self.losses, self.figures = [], []
        super().__init__(*args, **kwargs)

    def get_batch_loss_metrics(self, model, batch, train_eval="train"):
        loss, metrics = super().get_batch_loss_metrics(model, batch, train_eval)
        if train_eval == "train":
            self.losses.append(loss.item())
            self.figures.append({name: metrics[name] for name in FIGURES})
        return loss, metrics


def trainer_of(model, tokenizer, rows, folder, held=None, **options):
    args = ORPOConfig(output_dir=folder, report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no",
                      lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.95,
                      adam_epsilon=1e-8, max_grad_norm=1.0, per_device_train_batch_size=len(rows), per_device_eval_batch_size=8,
                      logging_steps=1, dataloader_pin_memory=False, disable_tqdm=True, **options)
    held = None if held is None else Dataset.from_list(held)
    return Recorder(model, args=args, train_dataset=Dataset.from_list(rows), eval_dataset=held, processing_class=tokenizer)


def shrinks(row, tokenizer):
    """True if a text has fewer tokens with an answer behind it than alone, which the trainer refuses."""
    prompt = row.get("prompt")
    if not isinstance(prompt, str):
        return False
    whole = [len(tokenizer(prompt + row[which])["input_ids"]) for which in ("chosen", "rejected")]
    return min(whole) < len(tokenizer(prompt)["input_ids"])


def tokens():
    made = []

    def add(name, kind, template, rows, max_length=LENGTH):
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = tokenizer_of(kind, template)
            rows = [row for row in rows if not shrinks(row, tokenizer)]
            trainer = trainer_of(base_model(), tokenizer, rows, folder, max_length=max_length)
            pairs = [[dict(ids=row[f"{which}_input_ids"], mask=[int(label >= 0) for label in row[f"{which}_labels"]])
                      for which in ("chosen", "rejected")] for row in trainer.train_dataset]
            made.append(dict(name=name, tokenizer=kind, template=template, maxLength=max_length, rows=rows, pairs=pairs))

    add("chats", "bytes", "chatml", ROWS + [dict(row, prompt=SYSTEM + row["prompt"]) for row in ROWS[:1]])
    add("chats, cut", "bytes", "chatml", ROWS[4:5], max_length=len(made[0]["pairs"][4][0]["ids"]) - 4)
    add("chats of pieces", "pieces", "zephyr", ROWS[:3])
    add("chats with the prompt in both", "bytes", "chatml", IMPLIED)
    add("texts", "bytes", None, TEXTS)
    add("texts of pieces", "pieces", None, TEXTS)
    add("texts with the prompt in both", "bytes", None, IMPLIED_TEXTS)
    return made


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
            # What an evaluation logs is its mean over batches; these are one batch.
            figures = {name: held[f"eval_{name}"] for name in ["loss", *FIGURES]}
        made[name] = dict(options=dict(options, steps=steps, learning_rate=learning_rate, adapter=adapter), losses=trainer.losses,
                          figures=trainer.figures, held=figures)

    add("orpo", 12, 1e-2)
    add("adapter", 8, 1e-2, adapter=True)
    add("beta", 4, 1e-2, beta=0.7)
    return made


if __name__ == "__main__":
    torch.manual_seed(0)
    found = dict(tokens=tokens(), runs=runs())
    (HERE / "orpo.json").write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")
    for name, run in found["runs"].items():
        print(name, [round(loss, 5) for loss in run["losses"]], run["held"])
