"""Tests of torch_tutti.grid: groups and meshes follow Megatron-Core's rule, which by_the_rule computes independently;
groups are made once; groups inside hosts; and `tutti grid`."""
import itertools
import random
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from training import same_on_all_ranks
from zero_training import refused

import torch_tutti
from torch_tutti._grid import ORDER, Layout, layouts
from torch_tutti._grid_command import panels
from torch_tutti.cli import main

NAMES = ("tp", "cp", "ep", "dp", "pp")


def by_the_rule(order, sizes, names):
    """Returns the groups of ranks that differ only on the axes in `names`: for each place on the other axes, all places
    on these. The first axis varies fastest."""
    axes = order.split("-")
    strides = dict(zip(axes, itertools.accumulate([1, *(sizes[a] for a in axes[:-1])], lambda a, b: a * b)))

    def places(of):
        for index in itertools.product(*(range(sizes[a]) for a in reversed(of))):
            yield sum(i * strides[a] for i, a in zip(index, reversed(of)))
    chosen = [a for a in axes if a in names]
    return [[first + more for more in places(chosen)] for first in places([a for a in axes if a not in names])]


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_those_of_the_rule(seed):
    draw = random.Random(seed)
    order = list(NAMES)
    if seed:
        draw.shuffle(order)
    for _ in range(10):
        sizes = {name: draw.choice([1, 1, 2, 3, 4]) for name in NAMES}
        ranks = torch.Size(sizes.values()).numel()
        layout = Layout("-".join(order), sizes, ranks)
        for count in (1, 2, 3):
            names = draw.sample(NAMES, count)
            assert layout.groups("-".join(names)) == by_the_rule("-".join(order), sizes, names)
        rank = draw.randrange(ranks)
        for name in NAMES:
            assert layout.groups(name)[layout.find(name, rank)[0]][layout.index(rank)[name]] == rank


def test_remaining_ranks_are_data_parallel():
    layout, experts = layouts(16, ORDER, {"tp": 2, "cp": 1, "dp": None, "pp": 2}, 1, None)
    assert layout.sizes["dp"] == 4 and experts is None
    _, experts = layouts(16, ORDER, {"tp": 2, "cp": 1, "dp": None, "pp": 2}, 2, None)
    assert experts.sizes == {"tp": 2, "cp": 1, "ep": 2, "dp": 2, "pp": 2}
    refused(ValueError, "is not a 32-bit integer", lambda: layout.find("tp", (1 << 32) + 1))
    layout, experts = layouts(16, ORDER, {"tp": 4, "cp": 1, "dp": None, "pp": 2}, 4, 1)
    assert experts.sizes == {"tp": 1, "cp": 1, "ep": 4, "dp": 2, "pp": 2}
    assert experts.groups("pp") == layout.groups("pp")
    refused(ValueError, "tp 3 x cp 1 x pp 2 are 6 ranks, which do not divide the 16",
            lambda: layouts(16, ORDER, {"tp": 3, "cp": 1, "dp": None, "pp": 2}, 1, 1))
    refused(ValueError, "tp 2 x cp 1 x dp 2 x pp 2 .*are 8 ranks, but there are 16|are 8 ranks, but there are 16",
            lambda: layouts(16, ORDER, {"tp": 2, "cp": 1, "dp": 2, "pp": 2}, 1, 1))
    refused(ValueError, "the order \"tp-pp\" does not name it",
            lambda: layouts(16, "tp-pp", {"tp": 2, "cp": 1, "dp": 4, "pp": 2}, 1, 1))
    refused(ValueError, "experts of tp 1 and ep 3 do not divide 16 ranks",
            lambda: layouts(16, ORDER, {"tp": 2, "cp": 1, "dp": None, "pp": 2}, 3, 1))


def test_error_names_an_order_that_keeps_groups_inside_hosts():
    layout, hosts = Layout("dp-tp", {"dp": 4, "tp": 2}, 8), [0, 0, 0, 0, 1, 1, 1, 1]
    refused(ValueError, "tp group 0 has ranks 0, 4, on hosts 0, 1; order=\"tp-dp\" would keep them inside",
            lambda: layout.check_inside("tp", hosts))
    layout.check_inside("dp", hosts)
    wide = Layout("tp-dp", {"tp": 8, "dp": 2}, 16)
    refused(ValueError, "ranks 0, 1, 2, 3, 4, 5, 6, 7, on hosts 0, 1; a group has 8 ranks, but a host as few as 4",
            lambda: wide.check_inside("tp", [rank // 4 for rank in range(16)]))
    refused(ValueError, "hosts are given for 1 ranks, but there are 8", lambda: layout.straddles("tp", [0]))


# ---- groups of torch ----
def run_groups(world):
    made = torch_tutti.grid(tp=2, order="tp-dp-pp")
    assert made.layout.sizes["dp"] == world.size // 2
    for name in ("tp", "dp"):
        group, total = made.group(name), torch.tensor([float(world.rank)])
        assert dist.get_process_group_ranks(group) == made.ranks(name) and dist.get_backend(group) == "tutti"
        dist.all_reduce(total, group=group)
        assert total == sum(made.ranks(name)) and dist.get_group_rank(group, world.rank) == made.index(name)
    again = torch_tutti.grid(dp=world.size // 2, tp=2, order="tp-dp-pp")
    # A group of the same ranks is made once.
    assert again.group("tp") is made.group("tp")
    assert made.group("dp-tp") is dist.group.WORLD and made.size("dp-tp") == world.size
    assert made.group("pp") is again.group("pp") and made.size("pp") == 1
    other = torch_tutti.grid(tp=2, order="tp-dp-pp", backend="gloo").group("tp")
    assert dist.get_backend(other) == "gloo" and made.group("tp") is not other
    dist.destroy_process_group(made.group("dp"))
    # A destroyed group is made again.
    dist.all_reduce(total, group=made.group("dp"))
    with_experts = torch_tutti.grid(tp=2, ep=2, expert_tp=1)
    # The experts' groups have the same ranks.
    assert with_experts.experts.group("ep") is made.group("tp")
    refused(ValueError, "names xp, which is not an axis", lambda: made.group("xp"))
    refused(ValueError, "a mesh of \\('tp', 'dp-tp'\\)", lambda: made.mesh("tp", "dp-tp"))
    refused(ValueError, "tp 3 x cp 1 x pp 1 are 3 ranks", lambda: torch_tutti.grid(tp=3))
    assert made.hosts() == sorted(made.hosts()) and len(set(made.hosts())) == world.hosts


@pytest.mark.one_host("in other layouts of hosts, the ranks of a host are not neighbours")
def test_groups_have_the_ranks_of_the_layout(shared):
    shared(4).run(run_groups)


def groups_before(world):
    """Ranks 0 and 1 are in one group more than the others when the grid makes its own."""
    dist.new_group([0, 1])
    made, total = torch_tutti.grid(pp=2, tp=2), torch.tensor([float(world.rank)])
    dist.all_reduce(total, group=made.group("pp"))
    assert total == sum(made.ranks("pp"))
    other, total = torch_tutti.grid(pp=2, tp=2, backend="gloo"), torch.tensor([float(world.rank)])
    for _ in range(2):
        dist.all_reduce(total, group=other.group("pp"))
        dist.destroy_process_group(other.group("pp"))
    assert total == 2 * sum(made.ranks("pp"))


def test_ranks_may_be_in_different_numbers_of_groups(fresh):
    fresh(4, timeout_s=10).run(groups_before)


def run_meshes(world):
    made = torch_tutti.grid(tp=2, order="tp-dp-pp")
    mesh = made.mesh("dp", "tp")
    assert mesh.mesh.tolist() == [[0, 1], [2, 3]] and mesh.mesh_dim_names == ("dp", "tp")
    assert mesh.get_group("tp") is made.group("tp") and mesh["dp"].size() == 2
    assert tuple(mesh.get_coordinate()) == (made.index("dp"), made.index("tp"))
    whole = torch.arange(12.0).view(4, 3)
    divided = distribute_tensor(whole, mesh["tp"], [Shard(0)])
    assert isinstance(divided, DTensor) and torch.equal(divided.full_tensor(), whole)
    assert made.mesh("tp").mesh.tolist() == made.ranks("tp")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    model(torch.ones(2, 8)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    same_on_all_ranks(world, model[0].weight.full_tensor())


@pytest.mark.one_host("FSDP sums in another order over hosts")
def test_mesh_has_the_groups_of_the_grid(shared):
    shared(4).run(run_meshes)


def run_over_hosts(world):
    made = torch_tutti.grid(tp=2, inside="tp", order="tp-dp-pp")
    assert made.hosts() == [0, 0, 1, 1]
    refused(ValueError, "dp group 0 has ranks 0, 2, on hosts 0, 1; order=\"dp-tp-pp-cp\" would keep them inside",
            lambda: torch_tutti.grid(tp=2, inside="dp", order="tp-dp-pp"))
    refused(ValueError, "ep group 0 has ranks 0, 1, 2, 3, on hosts 0, 1", lambda: torch_tutti.grid(ep=4, inside="ep"))
    total = torch.tensor([1.0])
    dist.all_reduce(total, group=made.group("dp"))
    assert total == 2


def test_axis_that_crosses_hosts_is_refused_inside(fresh):
    fresh(4, environment={"TUTTI_HOSTS": "2"}).run(run_over_hosts)


# ---- the command ----
def test_command_lists_groups_and_names_mistakes(capsys):
    assert main("grid --ranks 16 --hosts 2 --tp 2 --pp 2 --ep 4 --expert-tp 1".split()) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("16 ranks as tp 2 x cp 1 x dp 4 x pp 2, the first varies fastest; 2 hosts")
    assert "tp: 8 groups of 2, inside a host\n  0 1\n  2 3" in shown and "… and 4 more (--all)" in shown
    assert "pp: 8 groups of 2, on up to 2 hosts\n  0 8" in shown
    assert "dp: 4 groups of 4, inside a host\n  0-6/2" in shown
    assert "experts: tp 1 x ep 4 x dp 2 x pp 2" in shown and "ep: 4 groups of 4, inside a host\n  0-3" in shown
    assert main(["grid", "--ranks", "8", "--hosts", "2", "--tp", "2", "--order", "dp-tp-pp", "--inside", "tp"]) == 1
    assert "order=\"tp-dp-pp-cp\" would keep them inside" in capsys.readouterr().err
    assert main(["grid", "--ranks", "8", "--hosts", "3"]) == 1
    assert "8 ranks are not the same number on each of 3 hosts" in capsys.readouterr().err
    assert main(["grid", "--ranks", "100000000000"]) == 1 and "32-bit" in capsys.readouterr().err
    assert main(["grid", "--ranks", "8", "--tp", "3"]) == 1
    assert "which do not divide the 8" in capsys.readouterr().err


def test_command_draws_a_picture(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    picture, words = tmp_path / "out.png", "grid --ranks 22 --hosts 2 --tp 1 --dp 11 --pp 2 --ep 11 --picture".split()
    assert main([*words, str(picture)]) == 0
    assert picture.stat().st_size > 10_000 and capsys.readouterr().out.startswith("22 ranks as")
    assert main(["grid", "--ranks", "1", "--picture", str(tmp_path / "one.svg")]) == 0
    assert main(["grid", "--ranks", "1025", "--picture", str(tmp_path / "many.png")]) == 1
    assert "1025 ranks; a picture has room for 1024" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, "out.gif"])
    assert "'out.gif' must end in .png, .svg, .pdf" in capsys.readouterr().err


def test_picture_has_each_kind_of_group():
    layout, experts = layouts(16, "tp-cp-ep-dp-pp", {"tp": 2, "cp": 1, "dp": None, "pp": 2}, 4, 1)
    shown = panels(layout, experts)
    assert list(shown) == ["tp", "dp", "pp", "ep of experts", "dp of experts"]
    assert shown["ep of experts"][0] == [0, 1, 2, 3] and shown["dp of experts"][0] == [0, 4]


def test_picture_without_matplotlib_is_refused(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["grid", "--ranks", "2", "--picture", "out.png"]) == 1
    assert "a picture needs matplotlib: pip install matplotlib" in capsys.readouterr().err
