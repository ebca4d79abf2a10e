"""The command `tutti`: shows and checks this machine, shows running jobs, schedules and traces, runs programs of other
backends on tutti, measures collectives and machine parameters, plans training, and prints the flags for a C
compiler."""
from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Sequence

from torch_tutti import _library, _run
from torch_tutti._bench.options import add_parser as add_bench
from torch_tutti._doctor.command import add_parser as add_doctor
from torch_tutti._grid_command import add_parser as add_grid
from torch_tutti._model.options import add_parser as add_model
from torch_tutti._pipeline_command import add_parser as add_pipeline
from torch_tutti._planning.command import add_parser as add_plan
from torch_tutti._status_command import add_parser as add_status
from torch_tutti._timeline import add_parser as add_zero


def _shown(value: Any) -> str:
    """Returns a value of `tutti info` as text: a list as its values with spaces between them."""
    if isinstance(value, list):
        return " ".join(map(_shown, value)) or "none"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return {"": "(empty)", "None": "none"}.get(str(value), str(value))


def _lines(value: dict[str, Any], indent: str = "") -> list[str]:
    """Returns nested dictionaries as indented lines."""
    lines: list[str] = []
    for key, item in value.items():
        if isinstance(item, dict):
            lines += [f"{indent}{key}", *_lines(item, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {_shown(item)}")
    return lines


def _setting(row: dict[str, Any]) -> str:
    """Returns the value of a setting as text, with the default if that differs. row: a setting of info()."""
    return row["value"] + ("" if row["value"] == row["default"] else f" (default: {_shown(row['default'])})")


# ---- the subcommands: each returns the exit code ----
def _info(arguments: argparse.Namespace) -> int:
    """Prints versions, machine, limits and settings."""
    info = _library.info()
    if arguments.json:
        print(json.dumps(info, indent=2))
    else:
        print("\n".join(_lines({**info, "settings": {row["name"]: _setting(row) for row in info["settings"]}})))
    return 0


def _config(arguments: argparse.Namespace) -> int:
    """Prints flags for a C compiler, or the folder of tutti.pc."""
    if arguments.pkgconfig:
        print(_library.pkgconfig_folder())
        return 0
    prints_both = arguments.cflags == arguments.libs
    print(_library.flags(prints_both or arguments.cflags, prints_both or arguments.libs))
    return 0


def _algorithms(_: argparse.Namespace) -> int:
    """Prints the algorithms of every collective."""
    for collective, names in _library.algorithms().items():
        print(f"{collective:16} {' '.join(names)}")
    return 0


def _schedule(arguments: argparse.Namespace) -> int:
    """Prints or draws the steps of an algorithm."""
    text = _library.schedule(arguments.collective, arguments.algorithm, arguments.ranks, arguments.root)
    if arguments.picture:
        from torch_tutti.picture import draw
        draw(text, arguments.picture)
    else:
        print(text, end="")
    return 0


def _run_program(arguments: argparse.Namespace) -> int:
    """Becomes the program, on tutti; does not return."""
    _run.run(arguments.backends, arguments.program, arguments.bind)
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    """Measures collectives, or compares saved files."""
    from torch_tutti._bench.command import main as measure
    return measure(arguments, arguments.words)


def _model(arguments: argparse.Namespace) -> int:
    """Shows predicted and measured times of algorithms."""
    from torch_tutti._model.command import main as measure
    return measure(arguments, arguments.words)


def _trace(arguments: argparse.Namespace) -> int:
    """Reads the traces of a folder; prints a report, or with --as and --out converts them for torchfrtrace. Raises
    ValueError if only one of these options is given."""
    from torch_tutti import _trace
    traces = _trace.read(arguments.folder, arguments.prefix)
    if arguments.backend is None and arguments.out is None:
        print(_trace.describe(traces) + ("\n" + _trace.describe_stacks(traces) if arguments.stacks else ""))
        return 0
    if arguments.backend is None or arguments.out is None:
        raise ValueError("trace: --as and --out must be given together")
    from torch_tutti._trace_export import export
    left_out = export(traces, arguments.backend, arguments.out)
    print(f"{len(traces.of_rank)} traces are in {arguments.out}"
          + (f", without sends and receives: {left_out}" if left_out else ""))
    return 0


def _add_trace(commands: Any) -> None:
    """Adds `trace` to the commands of `tutti`. commands: the subparsers of argparse."""
    trace = commands.add_parser(
        "trace", help="show which rank the others waited for, from the files of the flight recorder",
        description="When a group fails, each rank of a program that runs with TORCH_FR_BUFFER_SIZE=2000 and "
                    "TORCH_FR_DUMP_TEMP_FILE=FOLDER/trace_ writes its last operations into a file in FOLDER. This "
                    "command reads them and shows, for each group, how far every rank has come and what it was "
                    "doing; => marks what went wrong.")
    trace.add_argument("folder", help="folder of the files, one for each rank")
    trace.add_argument("--prefix", help="prefix of their names (default: the common prefix of all files)")
    trace.add_argument("--stacks", action="store_true", help="also the Python stacks of all threads at the failure")
    trace.add_argument("--as", dest="backend", metavar="BACKEND",
                       help="instead convert them for torch's own reader, torchfrtrace, as operations of a backend "
                            "that it knows, such as gloo")
    trace.add_argument("--out", metavar="FOLDER", help="folder for the converted files")
    trace.set_defaults(run=_trace)


def _add_schedule(commands: Any) -> None:
    """Adds `schedule` to the commands of `tutti`. commands: the subparsers of argparse."""
    schedule = commands.add_parser("schedule", help="print or draw the steps of an algorithm")
    schedule.add_argument("collective", help="such as allreduce")
    schedule.add_argument("algorithm", help="such as ring; see tutti algorithms")
    schedule.add_argument("--ranks", type=int, default=4, help="size of the group (default: 4)")
    schedule.add_argument("--root", type=int, default=0, help="of collectives that have one (default: 0)")
    schedule.add_argument("--picture", metavar="FILE", help="draw it into this file instead (.png, .svg or .pdf)")
    schedule.set_defaults(run=_schedule)


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands. Each command sets `run`, the function that runs it."""
    parser = argparse.ArgumentParser(
        prog="tutti", description="tutti is a communication backend for torch.distributed; a program uses it by "
                                  "init_process_group(\"tutti\"), without this command.",
        epilog="tutti COMMAND --help shows more about each.")
    parser.add_argument("--version", action="version", version=f"tutti {_library.version_of('torch-tutti')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    info = commands.add_parser("info", help="show versions, machine, limits and settings, for bug reports")
    info.add_argument("--json", action="store_true", help="as one JSON object")
    info.set_defaults(run=_info)
    commands.add_parser("algorithms", help="list the algorithms of every collective").set_defaults(run=_algorithms)
    _add_schedule(commands)
    run = commands.add_parser("run", usage=_run.USAGE, help="run a program that asks for nccl or gloo on tutti",
                              description="Runs a program and replaces the named backends by tutti.")
    run.add_argument("--backends", metavar="NAMES", default=_run.DEFAULT,
                     help="backends to replace (default: %(default)s)")
    run.add_argument("--bind", action="store_true", help="bind each rank of this host to cores of its own")
    run.set_defaults(run=_run_program)
    add_bench(commands).set_defaults(run=_bench)
    add_model(commands).set_defaults(run=_model)
    add_status(commands)
    add_doctor(commands)
    _add_trace(commands)
    add_plan(commands)
    add_grid(commands)
    add_pipeline(commands)
    add_zero(commands)
    config = commands.add_parser("config", help="print what a C compiler needs: cc program.c $(tutti config)",
                                 description="Prints what a C compiler needs for a program that includes tutti.h; both "
                                             "kinds of flags unless one is asked for.")
    config.add_argument("--cflags", action="store_true", help="print only the flags for tutti.h")
    config.add_argument("--libs", action="store_true", help="print only the flags for the library, at link time and "
                                                            "at run time")
    config.add_argument("--pkgconfig", action="store_true", help="print only the folder of tutti.pc, for "
                                                                 "PKG_CONFIG_PATH")
    config.set_defaults(run=_config)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command of these arguments; None: those of this process. Returns the exit code: 0 for success, 1 with a
    line on standard error for an error, or the code of the command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    program: list[str] = []
    if words[:1] == ["run"]:                            # arguments after the program belong to the program
        options, program = _run.split(words[1:])
        words = ["run", *options]
    elif words[:1] == ["doctor"] and "--" in words:
        words, program = words[:words.index("--")], words[words.index("--"):]
    chosen = _parser().parse_args(words)
    chosen.program, chosen.words = program, words
    try:
        return chosen.run(chosen)
    except (ValueError, NotImplementedError, ImportError, OSError) as error:
        print(f"tutti: {error}", file=sys.stderr)
        return 1
