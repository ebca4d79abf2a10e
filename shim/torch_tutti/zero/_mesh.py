"""The ranks that train a model together: a group, or a DeviceMesh."""
from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from torch_tutti._calls import tutti_group_of


def group_of_ranks(call: str, group: dist.ProcessGroup | DeviceMesh | None) -> dist.ProcessGroup:
    """Returns tutti's group for the argument `group` of a call: for a DeviceMesh of one dimension its group; for one of
    two dimensions, as torch's fully_shard takes to replicate over the first and shard over the second, the group of all
    its ranks. Raises ValueError if the group is not tutti's, and NotImplementedError for another mesh. call: the
    beginning of the error's text."""
    if not isinstance(group, DeviceMesh):
        return tutti_group_of(call, group)
    if group.ndim == 1:
        return tutti_group_of(call, group.get_group())
    if group.ndim > 2 or group.size() != dist.get_world_size():
        raise NotImplementedError(f"{call}: the DeviceMesh has {group.ndim} dimensions and {group.size()} ranks; it "
                                  f"can have one dimension, or two and all {dist.get_world_size()} ranks. Pass a "
                                  "dimension of it, mesh[name], or a group, new_group(mesh.mesh.flatten().tolist())")
    return tutti_group_of(call, None)
