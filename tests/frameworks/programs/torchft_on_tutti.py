"""The classes by which a program of torchft runs on tutti. docs/frameworks.md shows this text."""
import torch
import torch.distributed as dist
import torch_tutti as tutti
import torchft
from torchft.process_group import ProcessGroupWrapper


class ProcessGroupTutti(ProcessGroupWrapper):
    def _create_pg(self, store, rank, world_size):
        kind = dist.ProcessGroup.BackendType.CUSTOM
        backend = tutti.ProcessGroupTutti(store, rank, world_size, self._timeout)
        group = dist.ProcessGroup(store, rank, world_size)
        group._set_default_backend(kind)
        group._register_backend(torch.device("cpu"), kind, backend)
        return group

    def getBackendName(self):
        return "torchft-tutti"


# torchft 0.2.0 needs this class on every backend.
class DistributedDataParallel(torchft.DistributedDataParallel):
    @staticmethod
    def _comm_hook(manager, bucket):
        # After an error the manager does not commit the step.
        manager.allreduce(bucket.buffer()).wait()
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done
