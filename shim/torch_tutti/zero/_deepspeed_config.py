"""Reads a DeepSpeed configuration: uses the settings that zero has, leaves out those that only tune DeepSpeed, and
refuses any other by its name."""
from __future__ import annotations

import json
import os
from typing import Any, Iterable, NamedTuple

import torch

# Settings of DeepSpeed's speed, memory, text output and checks, which do not change the results.
_TUNING = {"steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state", "log_level", "comms_logger",
           "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "aio", "disable_allgather"}
_TUNING_OF_ZERO = {"contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "use_multi_rank_bucket_allreduce",
                   "allgather_partitions", "allgather_bucket_size", "overlap_comm", "sub_group_size",
                   "round_robin_gradients", "ignore_unused_parameters", "elastic_checkpoint", "compute_grad_norm",
                   "load_from_fp32_weights", "memory_efficient_linear", "log_trace_cache_warnings",
                   "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
                   "stage3_model_persistence_threshold", "stage3_max_live_parameters", "stage3_max_reuse_distance",
                   "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save",
                   "stage3_module_granularity_threshold", "stage3_use_all_reduce_for_fetch_params",
                   "stage3_allgather_sequential"}
# Values of other settings that change nothing.
_NEUTRAL = {"gradient_predivide_factor": 1, "gradient_allreduce_op": "mean", "zero_hpz_partition_size": 1}


class Configuration(NamedTuple):
    """The settings of a DeepSpeed configuration that zero uses."""
    stage: int
    micro_batch: int | None             # samples of a rank in a backward pass
    accumulation: int                   # backward passes in a step
    clipping: float                     # 0: none
    precision: str | None               # as in zero.shard
    reduce_dtype: torch.dtype | None    # as in zero.shard
    optimizer: dict[str, Any]           # "type" and "params"; {}: the program gives an optimizer
    scheduler: dict[str, Any]           # "type" and "params"; {}: the program may give a scheduler


def read_config(config: str | os.PathLike[str] | dict[str, Any], ranks: int) -> Configuration:
    """Reads a DeepSpeed configuration, a dict or the path of a JSON file, for this number of ranks. Raises
    NotImplementedError for a setting that zero cannot serve, and ValueError for an invalid one."""
    if not isinstance(config, dict):
        with open(config, encoding="utf-8") as file:
            config = json.load(file)
    given = dict(config)
    _refuse_auto(given)
    zero = dict(given.pop("zero_optimization", {}))
    stage = zero.pop("stage", 0)
    _refuse_others(zero, _TUNING_OF_ZERO, "zero_optimization.")
    bf16 = dict(given.pop("bf16", {}))
    precision = "bf16" if bf16.pop("enabled", False) else None
    _refuse_others(bf16, set(), "bf16.")
    reduce_dtype = _take_reduce_dtype(given, precision)
    micro_batch, accumulation = _batches(given, ranks)
    clipping = float(given.pop("gradient_clipping", 0) or 0)
    optimizer, scheduler = given.pop("optimizer", {}), given.pop("scheduler", {})
    _refuse_others(given, _TUNING, "")
    return Configuration(stage, micro_batch, accumulation, clipping, precision, reduce_dtype, optimizer, scheduler)


def _refuse_auto(settings: dict[str, Any], path: str = "") -> None:
    """Raises ValueError if a setting is "auto"."""
    for name, value in settings.items():
        if value == "auto":
            raise ValueError(f'zero.from_deepspeed: {path}{name} is "auto", which only frameworks above DeepSpeed '
                             "fill in; write a value")
        if isinstance(value, dict):
            _refuse_auto(value, f"{path}{name}.")


def _is_off(value: Any) -> bool:
    """True if a setting has a value that disables its feature."""
    if isinstance(value, dict):
        return not value.get("enabled", True) or value.get("device") == "none" or all(map(_is_off, value.values()))
    return value in (None, False, 0, "none")


def _refuse_others(settings: dict[str, Any], tuning: set[str], path: str) -> None:
    """Raises NotImplementedError for a setting, unless it is in `tuning`, is off, or has its value of _NEUTRAL."""
    for name, value in settings.items():
        if name not in tuning and not _is_off(value) and value != _NEUTRAL.get(name):
            raise NotImplementedError(f"zero.from_deepspeed: zero cannot serve {path}{name} = {json.dumps(value)} of "
                                      "this DeepSpeed configuration; remove it, or keep DeepSpeed")


def _take_reduce_dtype(given: dict[str, Any], precision: str | None) -> torch.dtype | None:
    """Takes the type of sums out of a configuration, and returns it; None: that of the gradients. Leaves a type that
    zero cannot use in the configuration, where _refuse_others() finds it."""
    name = str(given.get("communication_data_type")).lower()
    if name not in ("fp32", precision):
        return None
    del given["communication_data_type"]
    return torch.float32 if name == "fp32" else None


def _batches(given: dict[str, Any], ranks: int) -> tuple[int | None, int]:
    """Takes the sizes of batches out of a configuration. Returns the samples of a rank in a backward pass, and the
    backward passes in a step. Raises ValueError if the sizes contradict each other."""
    whole, micro = given.pop("train_batch_size", None), given.pop("train_micro_batch_size_per_gpu", None)
    accumulation = given.pop("gradient_accumulation_steps", None)
    if accumulation is None:
        accumulation = whole // (micro * ranks) if whole and micro else 1
    if micro is None and whole is not None:
        micro = whole // (accumulation * ranks)
    if whole is not None and whole != micro * accumulation * ranks:
        raise ValueError(f"zero.from_deepspeed: train_batch_size is {whole}, but train_micro_batch_size_per_gpu * "
                         f"gradient_accumulation_steps * ranks is {micro} * {accumulation} * {ranks}")
    return micro, accumulation


def make_optimizer(described: dict[str, Any], parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Returns the optimizer that a configuration describes, with DeepSpeed's defaults: Adam or AdamW, or another class
    of torch.optim. Raises NotImplementedError for one of DeepSpeed's own, and ValueError without a description."""
    if "type" not in described:
        raise ValueError("zero.from_deepspeed: there is no optimizer; pass optimizer=, or describe one in the "
                         "configuration")
    name, options = described["type"], dict(described.get("params", {}))
    if name.lower() in ("adam", "adamw"):
        # DeepSpeed's Adam is AdamW unless adam_w_mode is false
        is_decoupled = options.pop("adam_w_mode", True) or name.lower() == "adamw"
        if not options.pop("torch_adam", False):
            options.setdefault("weight_decay", 0.0)
        if not options.pop("bias_correction", True):
            raise NotImplementedError("zero.from_deepspeed: zero cannot serve optimizer.params.bias_correction = false")
        return (torch.optim.AdamW if is_decoupled else torch.optim.Adam)(parameters, **options)
    if not hasattr(torch.optim, name) or name == "Muon":
        raise NotImplementedError(f"zero.from_deepspeed: zero cannot serve optimizer.type = {name}, an optimizer of "
                                  "DeepSpeed's own; use Adam, AdamW or a class of torch.optim, or pass optimizer=")
    return getattr(torch.optim, name)(parameters, **options)
