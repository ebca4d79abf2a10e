"""Draws random training programs: a model, an optimizer, options of zero.shard, and events like hooks, clipping,
freezing, accumulation, evaluation, checkpoints and exceptions. Each program runs with DistributedDataParallel and with
zero beside it, and both must have the same losses, norms and parameters after each step.

    python tests/python/random_training.py --programs 10000 --ranks 2 --first-seed 1
"""
import argparse
import contextlib
import copy
import io
import random
import tempfile

import torch
from ranks import Ranks
from torch.nn.parallel import DistributedDataParallel
from training import same_on_all_ranks
from zero_training import ADAMW, OPTIMIZERS, Images, Network, Picky, Words, ids_of, loss_of, values

from torch_tutti import zero

MODELS = {"network": lambda: Network(16), "checkpointed": lambda: Network(16, checkpointed=True), "picky": Picky,
          "words": Words, "images": Images}
MORE_OPTIMIZERS = {**OPTIMIZERS, "adagrad": (torch.optim.Adagrad, {"lr": 0.01}),
                   "nesterov": (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9, "nesterov": True}),
                   "amsgrad": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
                   "two groups": ADAMW}
# Events of a step, in the order in which a step has them.
BEFORE = ("freeze", "hook", "late gradient", "rate", "evaluate", "evaluate alone", "save", "load", "edit", "copy")
WITHIN = ("no_sync", "passes", "input gradient", "failing forward", "failing backward")
AFTER = ("clip", "clip by method", "clip values", "scale", "norm", "drop")


# ---- drawing ----
def draw_step(draw):
    """Returns the events of a step, {name: number that selects its details}."""
    events = [*draw.sample(BEFORE, draw.choice((0, 0, 1, 1, 2))), *draw.sample(WITHIN, draw.choice((0, 0, 0, 1))),
              *draw.sample(AFTER, draw.choice((0, 0, 1, 1, 2)))]
    return {name: draw.randrange(1000) for name in events}


def draw_program(seed):
    """Returns a program as plain data."""
    draw = random.Random(seed)
    stage = draw.choice((0, 1, 2, 3, 3, 3))
    options = {"stage": stage}
    if stage == 3 and draw.random() < 0.6:
        options["hosts"] = draw.choice(("shared", "sharded", "sharded"))
    if draw.random() < 0.3:
        options["ahead"] = True
    if draw.random() < 0.3:
        options["buffers"] = draw.choice((1, 2, 5))
    if options.get("hosts") == "sharded" and draw.random() < 0.5:
        options |= {"prefetch": draw.choice((0, 1, 3)), "reshard": draw.random() < 0.5}
    # ranks that use different modules of a sharded model get an error, and Picky's do
    models = [name for name in MODELS if name != "picky" or options.get("hosts") != "sharded"]
    return {"model": draw.choice(models), "optimizer": draw.choice(list(MORE_OPTIMIZERS)), "options": options,
            "steps": [draw_step(draw) for _ in range(draw.randint(2, 5))]}


# ---- one side: DistributedDataParallel, or zero ----
class Side:
    """A model that is trained in one of the two ways. Both sides do the same things by the same calls, except where
    zero documents another call."""

    def __init__(self, world, program, is_zero):
        self.world, self.is_zero = world, is_zero
        model = MODELS[program["model"]]()
        kind, settings = MORE_OPTIMIZERS[program["optimizer"]]
        parameters = list(model.parameters())
        given = parameters
        if program["optimizer"] == "two groups":
            given = [{"params": parameters[::2]}, {"params": parameters[1::2], "lr": 0.002, "weight_decay": 0.0}]
        optimizer = kind(given, **settings)
        if is_zero:
            self.called = self.model = model
            _, self.optimizer = zero.shard(model, optimizer, **program["options"])
        else:
            self.called = DistributedDataParallel(model, find_unused_parameters=True)
            self.model, self.optimizer = model, optimizer
        self.is_sharded = program["options"].get("hosts") == "sharded"
        self.parameters, self.saved = parameters, None

    def whole(self):
        return self.optimizer.whole() if self.is_zero else contextlib.nullcontext()

    def no_sync(self):
        return self.optimizer.no_sync() if self.is_zero else self.called.no_sync()

    def chosen(self, detail):
        return self.parameters[detail % len(self.parameters)]

    def ids(self, step, turn=0):
        return ids_of(step, self.world.rank, turn)

    # ---- events before the passes ----
    def freeze(self, detail, step):
        chosen = self.chosen(detail)
        chosen.requires_grad_(not chosen.requires_grad)

    def hook(self, detail, step):
        factor = 1 + detail % 3
        if self.chosen(detail).requires_grad:
            self.hooks.append(self.chosen(detail).register_hook(lambda gradient: gradient * factor))

    def late_gradient(self, detail, step):
        """A hook that sees complete gradients. In later passes of a step zero shows it the gradient of the pass."""
        if self.chosen(detail).requires_grad:
            def see(parameter):
                if self.passes == 1:
                    self.seen.append(parameter.grad.square().sum().item())
            self.hooks.append(self.chosen(detail).register_post_accumulate_grad_hook(see))

    def rate(self, detail, step):
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5 + detail % 4 / 2

    def evaluate(self, detail, step):
        self.called.eval()
        with torch.no_grad():
            self.seen.append(loss_of(self.model(self.ids(step, 7))).item())
        self.called.train()

    def evaluate_alone(self, detail, step):
        if self.world.rank == 0 and not self.is_sharded:
            self.evaluate(detail, step)

    def save(self, detail, step):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        self.saved = torch.load(file)

    def load(self, detail, step):
        if self.saved is not None:
            self.model.load_state_dict(self.saved["model"])
            self.optimizer.load_state_dict(copy.deepcopy(self.saved["optimizer"]))

    def edit(self, detail, step):
        with self.optimizer.edit() if self.is_zero else contextlib.nullcontext(), torch.no_grad():
            if self.world.rank == 0 or not self.is_zero:
                self.chosen(detail).mul_(0.5)

    def copy(self, detail, step):
        with self.whole():
            other = copy.deepcopy(self.model)
        with torch.no_grad():
            self.seen.append(loss_of(other(self.ids(step, 9))).item())

    # ---- the passes ----
    def run_passes(self, events, step):
        turns = 1 + ("no_sync" in events or "passes" in events) + events.get("passes", 0) % 2
        self.passes = turns
        for turn in range(turns):
            quiet = "no_sync" in events and turn + 1 < turns
            with self.no_sync() if quiet else contextlib.nullcontext():
                loss = loss_of(self.called(self.ids(step, turn)))
                self.seen.append(loss.item())
                loss.backward()

    def fail_forward(self, step):
        """An exception ends a forward in the middle, on all ranks, and the program goes on."""
        modules = [module for module in self.model.modules() if not list(module.children())]
        hook = modules[len(modules) // 2].register_forward_pre_hook(lambda *_: 1 / 0)
        with contextlib.suppress(ZeroDivisionError):
            self.model(self.ids(step, 5))
        hook.remove()

    def fail_backward(self, detail, step):
        """An exception ends a backward pass in the middle, on all ranks, and the program drops the gradients.
        DistributedDataParallel cannot go on after it, so it does not take part."""
        if self.is_zero and self.chosen(detail).requires_grad:
            hook = self.chosen(detail).register_hook(lambda _: 1 / 0)
            with contextlib.suppress(ZeroDivisionError):
                loss_of(self.model(self.ids(step, 4))).backward()
            hook.remove()
            self.optimizer.zero_grad()

    def take_input_gradient(self, step):
        """The gradient of an activation; the optimizer has no part in it."""
        output = self.model(self.ids(step, 6))
        self.seen.append(torch.autograd.grad(loss_of(output), output)[0].square().sum().item())

    # ---- events between the passes and the step ----
    def clip(self, detail, step):
        kind = (2.0, 1.0, float("inf"))[detail % 3]
        self.seen.append(torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.01, kind).item())

    def clip_by_method(self, detail, step):
        clip = self.optimizer.clip_grad_norm_ if self.is_zero else lambda most: torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), most)
        self.seen.append(clip(0.02).item())

    def clip_values(self, detail, step):
        torch.nn.utils.clip_grad_value_(self.model.parameters(), 1e-3)

    def scale(self, detail, step):
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(2)

    def norm(self, detail, step):
        found = [p.grad for p in self.parameters if p.grad is not None]
        self.seen.append(torch.nn.utils.get_total_norm(found).item() if found else 0.0)

    def take_step(self, events, step):
        """Runs a step with its events; without the step itself if the gradients are dropped."""
        self.hooks, self.seen, self.passes = [], [], 0
        for name in BEFORE:
            if name in events:
                getattr(self, name.replace(" ", "_"))(events[name], step)
        if "failing forward" in events:
            self.fail_forward(step)
        if "failing backward" in events:
            self.fail_backward(events["failing backward"], step)
        if "input gradient" in events:
            self.take_input_gradient(step)
        self.run_passes(events, step)
        for name in AFTER[:-1]:
            if name in events:
                getattr(self, name.replace(" ", "_"))(events[name], step)
        if "drop" not in events:
            self.optimizer.step()
        self.optimizer.zero_grad()
        for hook in self.hooks:
            hook.remove()
        with self.whole():
            return values(self.model), self.seen


# ---- comparing ----
def run_program(world, program):
    """Runs a program in both ways. Raises AssertionError if they differ."""
    sides = [Side(world, program, is_zero) for is_zero in (False, True)]
    is_exact = True
    for step, events in enumerate(program["steps"]):
        theirs, seen = sides[0].take_step(events, step)
        mine, mine_seen = sides[1].take_step(events, step)
        # zero scales gradients that are clipped in another order, and adds later passes apart
        is_exact = is_exact and "passes" not in events and not any("clip" in name for name in events)
        close = {"rtol": 0, "atol": 0} if is_exact else {"rtol": 1e-4, "atol": 2e-5}
        torch.testing.assert_close(mine, theirs, **close, msg=lambda text: f"step {step}: parameters: {text}")
        torch.testing.assert_close(torch.tensor(mine_seen), torch.tensor(seen), rtol=1e-4, atol=1e-6,
                                   msg=lambda text: f"step {step}: losses and norms: {text}")
        same_on_all_ranks(world, mine)


def run_seeds(world, seeds):
    """Runs the programs of these seeds. The error of a failing one has the program."""
    for seed in seeds:
        program = draw_program(seed)
        try:
            run_program(world, program)
        except BaseException as problem:
            raise AssertionError(f"seed {seed}: {program}") from problem


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=1)
    arguments = parser.parse_args()
    failed, ranks = [], None
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.programs):
            # the rank that waits for one that failed gives up before Ranks does
            ranks = ranks or Ranks(arguments.ranks, folder, timeout_s=15)
            outcomes = ranks.outcomes(run_seeds, [seed])
            if any(outcome.failed for outcome in outcomes):
                failed.append(seed)
                for rank, outcome in enumerate(outcomes):
                    print(f"rank {rank}: {outcome.trace or outcome.died}", flush=True)
                ranks.close()
                ranks = None
        if ranks is not None:
            ranks.close()
    print(f"{arguments.programs} programs, {len(failed)} failed: {failed[:50]}")


if __name__ == "__main__":
    main()
