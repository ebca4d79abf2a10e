"""Tests that the package uses only those private names of torch that are listed here, because any version of torch may
change them."""
import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "shim" / "torch_tutti"
PRIVATE = {
    # groups: creation, attributes, and functions that torch offers to its own backends only
    "_new_process_group_helper", "_get_default_timeout", "_world", "_get_backend", "_device_types", "_set_pg_timeout",
    "_coalescing_manager", "_time_estimator", "_distributed_c10d", "_ensure_backend_registered",
    # DistributedDataParallel: buckets in shared memory, and its arguments when ZeRO takes over its model
    "_has_rebuilt_buckets", "_pre_forward", "_comm_hooks", "_delay_all_reduce_params", "_remove_autograd_hooks",
    "_set_static_graph",
    # collectives that torch.compile traces
    "_functional_collectives", "_c10d_functional", "_assert_async",
    # autograd: which gradients a backward pass accumulates, and which backward pass is running
    "_backward_hooks", "_post_accumulate_grad_hooks", "_will_engine_execute_node", "_current_graph_task_id",
    "_functorch", "_current_level", "_version", "_unsafe_view",
    # autograd: a call at the end of a backward pass
    "_execution_engine",
    # moving a module to a device or type
    "_apply",
    # the norms of a list of gradients, and the division and check of GradScaler
    "_foreach_norm", "_amp_foreach_non_finite_check_and_unscale_",
    # the hooks of an optimizer's steps, and the mark by which schedulers see that there was a step
    "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_opt_called",
    # torch's pipeline schedules and their backward passes, tensor subclasses for its checkpoints, trees of tensors
    "_PipelineScheduleRuntime", "_load_csv", "_backward", "_make_wrapper_subclass", "_pytree",
}
# Names of argparse, namedtuple, os and sys, and texts that look like private names: of torch's profiles and of a
# module's state.
OTHERS = {"_SubParsersAction", "_asdict", "_current_frames", "_exit", "_fields", "_getframe", "_replace",
          "_all_gather_base", "_reduce_scatter_base", "_extra_state"}


def private_names(tree):
    """Returns the private names that a file reads from an object, imports or looks up by a text, and the names that it
    defines itself."""
    used, own = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute):
            mine = isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") == "self"
            (own if mine else used).add(node.attr)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            used.update(part for name in names if "torch_tutti" not in names[0] for part in name.split("."))
        elif isinstance(node, ast.Constant) and re.fullmatch(r"_[a-z]+_\w+", str(node.value)):
            used.add(node.value)
    return {name for name in used if re.match("_[^_]", name)}, own


def test_package_uses_only_listed_private_names():
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]
    found = [private_names(ast.parse(path.read_text(encoding="utf-8"))) for path in files]
    used, own = (set().union(*sets) for sets in zip(*found))
    assert used - own - OTHERS == PRIVATE
