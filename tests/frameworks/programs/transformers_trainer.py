"""Trains a small GPT-2 with the Trainer of transformers: `torchrun transformers_trainer.py BACKEND FOLDER`.

The program makes the group, which the Trainer then uses. With the backend "taken over" it makes no group: the Trainer
makes one on gloo, which tutti takes over by a variable of the environment. With the backend "name" the Trainer gets the
name tutti, which it refuses.
"""
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from outcome import groups_in_use, save
from training import flat
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

WORDS, LENGTH, STEPS = 64, 16, 4


def sentence(number):
    words = torch.randint(WORDS, (LENGTH,), generator=torch.Generator().manual_seed(number))
    return {"input_ids": words, "labels": words}


def trainer(folder, **options):
    torch.manual_seed(7)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2))
    arguments = TrainingArguments(folder, use_cpu=True, max_steps=STEPS, per_device_train_batch_size=4, save_steps=2,
                                  report_to=[], disable_tqdm=True, seed=7, learning_rate=0.01, **options)
    return Trainer(model=model, args=arguments, train_dataset=[sentence(number) for number in range(64)],
                   eval_dataset=[sentence(number) for number in range(90, 101)])


def main(backend, folder):
    torch.set_num_threads(1)
    if backend == "name":
        TrainingArguments(folder, use_cpu=True, ddp_backend="tutti")
    if backend != "taken over":
        dist.init_process_group(backend)
    whole = trainer(folder)
    whole.train()
    resumed = trainer(folder)
    resumed.train(resume_from_checkpoint=str(Path(folder) / "checkpoint-2"))
    predictions = whole.predict(whole.eval_dataset).predictions
    save(folder, {"trained": flat(whole.model.parameters()), "resumed": flat(resumed.model.parameters()),
                  "evaluated": whole.evaluate()["eval_loss"], "predicted": torch.from_numpy(predictions),
                  "groups": groups_in_use()})
    dist.destroy_process_group()


main(*sys.argv[1:])
