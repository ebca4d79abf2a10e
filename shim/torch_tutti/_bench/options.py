"""The options of `tutti bench`: those of nccl-tests, with their letters, names and defaults, and further ones.

Nothing here imports torch, so that a wrong option is reported at once. `command` checks what depends on torch and on
the number of ranks.
"""
from __future__ import annotations

import argparse
import re

from torch_tutti._arguments import PICTURES, picture, whole

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "gather", "scatter",
               "sendrecv")
OPERATIONS = ("sum", "prod", "max", "min", "avg")
# Name in the table: name in torch.
TYPES = {"int8": "int8", "uint8": "uint8", "int32": "int32", "int64": "int64", "half": "float16", "float": "float32",
         "double": "float64", "bfloat16": "bfloat16"}
DEFAULT_BYTES = 32 << 20
COMMANDS = (*COLLECTIVES, "all", "compare")


def size(text: str) -> int:
    """A type for argparse. Returns the bytes of a number, which may have a suffix: K, M or G for KiB, MiB or GiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)", text.strip(), re.IGNORECASE)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; sizes are written as 8, 64K, 1.5M or 1G")
    return int(float(match[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[match[2].upper()])


def _choice(names: tuple[str, ...]):
    """Returns a type for argparse: a list with one of the names, in any case, or with all of them for "all"."""
    def parse(text: str) -> list[str]:
        """Returns the list of names, or raises ArgumentTypeError."""
        if text.lower() == "all":
            return list(names)
        if text.lower() not in names:
            raise argparse.ArgumentTypeError(f"unknown: {text!r}; choose from {', '.join(names)}, all")
        return [text.lower()]
    return parse


def _root(text: str) -> int | None:
    """A type for argparse. Returns a rank, or None for "all"."""
    return None if text.lower() == "all" else whole(0)(text)


def _backends(text: str) -> list[str]:
    """A type for argparse. Returns the different names of a comma-separated list, in lower case."""
    names = [name.strip().lower() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of different backends, such as tutti,gloo")
    return names


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the sizes to measure."""
    group = parser.add_argument_group("sizes")
    group.add_argument("-b", "--minbytes", type=size, metavar="SIZE", help="first size (default: 32M)")
    group.add_argument("-e", "--maxbytes", type=size, metavar="SIZE",
                       help="last size (default: 32M, or the first if that is larger)")
    step = group.add_mutually_exclusive_group()
    step.add_argument("-i", "--stepbytes", type=size, default=1 << 20, metavar="SIZE",
                      help="add this many bytes for the next size (default: 1M)")
    step.add_argument("-f", "--stepfactor", type=whole(2), metavar="FACTOR",
                      help="multiply the size by this factor each step")


def _add_operation(parser: argparse.ArgumentParser) -> None:
    """Adds the options of reduction, type and root."""
    group = parser.add_argument_group("operation")
    group.add_argument("-o", "--op", type=_choice(OPERATIONS), default=["sum"], metavar="OP",
                       help=f"{', '.join(OPERATIONS)} or all (default: sum)")
    group.add_argument("-d", "--datatype", type=_choice(tuple(TYPES)), default=["float"], metavar="TYPE",
                       help=f"{', '.join(TYPES)} or all (default: float)")
    group.add_argument("-r", "--root", type=_root, default=0, metavar="RANK", help="a rank, or all (default: 0)")


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    """Adds the options of iterations, averages, checks and timeout."""
    group = parser.add_argument_group("measuring")
    group.add_argument("-n", "--iters", type=whole(1), default=20, metavar="COUNT",
                       help="timed iterations (default: %(default)s)")
    group.add_argument("-w", "--warmup_iters", type=whole(0), default=5, metavar="COUNT",
                       help="untimed iterations before them (default: %(default)s)")
    group.add_argument("-m", "--agg_iters", type=whole(1), default=1, metavar="COUNT",
                       help="operations of an iteration, timed together (default: %(default)s)")
    group.add_argument("-a", "--average", type=int, choices=range(4), default=3, metavar="0..3",
                       help="the time of an iteration is that of rank 0 (0), the mean of the ranks (1), the least (2) "
                            "or the greatest (3) of them (default: %(default)s)")
    group.add_argument("-c", "--check", type=whole(0), default=1, metavar="COUNT",
                       help="further iterations whose results are checked (default: %(default)s)")
    group.add_argument("-T", "--timeout", type=whole(1), default=300, metavar="SECONDS",
                       help="longest time of one operation before the run is abandoned (default: %(default)s)")


def _add_further_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that nccl-tests does not have."""
    group = parser.add_argument_group("not in nccl-tests")
    group.add_argument("--nproc", type=whole(1), metavar="RANKS",
                       help="ranks to start (default: one for each core, 2 to 4); under torchrun, those that it "
                            "started")
    group.add_argument("--backend", type=_backends, default=["tutti"], metavar="NAMES",
                       help="backends of torch, such as tutti,gloo: measured turn by turn (default: tutti)")
    group.add_argument("--device", choices=("cpu", "cuda"), help="device of the tensors (default: cuda for nccl, "
                                                                 "else cpu)")
    group.add_argument("--shared", action="store_true",
                       help="allocate tensors in tutti's shared memory, as torch_tutti.empty does")
    group.add_argument("--no-bind", action="store_true",
                       help="do not bind every rank to a core of its own (done where there are enough cores)")


def _add_output(parser: argparse.ArgumentParser) -> None:
    """Adds the options of columns and files."""
    group = parser.add_argument_group("output")
    group.add_argument("--stats", action="store_true", help="columns for the median, the 99th percentile and the best")
    group.add_argument("-J", "--output_file", metavar="FILE", help="save everything in this file, as JSON")
    group.add_argument("--plot", type=picture, metavar="FILE", help=f"plot it into this file ({', '.join(PICTURES)})")


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Adds `bench` to the commands of `tutti`, and returns its parser. The parsed options have `what`, the chosen
    subcommand: the name of a collective, "all" or "compare". commands: the subparsers of argparse."""
    bench = commands.add_parser("bench", help="measure collectives of any backend, or compare saved files",
                                description="Measures collectives of torch.distributed; flags and columns are those of "
                                            "nccl-tests. Starts the ranks itself unless torchrun has done so.")
    names = bench.add_subparsers(dest="what", required=True, metavar="COLLECTIVE | all | compare",
                                 help=", ".join(COMMANDS))
    for name in (*COLLECTIVES, "all"):
        parser = names.add_parser(name, allow_abbrev=False, description=f"Measures {name}."
                                  if name != "all" else "Measures all collectives, one after the other.")
        for add_group in (_add_sizes, _add_operation, _add_measuring, _add_output, _add_further_options):
            add_group(parser)
    compare = names.add_parser("compare", help="saved files side by side", allow_abbrev=False)
    compare.add_argument("first", metavar="A.json", help="written by tutti bench -J")
    compare.add_argument("second", metavar="B.json", help="the ratio is its time ÷ that of A.json")
    compare.add_argument("--plot", type=picture, metavar="FILE", help="plot both into this file")
    return bench


def sizes(first: int | None, last: int | None, step: int, factor: int | None) -> list[int]:
    """Returns the sizes to measure, in bytes: from `first` to at most `last`, by adding `step`, or by multiplying with
    `factor` if that is not None. None: the default for `first` and `last`. Raises ValueError if there is no size or no
    end."""
    first = DEFAULT_BYTES if first is None else first
    last = max(DEFAULT_BYTES, first) if last is None else last
    if first > last:
        raise ValueError(f"-b {first} is more than -e {last}: the first size must not exceed the last")
    if first < last and (step if factor is None else first) == 0:
        raise ValueError("-i 0 never reaches -e" if factor is None else "-f needs a first size (-b) of at least 1")
    result = [first]
    while (next_size := result[-1] + step if factor is None else result[-1] * factor) <= last and first < last:
        result.append(next_size)
    return result
