"""Runs torch's DistributedTest in some ways, stores the results and prints a summary. If all cases of all ways were
asked for, it also writes docs/conformance.md."""
from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
from pathlib import Path

from conformance import report, results, ways

ROOT = results.HERE.parents[1]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/conformance", formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__ + "\n\n"
        "Cases with a stored result are not run again, unless tutti has changed. Several runners may share\n"
        "the work.\n\n" + "\n".join(
            f"  {way.name:8} {way.title}: the tests read {way.declared!r}, and {way.runs} runs"
            for way in ways.WAYS.values()))
    parser.add_argument("--way", action="append", choices=list(ways.WAYS), help="only this way; may be repeated")
    parser.add_argument("--select", default="*", metavar="PATTERN",
                        help="only cases whose name matches, as in 'test_all_reduce*'")
    parser.add_argument("--jobs", type=int, default=min(8, len(os.sched_getaffinity(0))), metavar="N",
                        help="cases at a time, of four processes each, which wait most of the time\n"
                        "(default: the number of processors, 8 at most)")
    parser.add_argument("--spawn", action="store_true",
                        help="start every rank in a new interpreter, as torch does, which takes many times as long")
    parser.add_argument("--hosts", default="", metavar="HOSTS",
                        help="run the ranks on simulated hosts, as in TUTTI_HOSTS: 2, or 0,1,0,1. Every case must\n"
                        "end as on one host, where cases without a stored result are run, too")
    parser.add_argument("--again", action="store_true", help="also run cases with a stored result")
    return parser.parse_args()


def run_way(way: ways.Way, options: argparse.Namespace, folder: Path, hosts: str, again: bool) -> None:
    """Runs one way, in a process of its own, because torch's module reads the way when it is imported."""
    os.environ.update(ways.environment(way, options.spawn, hosts))
    from conformance import suite
    from conformance.runner import Runner
    Runner(suite, way, folder, options.select, options.jobs, again).run()


def run_ways(chosen: list[ways.Way], options: argparse.Namespace, folder: Path, hosts: str, again: bool) -> None:
    for way in chosen:
        process = multiprocessing.get_context("fork").Process(target=run_way, args=(way, options, folder, hosts, again))
        process.start()
        try:
            process.join()
        finally:
            # This does nothing if the process has ended.
            process.terminate()
        if process.exitcode:
            sys.exit(f"error: the run of the way {way.name} failed; see above")


def main() -> int:
    options = arguments()
    # An exit, unlike the signal itself, ends all processes that were started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: ended by SIGTERM"))
    folder = ROOT / "build" / "conformance"
    chosen = [ways.WAYS[name] for name in options.way or ways.WAYS]
    if options.hosts:
        apart = folder / f"hosts-{options.hosts}"
        ours = [way for way in chosen if way.runs == "tutti"]
        run_ways(ours, options, folder, "", again=False)
        run_ways(ours, options, apart, options.hosts, options.again)
        status = report.print_summary(apart, ours, options.select)
        return report.print_differences(folder, apart, ours, options.select) or status
    run_ways(chosen, options, folder, "", options.again)
    if not options.way and options.select == "*":
        report.write(folder, ROOT / "docs" / "conformance.md")
    return report.print_summary(folder, chosen, options.select)


if __name__ == "__main__":
    sys.exit(main())
