"""Tests of take-overs: while one lasts, programs that ask for another backend run on tutti, in whichever way they ask,
and under the names that they asked for."""
import contextlib
import functools
import io
import os
from contextlib import redirect_stderr
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import init_process_group as bound_early
from ranks import Ranks

import torch_tutti
from torch_tutti import _takeover

BOTH = ("nccl", "gloo")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two processes that make their groups themselves."""
    with Ranks(2, tmp_path_factory.mktemp("takeover"), join=False) as ranks:
        yield ranks


class Group:
    """The default group, asked for by the arguments of init_process_group, while a `with` block lasts."""
    made = 0

    def __init__(self, world, *arguments, init=dist.init_process_group, **keywords):
        Group.made += 1
        self.store = dist.PrefixStore(f"group {Group.made}", world.store)
        self.world, self.init, self.arguments, self.keywords = world, init, arguments, keywords

    def __enter__(self):
        limit = {"timeout": timedelta(seconds=20), **self.keywords}
        self.init(*self.arguments, store=self.store, rank=self.world.rank, world_size=self.world.size, **limit)

    def __exit__(self, failed, *_):
        if dist.is_initialized():
            if not failed:
                self.await_the_others()
            dist.destroy_process_group()

    def await_the_others(self):
        """Gloo fails on a rank that is still connecting when the other leaves."""
        self.store.set(f"{self.world.rank} leaves", "")
        self.store.wait([f"{rank} leaves" for rank in range(self.world.size)], timedelta(seconds=20))


def runs_on_tutti(group=None):
    """Returns whether the group runs on tutti, and its sums are right."""
    group = group or dist.group.WORLD
    total = torch.full((3,), dist.get_rank(group) + 1.0)
    dist.all_reduce(total, group=group)
    backend = group._get_backend(torch.device("cpu"))
    return isinstance(backend, torch_tutti.ProcessGroupTutti) and total.tolist() == [3.0] * 3


# ---- names ----
@pytest.mark.parametrize("asked, names, given", [
    ("nccl", BOTH, "tutti"),
    ("gloo", ("nccl",), "gloo"),
    ("cpu:gloo,cuda:nccl", BOTH, "tutti"),
    ("cpu:gloo,cuda:nccl", ("nccl",), "cpu:gloo,cuda:tutti"),
    ("cpu:gloo,cuda:nccl", ("gloo",), "cpu:tutti,cuda:nccl"),
    ("cuda:nccl", BOTH, "cuda:tutti"),
    ("cpu:tutti,cuda:tutti", BOTH, "cpu:tutti,cuda:tutti"),
    ("cpu:gloo,xpu:xccl", BOTH, "cpu:tutti,xpu:xccl"),
    ("undefined", ("gloo",), "tutti"),
    ("undefined", ("nccl",), "undefined"),
    ("cpu:gloo:1", ("nccl",), "cpu:gloo:1"),
])
def test_names_are_translated(asked, names, given):
    assert _takeover.translate(asked, frozenset(names), default="gloo") == given


@pytest.mark.parametrize("names, error, text", [
    (("ncll",), ValueError, 'cannot take over "ncll": torch knows no backend of this name; it knows gloo, nccl'),
    (("mpi",), ValueError, 'cannot take over "mpi": torch makes its groups without a store'),
    (("tutti",), ValueError, "it already is tutti"),
    ((), ValueError, r'as in take_over\("nccl", "gloo"\)'),
    ((None,), TypeError, "names of backends as str, not NoneType"),
])
def test_names_that_cannot_be_taken_over_are_refused(names, error, text):
    with pytest.raises(error, match=text):
        torch_tutti.take_over(*names)
    assert not _takeover._active


# ---- every way of asking ----
def ask(world, arguments, names):
    forget(world)
    shown = io.StringIO()
    with torch_tutti.take_over(*names), redirect_stderr(shown), logging("info"), Group(world, *arguments):
        return dist.get_backend(), dist.get_backend_config(), runs_on_tutti(), shown.getvalue().splitlines()


WAYS = {"a name": (["nccl"], "nccl"), "a name in capitals": (["NCCL"], "nccl"), "another name": (["gloo"], "gloo"),
        "pairs": (["cpu:gloo,cuda:nccl"], "cpu:gloo,cuda:nccl"), "no name": ([], "undefined"),
        "the default of a device": ([dist.Backend.default_device_backend_map["cpu"]], "gloo")}


@pytest.mark.parametrize("way", WAYS)
def test_default_group_runs_on_tutti_under_its_name(two, way):
    """The group runs on tutti and keeps the name that was asked for. Each rank announces that in one line."""
    arguments, name = WAYS[way]
    for rank, (backend, config, right, shown) in enumerate(two.run(ask, arguments, BOTH)):
        assert (backend, config, right) == (name, "cpu:tutti,cuda:tutti", True)
        assert len(shown) == 1 and f'rank {rank} asked for backend "{name}" and gets "tutti"' in shown[0]


@contextlib.contextmanager
def logging(level):
    """Sets the level of the log in this process."""
    os.environ["TUTTI_LOG"] = level
    try:
        yield
    finally:
        del os.environ["TUTTI_LOG"]


def forget(_):
    """Makes this process forget that it has announced a take-over."""
    _takeover._announced = 0


def announce_once(world):
    forget(world)
    shown = io.StringIO()
    with torch_tutti.take_over("nccl"), redirect_stderr(shown), logging("info"), Group(world, "nccl"):
        dist.new_group(backend="nccl")
        with torch_tutti.take_over("gloo"):
            dist.new_group(backend="gloo")
    quiet = io.StringIO()
    forget(world)
    with torch_tutti.take_over("nccl"), redirect_stderr(quiet), Group(world, "nccl"):
        pass
    return shown.getvalue(), quiet.getvalue()


def test_take_over_is_announced_once_at_level_info(two):
    two.run(forget)
    for shown, quiet in two.run(announce_once):
        assert shown.count("\n") == 1 and " info: rank " in shown
        assert "nccl is taken over (torch_tutti.take_over, tutti run" in shown
        assert quiet == ""


def use_functions_bound_early(world):
    with torch_tutti.take_over("nccl"), Group(world, "nccl", init=bound_early):
        return runs_on_tutti()


def test_functions_imported_earlier_are_taken_over(two):
    assert two.run(use_functions_bound_early) == [True, True]


def make_groups(world):
    from torch.distributed.device_mesh import init_device_mesh
    with torch_tutti.take_over(*BOTH), Group(world, "nccl"):
        groups = [dist.new_group(), dist.new_group(backend="gloo"), dist.new_group([0, 1], backend="cpu:gloo"),
                  dist.new_group([0], backend="gloo"),
                  init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "model"),
                                   backend_override={"data": "gloo"}).get_group("data")]
        members = [group for group in groups if group is not dist.GroupMember.NON_GROUP_MEMBER]
        names = [(dist.get_backend(g), dist.get_backend_config(g)) for g in members]
        return names, [runs_on_tutti(g) for g in members if g.size() == 2]


def test_groups_and_meshes_run_on_tutti(two):
    everywhere = "cpu:tutti,cuda:tutti"
    first, second = two.run(make_groups)
    named = [("nccl", everywhere), ("gloo", everywhere), ("cpu:gloo", "cpu:tutti"), ("gloo", everywhere),
             ("gloo", everywhere)]
    assert first == (named, [True] * 4)
    assert second == (named[:3] + named[4:], [True] * 4)


def leave_other_names(world):
    with torch_tutti.take_over("nccl"), Group(world, "cpu:gloo,cuda:nccl"):
        cpu, cuda = (dist.group.WORLD._get_backend(torch.device(device)) for device in ("cpu", "cuda"))
        return dist.get_backend(), dist.get_backend_config(), type(cpu).__name__, type(cuda).__name__


def test_other_names_stay_what_they_are(two):
    expected = ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:tutti", "ProcessGroupGloo", "ProcessGroupTutti")
    assert two.run(leave_other_names) == [expected] * 2


def give_options(world):
    shown = io.StringIO()
    options = dist.ProcessGroupGloo._Options()
    with torch_tutti.take_over("gloo"), redirect_stderr(shown), Group(world, "gloo", pg_options=options):
        return runs_on_tutti(), shown.getvalue()


def test_options_of_the_other_backend_are_ignored(two):
    for right, shown in two.run(give_options):
        assert right and "pg_options of ProcessGroupGloo._Options have no meaning for tutti and are ignored" in shown


def ask_what_is_available(world):
    def answers():
        return (dist.is_nccl_available(), dist.is_backend_available("nccl"),
                dist.is_backend_available("cpu:gloo,cuda:ucc"))

    with torch_tutti.take_over("nccl", "ucc"):
        during = answers()
    return during, answers() == (dist.distributed_c10d.is_nccl_available(),) * 2 + (dist.is_ucc_available(),)


def test_taken_over_backends_are_available(two):
    assert two.run(ask_what_is_available) == [((True, True, True), True)] * 2


# ---- the end of a take-over ----
def undo(world):
    before = vars(dist.distributed_c10d)[_takeover.HELPER], dist.is_gloo_available
    outer = torch_tutti.take_over("nccl")
    inner = torch_tutti.take_over("gloo", "nccl")
    names = [os.environ.get(_takeover.VARIABLE)]
    outer.undo()
    names.append(os.environ.get(_takeover.VARIABLE))
    with Group(world, "nccl"):
        inner.undo()
        inner.undo()
        names.append(os.environ.get(_takeover.VARIABLE))
        restored = before == (vars(dist.distributed_c10d)[_takeover.HELPER], dist.is_gloo_available)
        later = dist.new_group(backend="gloo")
        return names, restored, runs_on_tutti(), runs_on_tutti(later), repr(inner)


def test_take_overs_end_in_any_order(two):
    """Existing groups stay on tutti. Later ones run on the backend of their name."""
    names = ["gloo,nccl", "gloo,nccl", None]
    assert two.run(undo) == [(names, True, True, False, "TakeOver('gloo', 'nccl', undone)")] * 2


def make_groups_afterwards(world):
    """Returns the names and backends of groups that are made without a name in a take-over and after it."""
    outer = torch_tutti.take_over("gloo")
    with torch_tutti.take_over("nccl"):
        outer.undo()
        with Group(world, "nccl"):
            kept = dist.get_backend()
            other = torch_tutti.take_over("nccl")
            other.undo()
            names = [kept, dist.get_backend()]
            first = dist.new_group()
            torch_tutti._takeover._active[0].undo()
            names.append(dist.get_backend())
            second = dist.new_group()
            return names, runs_on_tutti(), runs_on_tutti(first), runs_on_tutti(second), dist.get_backend(second)


def test_groups_of_the_default_name_are_tuttis_afterwards(two):
    """get_backend returns the name that was asked for while a take-over of it lasts, and "tutti" afterwards."""
    assert two.run(make_groups_afterwards) == [(["nccl", "nccl", "tutti"], True, True, True, "tutti")] * 2


def undo_below_another(world):
    """Another library has wrapped tutti's function."""
    c10d = dist.distributed_c10d
    torchs = vars(c10d)[_takeover.HELPER]
    taken = torch_tutti.take_over("gloo")
    ours = vars(c10d)[_takeover.HELPER]

    @functools.wraps(ours)
    def another(*arguments, **keywords):
        return ours(*arguments, **keywords)

    setattr(c10d, _takeover.HELPER, another)
    try:
        taken.undo()
        kept = vars(c10d)[_takeover.HELPER] is another
        with Group(world, "gloo"):
            without = dist.get_backend_config()
        with torch_tutti.take_over("gloo"), Group(world, "gloo"):
            return kept, without, runs_on_tutti()
    finally:
        setattr(c10d, _takeover.HELPER, torchs)


def test_undo_leaves_the_wrapper_of_another_library(two):
    assert two.run(undo_below_another) == [(True, "cpu:gloo,cuda:gloo", True)] * 2


# ---- calls that torch reserves by name ----
def monitor(world, name, names):
    """All ranks come to the first barrier. Rank 1 does not come to the second."""
    with torch_tutti.take_over(*names) if names else io.StringIO(), Group(world, name):
        barrier = torch_tutti.monitored_barrier if name == "tutti" else dist.monitored_barrier
        barrier(timeout=timedelta(seconds=15), wait_all_ranks=True)
        if world.rank == 0:
            try:
                barrier(timeout=timedelta(milliseconds=300))
            except RuntimeError as error:
                world.store.set(f"barrier of {name} failed", "")
                return str(error)
        world.store.wait([f"barrier of {name} failed"], timedelta(seconds=20))


@pytest.mark.parametrize("name, names", [("gloo", ["gloo"]), ("tutti", [])])
def test_monitored_barrier_names_the_missing_rank(two, name, names):
    text, _ = two.run(monitor, name, names)
    assert "Rank 1 failed to pass monitoredBarrier" in text


def refuse_monitored_barrier(world):
    with Group(world, "gloo"), pytest.raises(ValueError) as refused:
        torch_tutti.monitored_barrier()
    return str(refused.value)


def test_monitored_barrier_of_another_backend_is_refused(two):
    for text in two.run(refuse_monitored_barrier):
        assert "this one runs on cpu:gloo,cuda:gloo: call torch.distributed.monitored_barrier" in text


def monitored_barrier_by_torchs_name(world):
    with Group(world, "tutti"):
        dist.monitored_barrier(timeout=10.0)
        with pytest.raises(TypeError, match="must be a datetime.timedelta, not float"):
            torch_tutti.monitored_barrier(timeout=10.0)
    with Group(world, "gloo"):
        dist.monitored_barrier(timeout=timedelta(seconds=10))
        return True


def test_torchs_monitored_barrier_reaches_tutti_and_others(two):
    assert two.run(monitored_barrier_by_torchs_name) == [True, True]


def set_timeout(world, name):
    """Returns the error of an all-reduce with a timeout of 200 ms on rank 0, to which rank 1 does not come."""
    import warnings
    with Group(world, name), warnings.catch_warnings():
        warnings.simplefilter("error")
        dist.distributed_c10d._set_pg_timeout(timedelta(milliseconds=200))
        if world.rank == 0:
            try:
                dist.group.WORLD._get_backend(torch.device("cuda")).allreduce([torch.ones(1)]).wait()
            except torch_tutti.TimeoutError as error:
                world.store.set(f"{name} timed out", "")
                return str(error)
        world.store.wait([f"{name} timed out"], timedelta(seconds=20))


@pytest.mark.parametrize("name", ["tutti", "cpu:gloo,cuda:tutti"])
def test_set_pg_timeout_reaches_tutti(two, name):
    text, _ = two.run(set_timeout, name)
    assert text and "200 ms" in text


def give_back(world):
    """Restores torch's functions in the place of tutti's; the next group puts tutti's back. Returns their number, and
    for each whether it differs, is torch's own, and is the same in both modules."""
    from torch_tutti import _compatibility
    c10d = dist.distributed_c10d
    with Group(world, "tutti"):
        # set_timeout came with torch 2.14.
        known = [name for name in _compatibility.KNOWN if name in vars(c10d)]
        ours = {name: (vars(c10d)[name], getattr(dist, name, None)) for name in known}
        _compatibility.undo()
        torchs = {name: (vars(c10d)[name], getattr(dist, name, None)) for name in known}
        # From torch 2.14 on, the barrier does not check the backend's name.
        if hasattr(dist, "set_timeout"):
            dist.monitored_barrier()
        else:
            with pytest.raises(ValueError, match="only implemented for GLOO"):
                dist.monitored_barrier()
        _compatibility.undo()
        dist.new_group()
        dist.monitored_barrier()
    differ = [ours[name][0] is not torchs[name][0] for name in ours]
    own = [torchs[name][0].__module__ == c10d.__name__ and not hasattr(torchs[name][0], "tutti") for name in torchs]
    return len(known), differ, own, [both[1] in (None, both[0]) for both in (*ours.values(), *torchs.values())]


def test_torchs_functions_come_back(two):
    count = 6 if hasattr(dist, "set_timeout") else 4
    assert two.run(give_back) == [(count, [True] * count, [True] * count, [True] * 2 * count)] * 2


def call_without_a_group(world):
    """Returns for each function the errors of ours and of torch's own, when there is no group."""
    from torch_tutti import _compatibility
    limit = timedelta(seconds=1)
    arguments = {"monitored_barrier": (), "_set_pg_timeout": (limit,), "set_timeout": (limit,),
                 "_coalescing_manager": (), "_reconfigure": (1, []), "_time_estimator": ()}

    def error_of(name, function):
        try:
            made = function(*arguments[name])
            if hasattr(made, "__enter__"):
                made.__enter__()
        except Exception as error:
            return repr(error)
    with Group(world, "tutti"):
        ours = {name: vars(dist.distributed_c10d).get(name) for name in _compatibility.KNOWN}
    return {name: (error_of(name, function), error_of(name, function.__wrapped__)) for name, function in ours.items()
            if function}


def test_torchs_functions_raise_torchs_errors_without_a_group(two):
    for errors in two.run(call_without_a_group):
        assert len(errors) >= 4
        assert all(ours == own and "Default process group" in own for ours, own in errors.values()), errors
