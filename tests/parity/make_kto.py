"""Makes fixtures of Kahneman-Tversky optimization: tokens, masks, losses and figures of TRL's KTOTrainer.

    python tests/parity/make_kto.py          (torch, transformers, peft, trl and safetensors; after make_preference.py)

tests/fixtures/preference/kto.json has rows with labels made of the answers of expected.json, their tokens with those of the answers to other
prompts, and losses and figures of steps that each take all rows.
"""
import json
import tempfile

import torch
from datasets import Dataset
from make_preference import HELD, HERE, LENGTH, ROWS, SYSTEM, TEXTS, base_model, tokenizer_of
from peft import PeftModel
from trl import KTOConfig, KTOTrainer

FIGURES = ["rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected", "kl"]


def labeled(rows):
    """Every second row with its chosen answer, the others with the rejected one; one row has both."""
    made = []
    for i, row in enumerate(rows):
        for which in (("chosen", "rejected") if i == 1 else ("chosen",) if i % 2 == 0 else ("rejected",)):
            made.append(dict(prompt=row["prompt"], completion=row[which], label=which == "chosen"))
    return made


class Recorder(KTOTrainer):
    """Keeps numbers before they are rounded."""

    def __init__(self, *args, **kwargs):
        self.losses, self.figures = [], []
        super().__init__(*args, **kwargs)

    def _compute_loss(self, model, inputs, return_outputs):
        loss = super()._compute_loss(model, inputs, return_outputs)
        if self.model.training:
            self.losses.append(loss.item())
            self.figures.append({name: self._metrics["train"][name][-1] for name in FIGURES})
        return loss


def trainer_of(model, tokenizer, rows, folder, held=None, **options):
    args = KTOConfig(output_dir=folder, report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no",
                     lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.95,
                     adam_epsilon=1e-8, max_grad_norm=1.0, per_device_train_batch_size=len(rows), per_device_eval_batch_size=len(held or rows),
                     logging_steps=1, dataloader_pin_memory=False, disable_tqdm=True, **options)
    held = None if held is None else Dataset.from_list(held)
    reference = None if isinstance(model, PeftModel) else base_model()
    return Recorder(model, reference, args=args, train_dataset=Dataset.from_list(rows), eval_dataset=held, processing_class=tokenizer)


def tokens():
    made = []

    def add(name, kind, template, rows, max_length=LENGTH):
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_of(base_model(), tokenizer_of(kind, template), rows, folder, max_length=max_length)
            batch = trainer.data_collator([trainer.train_dataset[i] for i in range(len(rows))])
            samples = [[dict(ids=batch[f"{prefix}input_ids"][i][batch[f"{prefix}attention_mask"][i] == 1].tolist(),
                             mask=batch[f"{prefix}completion_mask"][i][batch[f"{prefix}attention_mask"][i] == 1].tolist())
                        for prefix in ("", "KL_")] for i in range(len(rows))]
            made.append(dict(name=name, tokenizer=kind, template=template, maxLength=max_length, rows=rows, samples=samples))

    chats = labeled(ROWS)
    add("chats", "bytes", "chatml", chats + [dict(row, prompt=SYSTEM + row["prompt"]) for row in chats[:1]])
    longest = max(range(len(chats)), key=lambda i: len(made[0]["samples"][i][0]["ids"]))
    prompts = [sum(1 for mask in sample[0]["mask"] if mask == 0) for sample in made[0]["samples"]]
    add("chats, cut", "bytes", "chatml", [chats[longest], *chats[:2]],
        max_length=max(prompts[longest], *prompts[:2]) + 3)
    add("chats of pieces", "pieces", "zephyr", chats[:3])
    add("texts", "bytes", None, labeled(TEXTS))
    add("texts of pieces", "pieces", None, labeled(TEXTS))
    return made


def runs():
    made = {}

    def add(name, steps, learning_rate, adapter=False, **options):
        model = base_model()
        if adapter:
            model = PeftModel.from_pretrained(model, HERE / "adapter", is_trainable=True)
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_of(model, tokenizer_of("bytes", "chatml"), labeled(ROWS), folder, labeled(HELD), max_length=LENGTH,
                                 max_steps=steps, learning_rate=learning_rate, **options)
            trainer.train()
            held = trainer.evaluate()
            figures = {name: held[f"eval_{name}"] for name in ["loss", *FIGURES] if f"eval_{name}" in held}
        made[name] = dict(options=dict(options, steps=steps, learning_rate=learning_rate, adapter=adapter), losses=trainer.losses,
                          figures=trainer.figures, held=figures)

    add("kto", 10, 1e-2)
    add("weights", 6, 1e-2, beta=0.3, desirable_weight=1.5, undesirable_weight=0.7)
    add("adapter", 6, 1e-2, adapter=True)
    add("apo_zero_unpaired", 8, 1e-2, loss_type="apo_zero_unpaired")
    return made


if __name__ == "__main__":
    torch.manual_seed(0)
    found = dict(rows=labeled(ROWS), held=labeled(HELD), maxLength=LENGTH, tokens=tokens(), runs=runs())
    (HERE / "kto.json").write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")
