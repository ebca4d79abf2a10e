"""Finds out by trial what an optimizer looks at: single elements, whole parameters, or several parameters together. A
trial steps clones of it on small tensors."""
from __future__ import annotations

import collections
import copy
import math
import random
from typing import Any, Callable, Iterable, NamedTuple, Sequence

import torch
from torch import Tensor

# The attributes in which torch's optimizers have the hooks of their steps.
HOOKS_OF_STEPS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
# How many steps a trial takes. A trial does not find effects that begin after them.
_STEPS = 6
# The longest dimensions of trial tensors with one, two, and more dimensions. Adafactors may treat dimensions shorter
# than 16 or 128 in another way. torchao's optimizers quantize only tensors of 4096 elements or more, in blocks of 256.
_LONGEST = {1: 4096, 2: 256}
_LONGEST_OF_MANY = 32
# Two results are equal if they differ by at most this much, relative to the largest change of a value. A trial runs in
# float32 only if the optimizer cannot step float64. An elementwise optimizer may round the last elements of a piece
# differently.
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4}
Options = dict[str, Any]
Group = dict[str, Any]


class Finding(NamedTuple):
    """The result of a trial. is_elementwise: the optimizer treats all elements in the same way, so it may step flat
    pieces; else it looks at whole parameters. clip: the name of the option by which it clips the norm of all gradients,
    or None."""
    is_elementwise: bool
    clip: str | None = None


class _Refusal(Exception):
    """The optimizer cannot be divided."""


class _Idle(_Refusal):
    """The optimizer does not change its parameters."""


class _Trial(NamedTuple):
    """Tensors that a clone of an optimizer steps. groups: options and the shapes of parameters of each group."""
    optimizer: torch.optim.Optimizer
    groups: list[tuple[Options, list[tuple[int, ...]]]]
    dtype: torch.dtype


# ---- clones ----
# the attributes that torch.amp.GradScaler sets while a fused optimizer steps
OF_SCALER = "grad_scale", "found_inf"


def optimizer_like(given: torch.optim.Optimizer, groups: list[Group]) -> torch.optim.Optimizer:
    """Returns an optimizer with the class and options of `given`, but with other parameter groups, no state, no hooks
    of steps and no GradScaler. Does not call the constructor."""
    result: torch.optim.Optimizer = object.__new__(type(given))
    vars(result).update({name: value for name, value in vars(given).items() if name not in ("step", *OF_SCALER)})
    vars(result).update({name: collections.OrderedDict() for name in HOOKS_OF_STEPS})
    result.param_groups, result.state = groups, collections.defaultdict(dict)
    result.defaults = dict(given.defaults)
    return result


def step_without_hooks(optimizer: torch.optim.Optimizer, kind: type[torch.optim.Optimizer] | None = None) -> None:
    """Takes a step of an optimizer inside another one, without torch's hooks for the steps of all optimizers: these run
    once, in the step of the outer one. kind: the class whose step it is; None: that of the optimizer."""
    step: Any = (kind or type(optimizer)).step
    (step.__wrapped__ if getattr(step, "hooked", False) else step)(optimizer)


def _independent_clone(given: torch.optim.Optimizer, groups: list[Group]) -> torch.optim.Optimizer:
    """Returns optimizer_like() with copies of the attributes of `given`, except objects that cannot be copied. Where an
    attribute has a parameter of `given`, the copy has an empty parameter."""
    clone = optimizer_like(given, groups)
    empty = {id(parameter): torch.nn.Parameter(torch.empty(0, device="cpu"))
             for group in given.param_groups for parameter in group["params"]}
    for name, value in vars(clone).items():
        if name not in ("param_groups", "state", *HOOKS_OF_STEPS):
            try:
                vars(clone)[name] = copy.deepcopy(value, dict(empty))
            except Exception:           # an object that cannot be copied, such as a lock
                continue
    return clone


def settings_of(group: Group) -> dict[str, Any]:
    """Returns what decides how an optimizer works: the options of a group but the learning rate, where each number is
    only zero or not zero."""
    return {name: value if isinstance(value, (bool, str, type(None))) else
            bool(value) if isinstance(value, (int, float)) else type(value).__name__
            for name, value in group.items() if name not in ("params", "lr")}


# ---- the trial ----
def examine(optimizer: torch.optim.Optimizer, groups: Sequence[Group], call: str, advice: str,
            shape_of: Callable[[Tensor], torch.Size] = lambda parameter: parameter.shape) -> Finding:
    """Returns what an optimizer looks at. It, its parameters and the random state stay as they are. groups: its groups.
    call, advice: the beginning and the end of error texts. shape_of: returns the shape of a parameter in the model.
    Raises NotImplementedError if the optimizer looks at several parameters together in another way than by a clip, or
    cannot be stepped in a trial."""
    refuse_known(optimizer, call)
    try:
        found: Finding = _in_trial(lambda: _examine(optimizer, groups, shape_of))
        return found
    except _Refusal as error:
        raise NotImplementedError(f"{call}: {type(optimizer).__name__} {error}; {advice}") from None


def refuse_idle(optimizer: torch.optim.Optimizer, call: str, advice: str) -> None:
    """Raises NotImplementedError if the steps of an optimizer change no parameter of its groups, for example because it
    wraps another optimizer. Accepts an optimizer that cannot be stepped in a trial. call, advice: as in examine()."""
    try:
        _in_trial(lambda: _first_run(optimizer, optimizer.param_groups, lambda parameter: parameter.shape))
    except _Idle as error:
        raise NotImplementedError(f"{call}: {type(optimizer).__name__} {error}; {advice}") from None
    except _Refusal:
        pass


def refuse_known(optimizer: torch.optim.Optimizer, call: str) -> None:
    """Raises NotImplementedError for optimizers of torch that neither zero nor a parameter server can step."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise NotImplementedError(f"{call}: LBFGS computes the loss several times in a step, and looks at all "
                                  "parameters together; here a step has one gradient")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise NotImplementedError(f"{call}: SparseAdam needs sparse gradients, but the ranks average dense ones; use "
                                  "torch.optim.Adam")


def _in_trial(run: Callable[[], Any]) -> Any:
    """Returns the result of run(). The random state stays as it is."""
    state = random.getstate()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return run()
    finally:
        random.setstate(state)


def _first_run(optimizer: torch.optim.Optimizer, groups: Sequence[Group],
               shape_of: Callable[[Tensor], torch.Size]) -> tuple[_Trial, list[Tensor]]:
    """Returns a trial and the change of each tensor. Raises _Refusal, whose text begins with a verb."""
    for dtype in _TOLERANCES:
        trial = _Trial(optimizer, _reduce_groups(groups, shape_of), dtype)
        try:
            whole = _run(trial)
            break
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
    else:                               # in neither type
        raise _Refusal(f"raises {reason}, in a step on small tensors without a closure")
    if not any(change.any() for change in whole):
        raise _Idle(f"does not change the parameters of its param_groups in {_STEPS} steps on small tensors; perhaps "
                    "it keeps them elsewhere, or wraps another optimizer")
    return trial, whole


def _examine(optimizer: torch.optim.Optimizer, groups: Sequence[Group],
             shape_of: Callable[[Tensor], torch.Size]) -> Finding:
    """Does what examine() does, in _in_trial()."""
    trial, whole = _first_run(optimizer, groups, shape_of)
    clip = _find_clip(trial, whole) if _is_coupled(trial, whole, {}) else None
    return Finding(_is_elementwise(trial, {clip: None} if clip else {}), clip)


def _reduce_groups(groups: Sequence[Group], shape_of: Callable[[Tensor], torch.Size],
                   ) -> list[tuple[Options, list[tuple[int, ...]]]]:
    """Returns options and shapes for a trial: one group for equal settings, and one small tensor for large tensors of
    like shapes. There are at least two tensors, and two groups if there are several."""
    found: list[tuple[dict[str, Any], Options, dict[tuple[int, ...], None]]] = []
    for group in groups:
        settings, options = settings_of(group), {name: value for name, value in group.items() if name != "params"}
        shapes = dict.fromkeys(tuple(min(size, _LONGEST.get(len(shape), _LONGEST_OF_MANY)) for size in shape)
                               for shape in map(shape_of, group["params"]) if shape.numel())
        same = next((known for other, _, known in found if other == settings), None)
        if same is None:
            found.append((settings, options, shapes))
        else:
            same.update(shapes)
    result = [(options, list(shapes)) for _, options, shapes in found if shapes]
    if len(result) == 1 and len(groups) > 1:
        result.append(result[0])
    elif sum(len(shapes) for _, shapes in result) == 1:
        result[0][1].append(result[0][1][0])
    return result


def _trial_options(options: Options, changes: Options) -> Options:
    """Returns a copy of a group's options for a trial, with the given changes and a learning rate that is not zero."""
    copied = {**copy.deepcopy(options), **{name: value for name, value in changes.items() if name in options}}
    if copied.get("lr") is not None:
        copied["lr"] = torch.full_like(copied["lr"], 0.01) if torch.is_tensor(copied["lr"]) else 0.01
    return copied


def _run(trial: _Trial, changes: Options = {}, factor: float = 1.0, limit: float = math.inf, in_pieces: bool = False,
         ) -> list[Tensor]:
    """Takes the steps of a trial, and returns the change of each tensor, flat. changes: options with other values.
    factor: of the gradients of the first tensor. limit: the largest norm of all gradients; larger ones are clipped.
    in_pieces: steps two flat pieces of each tensor."""
    generator = torch.Generator().manual_seed(7)
    torch.manual_seed(7)

    def draw(shape: Sequence[int]) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(trial.dtype)
    first_values = [draw(shape) for _, shapes in trial.groups for shape in shapes]
    # an uneven cut, which is not between rows
    pieces = [list(value.reshape(-1).clone().tensor_split([value.numel() * 3 // 7])) if in_pieces else [value.clone()]
              for value in first_values]
    parameters = [[torch.nn.Parameter(piece) for piece in each if piece.numel()] for each in pieces]
    remaining = iter(parameters)
    optimizer = _independent_clone(trial.optimizer, [
        {**_trial_options(options, changes), "params": [p for _ in shapes for p in next(remaining)]}
        for options, shapes in trial.groups])
    optimizer.defaults.update({name: value for name, value in changes.items() if name in optimizer.defaults})
    for step in range(_STEPS):
        gradients = [draw(value.shape) * (1 + step % 3) for value in first_values]
        if step % 2:                    # as those of weights that a norm follows; AdamP looks for them
            gradients = [_orthogonal(gradient, torch.cat([p.detach().reshape(-1) for p in each]).view(gradient.shape))
                         for gradient, each in zip(gradients, parameters)]
        gradients[0] *= factor
        scale = 1 / max(1.0, math.hypot(*(float(gradient.norm()) for gradient in gradients)) / limit)
        for gradient, each in zip(gradients, parameters):
            for p, part in zip(each, (gradient * scale).reshape(-1).split([p.numel() for p in each])):
                p.grad = part.clone().view(p.shape)
        step_without_hooks(optimizer)
    return [torch.cat([p.detach().reshape(-1) for p in each]) - value.reshape(-1)
            for value, each in zip(first_values, parameters)]


def _orthogonal(gradient: Tensor, value: Tensor) -> Tensor:
    """Returns the part of a gradient that is orthogonal to the value, in each row of a matrix."""
    rows, values = (tensor.reshape(len(tensor) if tensor.dim() > 1 else 1, -1) for tensor in (gradient, value))
    along = (rows * values).sum(1, keepdim=True) / (values * values).sum(1, keepdim=True)
    return (rows - along * values).view(gradient.shape)


def _are_equal(trial: _Trial, results: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    """True if two lists of changes are equal but for rounding. A NaN makes them unequal."""
    return all(bool((one - other).abs().max() <= _TOLERANCES[trial.dtype] * one.abs().max())
               for one, other in zip(results, others))


def _is_elementwise(trial: _Trial, changes: Options) -> bool:
    """True if pieces of tensors are stepped as the tensors are, with any weight decay."""
    decay = {name: value or 0.01 for options, _ in trial.groups for name, value in options.items()
             if name == "weight_decay" and isinstance(value, (int, float))}
    try:
        whole = _run(trial, {**changes, **decay})
        return _are_equal(trial, whole, _run(trial, {**changes, **decay}, in_pieces=True))
    except Exception:                   # it takes tensors of some shapes only
        return False


def _is_coupled(trial: _Trial, whole: list[Tensor], changes: Options) -> bool:
    """True if larger gradients of the first tensor change another tensor. whole: the result without them."""
    return not _are_equal(trial, whole[1:], _run(trial, changes, factor=1e4)[1:])


def _find_clip(trial: _Trial, whole: list[Tensor]) -> str:
    """Returns the name of the option by which an optimizer that looks at several parameters clips the norm of all
    gradients. Raises _Refusal if it looks at them in another way. whole: the result of a trial."""
    options = {**trial.optimizer.defaults, **{key: value for options, _ in trial.groups
                                              for key, value in options.items()}}
    coupling = None
    for option, value in options.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value or option == "lr":
            continue
        try:
            without = _run(trial, {option: None})
            if _is_coupled(trial, without, {option: None}):
                continue
        except Exception:               # the option must be a number
            continue
        coupling = option
        if (all(other.get(option, value) == value for other, _ in trial.groups)
                and _are_equal(trial, whole, _run(trial, {option: None}, limit=float(value)))):
            return option
    together = "looks at several parameters together, but a rank has only some of them"
    if coupling is None:
        raise _Refusal(together)
    raise _Refusal(f"{together}, by its option {coupling}={options[coupling]!r}; set {coupling}=None")
