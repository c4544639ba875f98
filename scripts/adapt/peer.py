"""What TRL, transformers and PEFT make of the folders of `npm run adapt`: the peer of scripts/adapt.

    python scripts/adapt/peer.py versions|samples|train|prefer|read REQUEST     (torch, transformers, peft and trl; on the CPU)

REQUEST is a file of JSON, as scripts/adapt/peer.ts writes it. The answer is the last line of standard output, as JSON.
"""
import importlib.metadata
import json
import logging
import sys
import tempfile

import torch
from datasets import Dataset, disable_progress_bars
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer

logging.disable(logging.WARNING)
disable_progress_bars()


def rows_of(path):
    with open(path, encoding="utf-8") as file:
        return Dataset.from_list([json.loads(line) for line in file])


def model_of(base, adapter=None, trained=False):
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return model if adapter is None else PeftModel.from_pretrained(model, adapter, is_trainable=trained)


def versions():
    return {name: importlib.metadata.version(name) for name in ("torch", "transformers", "peft", "trl")}


def config_of(folder, maxLength, **options):
    return SFTConfig(output_dir=folder, report_to="none", use_cpu=True, bf16=False, disable_tqdm=True, save_strategy="no",
                     max_length=maxLength, **options)


def samples(base, rows, loss, maxLength):
    options = {"all": dict(completion_only_loss=False)}.get(loss, {loss: True})
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(model_of(base), args=config_of(folder, maxLength, **options), train_dataset=rows_of(rows),
                             processing_class=AutoTokenizer.from_pretrained(base))
        return [dict(ids=row["input_ids"], labels=row["labels"]) for row in trainer.train_dataset]


class Recorded(SFTTrainer):
    """Keeps each step's loss as it was computed; what is logged is rounded."""

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        self.losses.append(loss.item())
        return loss


class Norms(TrainerCallback):
    def __init__(self):
        self.norms = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "grad_norm" in logs:
            self.norms.append(float(logs["grad_norm"]))


def train(base, rows, batch, steps, maxLength, learningRate, weightDecay, beta2, adapter=None):
    norms = Norms()
    with tempfile.TemporaryDirectory() as folder:
        args = config_of(
            folder, maxLength, assistant_only_loss=True, per_device_train_batch_size=batch, max_steps=steps, learning_rate=learningRate,
            lr_scheduler_type="constant", warmup_steps=0, weight_decay=weightDecay, adam_beta2=beta2, max_grad_norm=1.0, optim="adamw_torch",
            gradient_checkpointing=False, train_sampling_strategy="sequential", logging_steps=1)
        trainer = Recorded(model_of(base, adapter, trained=True), args=args, train_dataset=rows_of(rows),
                           processing_class=AutoTokenizer.from_pretrained(base), callbacks=[norms])
        trainer.losses = []
        trainer.train()
    return dict(losses=trainer.losses, gradNorms=norms.norms)


def prefer(kind, base, rows, batch, steps, maxLength, learningRate, adapter=None):
    if kind == "dpo":
        from trl import DPOConfig as Config
        from trl import DPOTrainer as Trainer
    elif kind == "kto":
        from trl import KTOConfig as Config
        from trl import KTOTrainer as Trainer
    else:
        from trl.experimental.orpo import ORPOConfig as Config
        from trl.experimental.orpo import ORPOTrainer as Trainer
    losses, margins = [], []
    tokenizer = AutoTokenizer.from_pretrained(base)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # padding is told by the attention mask

    class Kept(Trainer):
        """Keeps each step's numbers as they were computed; what is logged is rounded."""

        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            losses.append(loss.item())
            kept = self._stored_metrics["train"] if kind == "orpo" else self._metrics["train"]
            margins.append(float(kept["rewards/margins"][-1]))
            return loss

    with tempfile.TemporaryDirectory() as folder:
        args = Config(
            output_dir=folder, report_to="none", use_cpu=True, bf16=False, disable_tqdm=True, save_strategy="no", max_length=maxLength,
            per_device_train_batch_size=batch, max_steps=steps, learning_rate=learningRate, lr_scheduler_type="constant", warmup_steps=0,
            weight_decay=0.0, adam_beta2=0.999, max_grad_norm=1.0, optim="adamw_torch", gradient_checkpointing=False, logging_steps=1)
        Kept(model_of(base, adapter, trained=True), args=args, train_dataset=rows_of(rows), processing_class=tokenizer).train()
    return dict(losses=losses, margins=margins)


@torch.no_grad()
def read(base, samples, prompts, newTokens, eosId, adapter=None):
    model, tokenizer = model_of(base, adapter).eval(), AutoTokenizer.from_pretrained(base)
    logits = [model(input_ids=torch.tensor([ids])).logits.flatten().tolist() for ids in samples]
    texts = []
    for ids in prompts:
        prompt = torch.tensor([ids])
        made = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=newTokens, do_sample=False,
                              eos_token_id=eosId, pad_token_id=eosId)[0, len(ids):].tolist()
        texts.append(tokenizer.decode([token for token in made if token != eosId], clean_up_tokenization_spaces=False))
    return dict(logits=logits, texts=texts)


if __name__ == "__main__":
    with open(sys.argv[2], encoding="utf-8") as file:
        request = json.load(file)
    answer = dict(versions=versions, samples=samples, train=train, prefer=prefer, read=read)[sys.argv[1]](**request)
    print(json.dumps(answer))
