"""Runs torch's DistributedTest in some ways, keeps the results, and says what came of them. When all cases of all
ways were asked for, it writes docs/conformance.md as well."""
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
        "Cases whose results are known are not run again, unless tutti has changed, and several runners\n"
        "may share the work.\n\n" + "\n".join(
            f"  {way.name:8} {way.title}: the tests read {way.declared!r}, and {way.runs} runs"
            for way in ways.WAYS.values()))
    parser.add_argument("--way", action="append", choices=list(ways.WAYS), help="only this way; may be repeated")
    parser.add_argument("--select", default="*", metavar="PATTERN",
                        help="only cases whose name matches, as in 'test_all_reduce*'")
    parser.add_argument("--jobs", type=int, default=min(8, len(os.sched_getaffinity(0))), metavar="N",
                        help="cases at a time, of four processes each, which wait most of the time\n"
                        "(default: as many as processors, 8 at most)")
    parser.add_argument("--spawn", action="store_true",
                        help="start every rank as a fresh interpreter, as torch does, which takes many times as long")
    parser.add_argument("--hosts", default="", metavar="HOSTS",
                        help="the ranks pretend to be on several hosts, as in TUTTI_HOSTS: 2, or 0,1,0,1;\n"
                        "every case must end as it does on one host, where those not known are run, too")
    parser.add_argument("--again", action="store_true", help="run the cases whose results are known, too")
    return parser.parse_args()


def run_way(way: ways.Way, options: argparse.Namespace, folder: Path, hosts: str, again: bool) -> None:
    """In a process of its own, because torch's module reads the way when it is imported."""
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
            process.terminate()                 # does nothing when it has ended
        if process.exitcode:
            sys.exit(f"error: the way {way.name} did not come to its end; see above")


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: told to end"))        # so that all that was started ends
    folder = ROOT / "build" / "conformance"
    chosen = [ways.WAYS[name] for name in options.way or ways.WAYS]
    if options.hosts:
        apart = folder / f"hosts-{options.hosts}"
        ours = [way for way in chosen if way.runs == "tutti"]
        run_ways(ours, options, folder, "", again=False)
        run_ways(ours, options, apart, options.hosts, options.again)
        status = report.tell(apart, ours, options.select)
        return report.tell_differences(folder, apart, ours, options.select) or status
    run_ways(chosen, options, folder, "", options.again)
    if not options.way and options.select == "*":
        report.write(folder, ROOT / "docs" / "conformance.md")
    return report.tell(folder, chosen, options.select)


if __name__ == "__main__":
    sys.exit(main())
