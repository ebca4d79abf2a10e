"""A model that is trained in one of the ways of training_ways.py, and the events that its steps may have."""
import contextlib
import copy
import io

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm
from training import flat
from training_ways import WAYS, Ddp, Plan
from zero_training import OPTIMIZERS, Images, Network, Picky, Words, ids_of


class Normed(nn.Module):
    """Convolutions with BatchNorm, whose buffers are each rank's own. dtype: of the other parameters."""
    dtype = torch.float32

    def __init__(self):
        super().__init__()
        torch.manual_seed(8)
        self.layers = nn.Sequential(nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
                                    nn.Conv2d(6, 8, 3, stride=2), nn.GELU(), nn.Flatten(), nn.Linear(8 * 2 * 2, 9))

    def forward(self, ids):
        return self.layers((ids.float().view(-1, 1, 8, 8) / 48).to(self.dtype))


class WithOwn(nn.Module):
    """A model, and a layer with values and a buffer that differ between ranks."""

    def __init__(self, inner, rank):
        super().__init__()
        self.inner, self.own = inner, nn.Module()
        self.own.gain = nn.Parameter(torch.tensor([1 + rank / 8]))
        self.own.register_buffer("shift", torch.tensor([rank / 4]))

    def forward(self, ids):
        return self.inner(ids) * self.own.gain + self.own.shift


MODELS = {"network": lambda: Network(16), "checkpointed": lambda: Network(16, checkpointed=True), "picky": Picky,
          "words": Words, "images": Images, "normed": Normed}
MORE_OPTIMIZERS = {**OPTIMIZERS, "adagrad": (torch.optim.Adagrad, {"lr": 0.01}),
                   "nesterov": (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9, "nesterov": True}),
                   "amsgrad": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
                   "fused": (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
                   "adafactor": (torch.optim.Adafactor, {"lr": 0.01}),
                   "muon": (torch.optim.Muon, {"lr": 0.02})}
TYPES = {"float64": torch.float64, "bfloat16": torch.bfloat16}
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Events of a step, in the order in which a step has them.
BEFORE = ("freeze", "divide again", "add group", "unshard", "hook", "late gradient", "rate", "evaluate",
          "evaluate alone", "save", "load", "load other", "edit", "copy")
WITHIN = ("no_sync", "passes", "input gradient", "failing forward", "failing backward", "overflow")
AFTER = ("clip", "clip by method", "clip values", "scale", "norm", "drop")


def loss_of(output):
    return (output if output.dtype == torch.float64 else output.float()).square().mean()


def make_model(program, rank, converts):
    """Returns the model of a program, and the float32 values of its parameters before they were converted. converts:
    does what precision= does."""
    model = MODELS[program["model"]]()
    if program["channels_last"]:
        model.to(memory_format=torch.channels_last)
    kind = program["type"]
    model.dtype = TYPES.get(kind, PRECISIONS.get(kind, torch.float32))
    if program["own"]:
        model = WithOwn(model, rank)
    if kind in TYPES:
        model.to(TYPES[kind])
    values = {p: p.detach().clone().float().requires_grad_() for p in model.parameters()}
    for module in model.modules() if converts and kind in PRECISIONS else ():
        for parameter in module.parameters(recurse=False) if not isinstance(module, nn.BatchNorm2d) else ():
            parameter.data = parameter.data.to(PRECISIONS[kind])
    return model, values


def has_float32_values(program):
    """Returns whether zero keeps float32 values beside the parameters of a program."""
    beside = program["way"] != "sharded" and (program["way"], program["options"]["stage"]) != ("late", 0)
    return program["type"] in PRECISIONS or (program["type"] == "bfloat16" and beside)


def divided_in_groups(name, parameters, groups):
    """Returns the class, the groups and the settings of an optimizer."""
    kind, settings = MORE_OPTIMIZERS[name]
    different = [{}, {"lr": settings["lr"] / 4, "weight_decay": 0.0}, {"lr": settings["lr"] / 2}]
    return kind, [{"params": parameters[number::groups], **different[number]} for number in range(groups)], settings


class Side:
    """A model that is trained in one way. Both sides of a comparison do the same things by the same calls."""

    def __init__(self, world, program, is_zero):
        self.world, self.program = world, program
        self.model, values = make_model(program, world.rank, not is_zero)
        own = self.model.own if program["own"] else None
        # the replicas; those of them that the optimizer gets only later
        self.parameters = [p for p in self.model.parameters() if own is None or p is not own.gain]
        self.late = [self.freezable(number) for number in program["late parameters"]]
        for number in (*program["frozen"], *program["late parameters"]):
            self.freezable(number).requires_grad_(False)
        given = [p for p in self.model.parameters() if not any(p is each for each in self.late)]
        names = program["optimizers"]
        parts = [given] if len(names) == 1 else [[p for p in given if (p.dim() == 2) is is_matrix]
                                                 for is_matrix in (True, False)]
        plan = Plan([divided_in_groups(name, part, program["groups"]) for name, part in zip(names, parts)],
                    program["options"], own, program["type"] == "bfloat16", program["way"] != "late")
        self.way = WAYS[program["way"]](self.model, plan) if is_zero else Ddp(
            self.model, plan, values if has_float32_values(program) else None)
        self.is_sharded = program["options"].get("hosts") == "sharded"
        self.division, self.saved = 0, {}               # {(number of the division, step): a checkpoint}
        self.other = None               # the other Side
        self.begin_division()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10, growth_interval=2,
                                           enabled=program["type"] == "autocast")

    def begin_division(self):
        """Follows a change of the trained parameters. Checkpoints from before may have states of other parameters, so
        later steps do not load them."""
        self.division += 1
        self.divided = [p for p in self.parameters if p.requires_grad]

    def chosen(self, detail):
        return self.parameters[detail % len(self.parameters)]

    def freezable(self, detail):
        """Returns any parameter but the last one, so that each program trains one that all its batches use."""
        return self.parameters[detail % (len(self.parameters) - 1)]

    def ids(self, step, turn=0):
        return ids_of(step, self.world.rank, turn)

    def loss(self, model, ids):
        with torch.autocast("cpu", torch.float16, enabled=self.scaler.is_enabled()):
            return loss_of(model(ids))

    # ---- events before the passes ----
    def freeze(self, detail, step):
        chosen = self.freezable(detail)
        if any(chosen is each for each in self.divided):
            chosen.requires_grad_(not chosen.requires_grad)

    def divide_again(self, detail, step):
        """A parameter of the optimizer is frozen or trained from now on."""
        chosen = self.freezable(detail)
        if not any(chosen is each for each in self.late):
            chosen.requires_grad_(not chosen.requires_grad)
        self.way.divide_again()
        self.begin_division()

    def add_group(self, detail, step):
        """The optimizer gets a parameter that it did not have."""
        if self.late:
            added = self.late.pop(detail % len(self.late))
            added.requires_grad_(True)
            self.way.add_param_group({"params": [added], "lr": 0.004})
            self.begin_division()

    def unshard(self, detail, step):
        self.way.unshard(self.program["later options"])
        self.is_sharded = self.program["later options"].get("hosts") == "sharded"
        self.begin_division()

    def hook(self, detail, step):
        factor = 1 + detail % 3
        if self.chosen(detail).requires_grad:
            self.hooks.append(self.chosen(detail).register_hook(lambda gradient: gradient * factor))

    def late_gradient(self, detail, step):
        """A hook that sees complete gradients. In later passes of a step zero shows it the gradient of the pass."""
        if self.chosen(detail).requires_grad:
            def see(parameter):
                if self.passes == 1:
                    self.seen.append(parameter.grad.double().square().sum().item())
            self.hooks.append(self.chosen(detail).register_post_accumulate_grad_hook(see))

    def rate(self, detail, step):
        for optimizer in self.way.optimizers:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5 + detail % 4 / 2

    def evaluate(self, detail, step):
        self.way.called.eval()
        with torch.no_grad():
            self.seen.append(self.loss(self.model, self.ids(step, 7)).item())
        self.way.called.train()

    def evaluate_alone(self, detail, step):
        if self.world.rank == 0 and not self.is_sharded:
            self.evaluate(detail, step)

    def optimizer_state(self, optimizer, detail):
        """The whole state, by the call that returns it on all ranks or by the one that returns it on rank 0."""
        if detail % 2 and not self.program["own"] and hasattr(optimizer, "full_state_dict"):
            state = [optimizer.full_state_dict()]
            dist.broadcast_object_list(state)
            return state[0]
        return optimizer.state_dict()

    def save(self, detail, step):
        state = {"model": self.model.state_dict(),
                 "optimizers": [self.optimizer_state(each, detail) for each in self.way.optimizers]}
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        self.saved[self.division, step] = torch.load(file)

    def load(self, detail, step, source=None):
        saved = [state for (division, saved_at), state in (source or self).saved.items()
                 if division == self.division and saved_at < step]
        if saved:
            self.model.load_state_dict(saved[-1]["model"])
            for optimizer, state in zip(self.way.optimizers, saved[-1]["optimizers"]):
                optimizer.load_state_dict(copy.deepcopy(state))

    def load_other(self, detail, step):
        """Goes on from the checkpoint of the other side."""
        self.load(detail, step, self.other)

    def edit(self, detail, step):
        with self.way.edit(self.chosen(detail)) as may_change, torch.no_grad():
            if may_change:
                self.chosen(detail).mul_(0.5)

    def copy(self, detail, step):
        with self.way.whole():
            other = copy.deepcopy(self.model)
        with torch.no_grad():
            self.seen.append(self.loss(other, self.ids(step, 9)).item())

    # ---- the passes ----
    def run_passes(self, events, step):
        turns = 1 + ("no_sync" in events or "passes" in events) + events.get("passes", 0) % 2
        self.passes = turns
        for turn in range(turns):
            quiet = "no_sync" in events and turn + 1 < turns
            with self.way.no_sync() if quiet else contextlib.nullcontext():
                loss = self.loss(self.way.called, self.ids(step, turn))
                self.seen.append(loss.item())
                if "overflow" in events and events["overflow"] % self.world.size == self.world.rank:
                    loss = loss * float("inf")
                self.scaler.scale(loss).backward()

    def fail_forward(self, step):
        """An exception ends a forward in the middle, on all ranks, and the program goes on."""
        modules = [module for module in self.model.modules() if not list(module.children())]
        hook = modules[len(modules) // 2].register_forward_pre_hook(lambda *_: 1 / 0)
        with contextlib.suppress(ZeroDivisionError):
            self.model(self.ids(step, 5))
        hook.remove()

    def fail_backward(self, detail, step):
        """An exception ends a backward pass in the middle, on all ranks, and the program drops the gradients.
        DistributedDataParallel cannot go on after it, so it only computes the loss."""
        # Picky's ranks use different parameters
        failing = self.parameters[-1] if self.program["model"] == "picky" else self.chosen(detail)
        if failing.requires_grad:
            loss = self.loss(self.model, self.ids(step, 4))
            if self.way.is_zero:
                hook = failing.register_hook(lambda _: 1 / 0)
                with contextlib.suppress(ZeroDivisionError):
                    loss.backward()
                hook.remove()
                self.zero_grad()

    def take_input_gradient(self, step):
        """The gradient of an activation; the optimizer has no part in it."""
        output = self.model(self.ids(step, 6))
        self.seen.append(torch.autograd.grad(loss_of(output), output)[0].double().square().sum().item())

    def train_unevenly(self, detail, step):
        """A block in which the ranks have different numbers of batches."""
        batches = [1 + detail // 3 ** rank % 3 for rank in range(self.world.size)]
        self.passes = 1
        with self.way.join(detail % 2 == 0, batches.index(max(batches))):
            for turn in range(batches[self.world.rank]):
                loss = self.loss(self.way.called, self.ids(step, turn))
                self.seen.append(loss.item())
                loss.backward()
                if detail % 4 < 2:
                    self.clip_by_method(detail, step)
                self.take_step()

    # ---- events between the passes and the step ----
    def clip(self, detail, step):
        kind = (2.0, 1.0, float("inf"))[detail % 3]
        self.seen.append(clip_grad_norm_(self.parameters, 0.01, kind).item())

    def clip_by_method(self, detail, step):
        self.seen.append(self.way.clip(self.parameters, 0.02).item())

    def clip_values(self, detail, step):
        clip_grad_value_(self.parameters, 1e-3)

    def scale(self, detail, step):
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(2)

    def norm(self, detail, step):
        found = [p.grad for p in self.parameters if p.grad is not None]
        self.seen.append(get_total_norm(found).item() if found else 0.0)

    # ---- a step ----
    def take_step(self):
        for optimizer in self.way.optimizers:
            self.scaler.step(optimizer) if self.scaler.is_enabled() else optimizer.step()
        self.zero_grad()

    def zero_grad(self):
        for optimizer in self.way.optimizers:
            optimizer.zero_grad()

    def end_step(self, events, step):
        """Takes the step, or drops the gradients."""
        after = [name for name in AFTER[:-1] if name in events]
        if after or self.scaler.is_enabled():
            self.way.finish_gradients()
        if after and self.scaler.is_enabled():
            for optimizer in self.way.optimizers:
                self.scaler.unscale_(optimizer)
        for name in after:
            getattr(self, name.replace(" ", "_"))(events[name], step)
        if "drop" in events:
            self.zero_grad()
        else:
            self.take_step()
        if self.scaler.is_enabled() and (after or "drop" not in events):
            self.scaler.update()

    def run_step(self, events, step):
        """Runs a step with its events. Returns the parameters afterwards, those that are replicas first, and losses and
        norms of the step."""
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
        if "uneven" in events:
            self.train_unevenly(events["uneven"], step)
        else:
            self.run_passes(events, step)
            self.end_step(events, step)
        for hook in self.hooks:
            hook.remove()
        with self.way.whole():
            return flat(self.parameters), flat(self.model.parameters()), self.seen

    def values_in(self, name):
        """Returns what the optimizers' states have under a name, {(optimizer, number of a parameter): value}.
        Collective."""
        return {(index, number): state[name] for index, optimizer in enumerate(self.way.optimizers)
                for number, state in optimizer.state_dict()["state"].items() if name in state}
