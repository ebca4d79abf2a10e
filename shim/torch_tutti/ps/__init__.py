"""A parameter server: some ranks keep the parameters and step the optimizer, the others compute gradients.

    node = torch_tutti.ps.join(model, lambda named: torch.optim.SGD(named, lr=0.1), mode="bounded", staleness=2)
    if isinstance(node, torch_tutti.ps.Server):
        report = node.serve()
    else:
        with node as worker:
            for batch in batches:
                model.zero_grad()
                worker.backward(loss_of(model(batch)))          # gradients leave as they appear
                worker.pull()                                   # each layer waits for its own parameters

A process that starts later becomes a worker by `join_late(model)`, if the servers have `late_workers=True`.
"""
from torch_tutti.ps._join import join
from torch_tutti.ps._late import join_late
from torch_tutti.ps._server import Report, Server
from torch_tutti.ps._worker import Worker

__all__ = ["Report", "Server", "Worker", "join", "join_late"]
