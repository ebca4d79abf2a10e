"""Trains with the Trainer of transformers, by DistributedDataParallel and by zero at two stages. Saves the losses and
norms of each run, and those of a run that resumes from its checkpoint:
`torchrun zero_transformers.py BACKEND FOLDER`."""
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from outcome import groups_in_use, save
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from torch_tutti.zero.transformers import ZeroCallback

WORDS, LENGTH, STEPS, SAVED_AT = 64, 16, 50, 25
WAYS = {"DDP": None, "stage 2": {"stage": 2}, "stage 3": {"stage": 3, "ahead": True}}


def sentence(number):
    words = torch.randint(WORDS, (LENGTH,), generator=torch.Generator().manual_seed(number))
    return {"input_ids": words, "labels": words}


def trainer(folder, options):
    torch.manual_seed(7)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2))
    arguments = TrainingArguments(folder, use_cpu=True, max_steps=STEPS, per_device_train_batch_size=4, report_to=[],
                                  save_steps=SAVED_AT, eval_strategy="steps", eval_steps=SAVED_AT, logging_steps=1,
                                  gradient_accumulation_steps=2, disable_tqdm=True, seed=7, learning_rate=0.01,
                                  weight_decay=0.1, load_best_model_at_end=True)
    made = Trainer(model=model, args=arguments, train_dataset=[sentence(number) for number in range(128)],
                   eval_dataset=[sentence(number) for number in range(190, 201)])
    if options is not None:
        made.add_callback(ZeroCallback(made, **options))
    return made


def logged(run):
    """Returns the losses, norms and rates of each step, and the results of evaluations."""
    names = ("loss", "grad_norm", "learning_rate", "eval_loss")
    return [{name: entry[name] for name in names if name in entry} for entry in run.state.log_history
            if "train_loss" not in entry]


def main(backend, folder):
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    results = {}
    for way, options in WAYS.items():
        place = Path(folder) / way
        whole = trainer(place, options)
        whole.train()
        resumed = trainer(place / "resumed", options)
        resumed.train(resume_from_checkpoint=str(place / f"checkpoint-{SAVED_AT}"))
        results |= {way: logged(whole), f"{way} resumed": logged(resumed)}
        whole.save_model(place / "end")
        dist.barrier()
        model = GPT2LMHeadModel.from_pretrained(place / "end")
        results[f"{way} end"] = [p.detach().clone() for p in model.parameters()]
    resumed = trainer(Path(folder) / "other", None)
    resumed.train(resume_from_checkpoint=str(Path(folder) / "stage 2" / f"checkpoint-{SAVED_AT}"))
    results["DDP resumed from stage 2"] = logged(resumed)
    try:
        trainer(Path(folder) / "sharded", {"hosts": "sharded"})
    except NotImplementedError as error:
        results["sharded"] = str(error)
    save(folder, results | {"groups": groups_in_use()})
    dist.destroy_process_group()


main(*sys.argv[1:])
