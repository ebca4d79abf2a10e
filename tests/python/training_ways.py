"""Ways to train a model: DistributedDataParallel, and each way into zero. All have the same calls, so that the same
program runs in each of them (random_training.py)."""
import contextlib
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from torch_tutti import zero


class Plan:
    """The optimizers of a model: one or two classes, each with its parameter groups and settings. options: of the call
    that divides the model. own: a module that is no replica, or None. is_narrow: the model has 16 bits from the
    beginning. scales_in_steps: clips by the method of an optimizer scale gradients of 16 bits in its step, in
    float32."""

    def __init__(self, optimizers, options, own, is_narrow, scales_in_steps):
        self.optimizers, self.options, self.own, self.is_narrow = optimizers, options, own, is_narrow
        self.scales_in_steps = scales_in_steps

    def make(self, values=None):
        """Returns the optimizers. values: {parameter: what they step in its place}."""
        return [kind([{**group, "params": [p if values is None else values[p] for p in group["params"]]}
                      for group in groups], **settings) for kind, groups, settings in self.optimizers]

    @property
    def ignored(self):
        """The modules that zero must leave out."""
        return [] if self.own is None else [self.own]

    def parameters_of(self, number):
        """Returns the parameters of optimizer `number`."""
        return [p for group in self.optimizers[number][1] for p in group["params"]]


class Rounded:
    """An optimizer of parameters of 16 bits, as zero has it: steps float32 values that are kept beside them, and rounds
    them. values: {parameter: its value, which the optimizer has}. scale: a factor for the gradients of the next
    step, in float32."""

    def __init__(self, optimizer, values):
        self.optimizer, self.values, self.scale = optimizer, values, 1.0
        self.param_groups, self.state = optimizer.param_groups, optimizer.state

    @torch.no_grad()
    def step(self):
        for parameter, value in self.values.items():
            value.grad = None if parameter.grad is None else parameter.grad.float() * self.scale
        self.optimizer.step()
        for parameter, value in self.values.items():
            parameter.copy_(value)

    def zero_grad(self):
        self.scale = 1.0
        for parameter in self.values:
            parameter.grad = None

    def read(self, parameters):
        """Takes new values from parameters that the program has changed."""
        for parameter in parameters:
            self.values[parameter].data.copy_(parameter.detach())

    def add_param_group(self, group):
        self.values.update({p: p.detach().float().requires_grad_() for p in group["params"]})
        self.optimizer.add_param_group({**group, "params": [self.values[p] for p in group["params"]]})

    def forget(self, parameter):
        """Drops the state of a parameter."""
        if parameter in self.values:
            self.state.pop(self.values[parameter], None)
            self.read([parameter])

    def narrow(self):
        """Loses what 16 bits cannot hold, as a model that had them from the beginning does when it becomes an ordinary
        one."""
        self.read(self.values)
        for parameter, value in self.values.items():
            for entry in self.state[value].values() if value in self.state else ():
                if entry.dim():
                    entry.copy_(entry.to(parameter.dtype))

    def state_dict(self):
        found = self.optimizer.state_dict()
        for number, value in enumerate(value for group in self.param_groups for value in group["params"]):
            found["state"].setdefault(number, {})["master"] = value.detach().clone()
        return found

    def load_state_dict(self, state):
        masters = {number: entries.pop("master") for number, entries in state["state"].items()}
        state["state"] = {number: entries for number, entries in state["state"].items() if entries}
        self.optimizer.load_state_dict(state)
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state
        order = [value for group in self.param_groups for value in group["params"]]
        for number, master in masters.items():
            order[number].data.copy_(master)


def make_ddp(model):
    """Returns a DistributedDataParallel whose buffers are each rank's own, as with zero."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)          # the argument has another name in later versions
        return DistributedDataParallel(model, find_unused_parameters=True, broadcast_buffers=False)


def average(group, bucket):
    """A communication hook: averages gradients of float16 in float32 and rounds them once, as zero does for a power of
    two of ranks. DistributedDataParallel itself divides them first, which rounds small ones to multiples of 2^-24. For
    other numbers of ranks zero does so, too, because no other division is exact."""
    work = dist.all_reduce(bucket.buffer(), dist.ReduceOp.AVG, async_op=True)
    return work.get_future().then(lambda _: bucket.buffer())


def send_buffers(model, own):
    """Gives all ranks rank 0's buffers, as each division of a model does."""
    kept = set() if own is None else set(own.buffers())
    for buffer in model.buffers():
        if buffer not in kept:
            dist.broadcast(buffer, 0)


class Ddp:
    """DistributedDataParallel and optimizers of torch, which the other ways are compared with."""
    is_zero = False

    def __init__(self, model, plan, values=None):
        """values: {parameter: its float32 value} if the optimizers keep such values, else None."""
        self.model, self.plan = model, plan
        self.optimizers = plan.make(values)
        if values is not None:
            self.optimizers = [Rounded(optimizer, {p: values[p] for p in plan.parameters_of(number)})
                               for number, optimizer in enumerate(self.optimizers)]
        self.wrap()

    def wrap(self):
        """Makes DistributedDataParallel look again which parameters are trained."""
        ignored = [] if self.plan.own is None else [
            name for name, value in (*self.model.named_parameters(), *self.model.named_buffers())
            if any(value is each for each in (*self.plan.own.parameters(), *self.plan.own.buffers()))]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.model, ignored)
        send_buffers(self.model, self.plan.own)
        self.called = make_ddp(self.model)
        ranks = dist.get_world_size()
        if any(p.dtype == torch.float16 for p in self.model.parameters()) and ranks & (ranks - 1) == 0:
            self.called.register_comm_hook(None, average)

    def whole(self):
        return contextlib.nullcontext()

    def no_sync(self):
        return self.called.no_sync()

    @contextlib.contextmanager
    def edit(self, parameter):
        """In this block a parameter is changed."""
        yield True
        for optimizer in self.optimizers:
            if isinstance(optimizer, Rounded) and parameter in optimizer.values:
                optimizer.read([parameter])

    def finish_gradients(self):
        """Called before the program looks at averaged gradients."""

    def clip(self, parameters, most):
        """Clips the norm of all gradients in the way that needs no other memory."""
        if not isinstance(self.optimizers[0], Rounded) or not self.plan.scales_in_steps:
            return clip_grad_norm_(parameters, most)
        norm = torch.nn.utils.get_total_norm([p.grad.float() for p in parameters if p.grad is not None])
        for optimizer in self.optimizers:
            optimizer.scale = min(1.0, most / (norm.item() + 1e-6))
        return norm

    def divide_again(self):
        """Follows a change of requires_grad: parameters that are frozen lose their state."""
        for optimizer in self.optimizers:
            for parameter in self.model.parameters():
                if not parameter.requires_grad and isinstance(optimizer, Rounded):
                    optimizer.forget(parameter)
                elif not parameter.requires_grad:
                    optimizer.state.pop(parameter, None)
        self.wrap()

    def add_param_group(self, group):
        self.optimizers[0].add_param_group(group)
        self.wrap()

    def unshard(self, options):
        """Follows the end of a division, where parameters that are frozen lose their state."""
        self.divide_again()
        for optimizer in self.optimizers:
            if isinstance(optimizer, Rounded) and self.plan.is_narrow:
                optimizer.narrow()

    @contextlib.contextmanager
    def join(self, divides_by_all, last_rank):
        """The ranks end with the state of last_rank, which has the most batches: a rank that has none takes no steps in
        DistributedDataParallel."""
        with self.called.join(divide_by_initial_world_size=divides_by_all):
            yield
        for optimizer in self.optimizers:
            state = [optimizer.state_dict()]
            dist.broadcast_object_list(state, src=last_rank)
            optimizer.load_state_dict(state[0])


class Shard(Ddp):
    """zero.shard with an optimizer."""
    is_zero = True

    def __init__(self, model, plan):
        self.model = self.called = model
        self.plan = plan
        _, optimizer = zero.shard(model, plan.make()[0], ignored=plan.ignored, **plan.options)
        self.optimizers = [optimizer]

    def whole(self):
        return self.optimizers[0].whole()

    def no_sync(self):
        return self.optimizers[0].no_sync()

    @contextlib.contextmanager
    def edit(self, parameter):
        with self.optimizers[0].edit():
            yield dist.get_rank() == 0

    def clip(self, parameters, most):
        return self.optimizers[0].clip_grad_norm_(most)

    def divide_again(self):
        self.optimizers[0].divide_again()

    def add_param_group(self, group):
        self.optimizers[0].add_param_group(group)

    def join(self, divides_by_all, last_rank):
        return self.optimizers[0].join(divide_by_initial_world_size=divides_by_all)

    def unshard(self, options):
        """The model becomes an ordinary one, and is divided again by other options."""
        ordinary = self.optimizers[0].unshard()
        _, self.optimizers[0] = zero.shard(self.model, ordinary, ignored=self.plan.ignored, **options)


class WrapDdp(Shard):
    """zero.wrap_ddp."""

    def __init__(self, model, plan):
        self.model, self.plan = model, plan
        self.called = make_ddp(model)
        self.optimizers = [zero.wrap_ddp(self.called, plan.make()[0], **plan.options)]

    def no_sync(self):
        return self.called.no_sync()


class ShardSeveral(Ddp):
    """zero.shard_several."""
    is_zero = True

    def __init__(self, model, plan):
        self.model = self.called = model
        self.plan = plan
        _, self.optimizers = zero.shard_several(model, plan.make(), ignored=plan.ignored, **plan.options)

    def whole(self):
        return self._within("whole")

    def no_sync(self):
        return self._within("no_sync")

    @contextlib.contextmanager
    def _within(self, block):
        with contextlib.ExitStack() as stack:
            for optimizer in self.optimizers:
                stack.enter_context(getattr(optimizer, block)())
            yield

    @contextlib.contextmanager
    def edit(self, parameter):
        with self._within("edit"):
            yield dist.get_rank() == 0

    def clip(self, parameters, most):
        return zero.clip_grad_norm_(self.optimizers, most)


class ShardFirst(Ddp):
    """zero.shard without an optimizer, which is made afterwards."""
    is_zero = True

    def __init__(self, model, plan):
        self.plan = plan
        self.model = self.called = zero.shard(model, ignored=plan.ignored, **plan.options)
        self.optimizers = plan.make()

    def whole(self):
        return zero.whole(self.model)

    def no_sync(self):
        return zero.no_sync(self.model)

    @contextlib.contextmanager
    def edit(self, parameter):
        with zero.edit(self.model):
            yield dist.get_rank() == 0

    def clip(self, parameters, most):
        return clip_grad_norm_(parameters, most)


class Sharded(Ddp):
    """zero.sharded beside DistributedDataParallel; with average=True, beside nothing."""
    is_zero = True

    def __init__(self, model, plan):
        self.model, self.plan = model, plan
        self.averages = plan.options["average"]
        self.wrap()
        (kind, groups, settings), = plan.optimizers
        self.optimizers = [zero.sharded(groups, kind, average=self.averages, **settings)]

    def wrap(self):
        send_buffers(self.model, self.plan.own)
        self.called = self.model
        if not self.averages:
            super().wrap()

    def no_sync(self):
        return contextlib.nullcontext() if self.averages else self.called.no_sync()

    def finish_gradients(self):
        if self.averages:
            self.optimizers[0].average_gradients()

    def divide_again(self):
        pass


WAYS = {"shard": Shard, "wrap_ddp": WrapDdp, "several": ShardSeveral, "late": ShardFirst, "sharded": Sharded}
