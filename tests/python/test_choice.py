"""Tests of tutti chosen by its own name: alone, for some devices, beside other backends, for one group or one dimension
of a mesh. docs/torch.md describes how torch reads each string."""
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks

import torch_tutti

OURS, GLOO = "ProcessGroupTutti", "ProcessGroupGloo"
EVERYWHERE = "cpu:tutti,cuda:tutti"


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two processes that make their groups themselves."""
    with Ranks(2, tmp_path_factory.mktemp("choice"), join=False) as ranks:
        yield ranks


def begin(world, name, **keywords):
    world.kept["made"] = world.kept.get("made", 0) + 1
    store = dist.PrefixStore(f"group {world.kept['made']}", world.store)
    dist.init_process_group(name, store=store, rank=world.rank, world_size=world.size, **keywords)


def describe(group=None):
    """Returns a group's name, its configuration, the class of each device's backend, and whether its sums are right."""
    group = group or dist.group.WORLD
    devices = sorted(device.type for device in group._device_types)
    classes = {device: type(group._get_backend(torch.device(device))).__name__ for device in devices}
    total = torch.full((5,), dist.get_rank(group) + 1.0)
    if "cpu" in devices:
        dist.all_reduce(total, group=group)
    return dist.get_backend(group), dist.get_backend_config(group), classes, total.tolist() == [3.0] * 5


# ---- the default group ----
STRINGS = {
    "tutti": ("tutti", EVERYWHERE, {"cpu": OURS, "cuda": OURS}),
    "TUTTI": ("tutti", EVERYWHERE, {"cpu": OURS, "cuda": OURS}),
    "cpu:tutti,cuda:tutti": ("cpu:tutti,cuda:tutti", EVERYWHERE, {"cpu": OURS, "cuda": OURS}),
    "cpu:tutti": ("cpu:tutti", "cpu:tutti", {"cpu": OURS}),
    "cpu:gloo,cuda:tutti": ("cpu:gloo,cuda:tutti", "cpu:gloo,cuda:tutti", {"cpu": GLOO, "cuda": OURS}),
    "cpu:tutti,cuda:gloo": ("cpu:tutti,cuda:gloo", "cpu:tutti,cuda:gloo", {"cpu": OURS, "cuda": GLOO}),
}


def choose(world, name):
    begin(world, name)
    try:
        objects = [None] * world.size
        dist.all_gather_object(objects, {"rank": world.rank})
        dist.barrier()
        return describe(), objects
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", STRINGS)
def test_default_group_has_the_named_backends(two, name):
    """Exchanges of objects and barriers use the backend of CPU tensors."""
    expected = (*STRINGS[name], True), [{"rank": 0}, {"rank": 1}]
    assert two.run(choose, name) == [expected] * 2


def one_for_all_devices(world):
    begin(world, "cpu:tutti,cuda:tutti")
    try:
        cpu, cuda = (dist.group.WORLD._get_backend(torch.device(device)) for device in ("cpu", "cuda"))
        return cpu is cuda
    finally:
        dist.destroy_process_group()


def test_all_devices_share_one_backend(two):
    assert two.run(one_for_all_devices) == [True, True]


def other_device(world):
    begin(world, "cuda:tutti")
    try:
        dist.all_reduce(torch.ones(1))
    finally:
        dist.destroy_process_group()


def test_tensor_on_a_device_without_a_backend_is_an_error(two):
    for outcome in two.outcomes(other_device):
        assert outcome.error == "RuntimeError" and "No backend type associated with device type cpu" in outcome.text


# ---- further groups ----
def add_groups(world, first):
    from torch.distributed.device_mesh import init_device_mesh
    begin(world, first)
    try:
        groups = {"as the default": dist.new_group(),
                  "tutti": dist.new_group(backend="tutti"),
                  "pairs": dist.new_group([0, 1], backend="cpu:tutti,cuda:gloo"),
                  "gloo": dist.new_group(backend="gloo"),
                  "options": dist.new_group(backend="tutti", pg_options=torch_tutti.Options("allreduce=ring")),
                  "without the others": dist.new_group([0, 1], backend="tutti", use_local_synchronization=True)}
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("outer", "inner"), backend_override={
            "inner": ("tutti", torch_tutti.Options("allreduce=doubling", timedelta(seconds=30))), "outer": "gloo"})
        groups["mesh"] = mesh.get_group("inner")
        found = {way: describe(group) for way, group in groups.items()}
        options = [groups[way]._get_backend(torch.device("cpu")).options for way in ("options", "mesh")]
        found["algorithms"] = [o.algorithm for o in options]
        return found, dist.get_backend(mesh.get_group("outer"))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("first", ["gloo", "tutti"])
def test_further_groups_may_have_another_backend(two, first):
    """A further group without a backend of its own gets that of the default group."""
    ours = ("tutti", EVERYWHERE, {"cpu": OURS, "cuda": OURS}, True)
    gloos = ("gloo", "cpu:gloo,cuda:gloo", {"cpu": GLOO, "cuda": GLOO}, True)
    pairs = ("cpu:tutti,cuda:gloo", "cpu:tutti,cuda:gloo", {"cpu": OURS, "cuda": GLOO}, True)
    for found, outer in two.run(add_groups, first):
        assert found == {"as the default": ours if first == "tutti" else gloos, "tutti": ours, "pairs": pairs,
                         "gloo": gloos, "options": ours, "without the others": ours, "mesh": ours,
                         "algorithms": ["allreduce=ring", "allreduce=doubling"]}
        assert outer == "gloo"


def become_the_default(world):
    """Makes tutti the default of a device in torch's map of devices to backends, as torchtitan does. Returns the
    description of the group that torch then makes."""
    backends = dist.Backend.default_device_backend_map
    before = backends["cpu"]
    backends["cpu"] = "tutti"
    try:
        begin(world, dist.get_default_backend_for_device("cpu"))
        return describe()
    finally:
        backends["cpu"] = before
        dist.destroy_process_group()


def test_tutti_may_be_the_default_backend_of_a_device(two):
    expected = "tutti", EVERYWHERE, {"cpu": OURS, "cuda": OURS}, True
    assert two.run(become_the_default) == [expected] * 2


# ---- wrong options, and availability ----
def wrong_options(world):
    begin(world, "tutti", pg_options=dist.ProcessGroupGloo._Options())


def test_options_of_another_backend_are_refused(two):
    for outcome in two.outcomes(wrong_options):
        assert outcome.error == "TypeError" and "must be torch_tutti.Options, not" in outcome.text


def test_torch_finds_tutti_by_name():
    assert dist.is_backend_available("tutti") and dist.is_backend_available("cpu:gloo,cuda:tutti")
    assert dist.Backend("Tutti") == "tutti" == dist.Backend.TUTTI
