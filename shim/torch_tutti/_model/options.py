"""The command line of `tutti model`; sizes and flags are those of `tutti bench`.

Imports no torch, so that a wrong option is reported at once."""
from __future__ import annotations

import argparse

from torch_tutti._arguments import PICTURES, picture, whole
from torch_tutti._bench.options import size

# {name in torch: name in the core}. Counts of torch's all-to-all may differ between ranks, so no algorithm of it is
# chosen by size.
CORE_NAMES = {"all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reduce_scatter",
              "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter"}
ALL, CANDIDATES = "all", "candidates"


def _algorithm_names(text: str) -> list[str]:
    """Returns the names in a list such as one_shot,two_shot. Raises ArgumentTypeError for empty or repeated names."""
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of different algorithms, such as one_shot,two_shot")
    return names


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Adds `model` to the commands of `tutti`, and returns its parser. The parsed options have `what`, the name of the
    collective. commands: the subparsers of argparse."""
    model = commands.add_parser(
        "model", help="show the predicted and measured times that algorithms are chosen by", allow_abbrev=False,
        description="Shows the machine parameters that a group chooses algorithms by, and the predicted and the "
                    "measured time of every algorithm and size. Starts the ranks itself unless torchrun has done "
                    "so, on one host or several.")
    model.add_argument("what", choices=CORE_NAMES, metavar="COLLECTIVE", help=", ".join(CORE_NAMES))
    model.add_argument("-b", "--minbytes", type=size, default=1 << 10, metavar="SIZE",
                       help="first size (default: 1K)")
    model.add_argument("-e", "--maxbytes", type=size, default=4 << 20, metavar="SIZE", help="last size (default: 4M)")
    model.add_argument("-f", "--stepfactor", type=whole(2), default=4, metavar="FACTOR",
                       help="multiply the size by this factor each step (default: %(default)s)")
    model.add_argument("-n", "--iters", type=whole(1), default=10, metavar="COUNT",
                       help="timed calls of each algorithm, in turns with the others (default: %(default)s)")
    model.add_argument("--algorithms", type=_algorithm_names, default=[ALL], metavar="NAMES",
                       help="algorithms: a list such as one_shot,two_shot; candidates, those that tutti chooses "
                            "from; or all that the group's hosts allow (default)")
    model.add_argument("--gradients", type=size, default=100 << 20, metavar="SIZE",
                       help="of all_reduce: bytes of a model's gradients, for the advice on "
                            "DistributedDataParallel's buckets (default: 100M)")
    model.add_argument("--nproc", type=whole(2), metavar="RANKS",
                       help="ranks to start (default: one for each core, 2 to 4); under torchrun, those that it "
                            "started")
    model.add_argument("--no-bind", action="store_true",
                       help="do not bind every rank to a core of its own (done where there are enough cores)")
    model.add_argument("-T", "--timeout", type=whole(1), default=300, metavar="SECONDS",
                       help="longest time of one operation before the run is abandoned (default: %(default)s)")
    model.add_argument("-J", "--output_file", metavar="FILE", help="save everything in this file, as JSON")
    model.add_argument("--plot", type=picture, metavar="FILE", help=f"plot it into this file ({', '.join(PICTURES)})")
    return model
