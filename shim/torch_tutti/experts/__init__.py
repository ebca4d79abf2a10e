"""Mixtures of experts whose experts are divided among ranks: tokens travel to the ranks of their experts and back.

    dispatcher = experts.Dispatcher(64, group=grid.experts.group("ep"))
    weights, chosen = experts.route(router(x), 2)
    batch = dispatcher.dispatch(x, chosen)              # batch.tokens: those of this rank's experts, by expert
    y = dispatcher.combine(mine(batch.tokens, batch.counts), weights, batch)

docs/experts.md explains the rest.
"""
from torch_tutti.experts._decoder import Decoder
from torch_tutti.experts._dispatch import Batch, Dispatcher
from torch_tutti.experts._router import Balance, Imbalance, balance_loss, imbalance, route, z_loss

__all__ = ["Balance", "Batch", "Decoder", "Dispatcher", "Imbalance", "balance_loss", "imbalance", "route", "z_loss"]
