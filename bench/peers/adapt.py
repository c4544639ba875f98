"""Fine-tunes on chats by TRL's SFTTrainer, with transformers and PEFT: the peer of bench/ranks/adapt.ts.

    python bench/peers/adapt.py CASE '<JSON of bench/adapt.ts>'     (torch, transformers, peft and trl; on the CPU)

Under torch.distributed.run each process has its part of the batch; Accelerate replicates the model on CPUs, whatever `fsdp` says.
"""
import json
import logging
import os
import resource
import sys
import tempfile
import time

import torch
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer

logging.disable(logging.WARNING)
disable_progress_bars()
name, told = sys.argv[1], json.loads(sys.argv[2])
batch, seq, warm_up, timed = told["batch"], told["seq"], told["warmUp"], told["timed"]
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
half = told["precision"] == "bfloat16"


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Times(TrainerCallback):
    def __init__(self):
        self.ends = []

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())
        if len(self.ends) == warm_up + timed:
            times = sorted(b - a for a, b in zip(self.ends[-timed - 1:], self.ends[-timed:]))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            print(f"{name} {batch * seq / times[timed // 2]:.2f}")
            print(f"{name}-rss {peak}")
            print(f"{name}-grown {peak - before}", flush=True)


before = resident()
with open(told["rows"], encoding="utf-8") as file:
    rows = Dataset.from_list([json.loads(line) for line in file])
# Weights that are trained are float32, and computed in bfloat16 by autocast; a frozen model is of the type that is computed in.
model = AutoModelForCausalLM.from_pretrained(told["model"], dtype=torch.bfloat16 if half and told["lora"] else torch.float32)
with tempfile.TemporaryDirectory() as folder:
    args = SFTConfig(
        output_dir=folder, report_to="none", use_cpu=True, bf16=half, disable_tqdm=True, save_strategy="no", logging_strategy="no",
        max_length=seq, assistant_only_loss=True, per_device_train_batch_size=batch // int(os.environ.get("WORLD_SIZE", "1")), max_steps=warm_up + timed, learning_rate=1e-4,
        lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.01, gradient_checkpointing=False)
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM") if told["lora"] else None
    SFTTrainer(model, args=args, train_dataset=rows, processing_class=AutoTokenizer.from_pretrained(told["model"]), peft_config=lora,
               callbacks=[Times()]).train()
