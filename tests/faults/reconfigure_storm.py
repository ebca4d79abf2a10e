"""Changes the members of groups at random: kills, starts and leaves out members, divides groups and merges them again.

    python tests/faults/reconfigure_storm.py --changes 300       300 changes; prints the seed
    python tests/faults/reconfigure_storm.py --seed 7            the same draws again
    python tests/faults/reconfigure_storm.py --hosts 2           over simulated hosts

Each change divides the living members into parts, and every member of a part calls torch_tutti.reconfigure with the
handles of that part, as a list in any order or as a set. Meanwhile a thread of each member makes all-reduces in the old
group, which a change must end. In some changes a member is killed before or while the others reconfigure.

Requirements: every member answers; without a kill every member joins, and its rank is the position of its handle in the
list; every sum is right; in the end no process, socket or file is left. A member that does not answer within LIMIT_S
counts as hung, and prints where its threads are. Nothing else is judged by time.

The parent has loaded torch but never used it, so it can fork members.
"""
import argparse
import ctypes
import faulthandler
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta

from store import serve_store
from traces import Traces

LIMIT_S = 60.0
# The timeouts of changes without a kill, and with a kill while members reconfigure.
QUIET_S, DISTURBED_S = 300, 3
MOST = 6
PR_SET_CHILD_SUBREAPER = 36


# ---- a member ----
class Adder(threading.Thread):
    """Makes all-reduces in the default group until the group ends, and keeps the first wrong sum. The group may stay
    the same object after a change, so that a late call would be one of the new members; so no call starts after
    stop()."""

    def __init__(self, rank, size):
        super().__init__(daemon=True)
        self.rank, self.size, self.wrong, self.sums = rank, size, "", 0
        self.added, self.starting, self.stopped = threading.Event(), threading.Lock(), False

    def start_sum(self, tensor, group):
        """Starts an all-reduce, and returns its Work, or None after stop()."""
        import torch.distributed as dist
        with self.starting:
            return None if self.stopped else dist.all_reduce(tensor, group=group, async_op=True)

    def stop(self):
        with self.starting:
            self.stopped = True

    def run(self):
        import torch
        import torch.distributed as dist
        expected = self.size * (self.size + 1) / 2
        group = dist.group.WORLD
        try:
            while (work := self.start_sum(x := torch.full((100,), self.rank + 1.), group)) is not None:
                work.wait()
                if x.tolist() != [expected] * len(x):
                    self.wrong = f"rank {self.rank} of {self.size} got the sum {x[0].item()}"
                    return
                self.sums += 1
                self.added.set()
                time.sleep(0.001)
        # The group has ended, or torch has made another one.
        except (dist.DistBackendError, ValueError):
            pass
        finally:
            self.added.set()


def join_alone(port):
    """Makes a group of this process alone, which can be reconfigured."""
    import torch
    import torch.distributed as dist

    import torch_tutti
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("tutti", store=store, rank=0, world_size=1, timeout=timedelta(seconds=QUIET_S),
                            pg_options=torch_tutti.Options(enable_reconfigure=True))


def change(uuid, handles, timeout_s, adder):
    """Reconfigures this member. Returns its new adder and its answer to the supervisor."""
    import torch.distributed as dist

    import torch_tutti
    if adder:
        adder.stop()
    try:
        torch_tutti.reconfigure(handles, uuid=uuid, timeout=timedelta(seconds=timeout_s))
    except Exception as error:
        return None, ("failed", f"{type(error).__name__}: {error}")
    finally:
        if adder:
            adder.join()
    if adder and adder.wrong:
        return None, ("wrong", adder.wrong)
    adder = Adder(dist.get_rank(), dist.get_world_size())
    adder.start()
    adder.added.wait()
    return adder, ("joined", adder.rank, adder.size, adder.sums)


def live(pipe, port):
    import torch.distributed as dist

    import torch_tutti
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    join_alone(port)
    adder = None
    while (task := pipe.recv()) is not None:
        if task == "handle":
            pipe.send(torch_tutti.reconfigure_handle())
        else:
            adder, answer = change(*task, adder)
            pipe.send(answer)
    if adder:
        adder.stop()
        dist.group.WORLD._get_backend(__import__("torch").device("cpu")).shutdown()
        adder.join()
    dist.destroy_process_group()


# ---- the supervisor ----
@dataclass
class Member:
    number: int
    process: int
    pipe: object
    handle: str = ""
    last: object = None


@dataclass
class Part:
    """Members that become one group, in the order of their ranks."""
    members: list
    ordered: bool
    uuid: int
    answers: dict = field(default_factory=dict)

    def arguments(self, timeout_s):
        handles = [member.handle for member in self.members]
        return self.uuid, handles if self.ordered else set(handles), timeout_s


class Hung(Exception):
    pass


class Storm:
    def __init__(self, chance, port, least):
        self.chance, self.port, self.least = chance, port, least
        self.members, self.started, self.uuid = [], 0, 0
        self.problems = []

    def start_member(self):
        ours, theirs = multiprocessing.Pipe()
        process = os.fork()
        if not process:
            code = 1
            try:
                for one in [ours, *(member.pipe for member in self.members)]:
                    one.close()
                live(theirs, self.port)
                code = 0
            except BaseException as error:
                print(f"member {self.started} ended: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(code)
        theirs.close()
        self.members.append(Member(self.started, process, ours))
        self.started += 1

    def kill(self, member):
        os.kill(member.process, signal.SIGKILL)
        os.waitpid(member.process, 0)
        member.pipe.close()
        self.members.remove(member)

    def ask(self, member):
        """Returns the next answer of a member."""
        if not member.pipe.poll(LIMIT_S):
            raise Hung(f"no answer from member {member.number} (process {member.process}) in {LIMIT_S:.0f} s")
        try:
            return member.pipe.recv()
        except EOFError:
            raise Hung(f"member {member.number} (process {member.process}) has ended") from None

    def draw_parts(self):
        order = self.chance.sample(self.members, len(self.members))
        most = max(1, len(order) // self.least)
        count = min(most, self.chance.choice([1, 1, 1, 2, 2, 3]))
        bounds = sorted(self.chance.sample(range(1, len(order) // self.least), count - 1)) if count > 1 else []
        bounds = [0, *(bound * self.least for bound in bounds), len(order)]
        # Parts have no common members, so all of them may have the same uuid.
        self.uuid += 1
        return [Part(order[a:b], self.chance.random() < 0.7, self.uuid) for a, b in zip(bounds, bounds[1:])]

    def change(self):
        """Draws one change, makes it, and judges the answers."""
        kill = self.chance.choice(["", "", "before", "while"]) if len(self.members) > max(2, self.least) else ""
        victim = self.chance.choice(self.members) if kill else None
        if kill == "before":
            self.kill(victim)
        while len(self.members) < max(2, self.least) or (len(self.members) < MOST and self.chance.random() < 0.4):
            self.start_member()
        for member in self.members:
            member.pipe.send("handle")
        for member in self.members:
            member.handle = self.ask(member)
        parts = self.draw_parts()
        self.what = f"kill: {kill or 'none'}, parts {[[one.number for one in part.members] for part in parts]}"
        for part in parts:
            for member in self.chance.sample(part.members, len(part.members)):
                member.pipe.send(part.arguments(DISTURBED_S if kill == "while" else QUIET_S))
        if kill == "while":
            time.sleep(self.chance.choice([0, 0.002, 0.01, 0.03]) * self.chance.random())
            self.kill(victim)
        for part in parts:
            self.judge(part, disturbed=kill == "while" and victim in part.members)
        return kill, len(parts)

    def judge(self, part, disturbed):
        for rank, member in enumerate(part.members):
            if member not in self.members:
                continue
            answer = member.last = self.ask(member)
            expected = ("joined", rank, len(part.members)) if part.ordered else ("joined",)
            if answer[:len(expected)] == expected or (disturbed and answer[0] == "failed"):
                continue
            self.problems.append(f"member {member.number}, rank {rank} of {len(part.members)}: {answer}")
        ranks = sorted(member.last[1] for member in part.members if member.last and member.last[0] == "joined")
        if not disturbed and not self.problems and ranks != list(range(len(part.members))):
            self.problems.append(f"the ranks of {len(part.members)} members are {ranks}")

    def end(self):
        for member in self.members:
            member.pipe.send(None)
        for member in self.members:
            deadline = time.monotonic() + LIMIT_S
            while not os.waitid(os.P_PID, member.process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if time.monotonic() > deadline:
                    raise Hung(f"member {member.number} (process {member.process}) does not end")
                time.sleep(0.01)
            code = os.waitstatus_to_exitcode(os.waitpid(member.process, 0)[1])
            member.pipe.close()
            if code:
                self.problems.append(f"member {member.number} ended with {code}")
        self.members = []

    def show_threads(self):
        for member in self.members:
            print(f"member {member.number}, process {member.process}:", file=sys.stderr, flush=True)
            os.kill(member.process, signal.SIGUSR1)
            time.sleep(0.5)


def parse():
    parser = argparse.ArgumentParser(description="Change the members of groups at random and judge the results.")
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--hosts", type=int, default=1, help="the number of simulated hosts")
    parser.add_argument("--verbose", action="store_true", help="print every change")
    return parser.parse_args()


def run(options, folder):
    os.environ["TUTTI_HOSTS"] = str(options.hosts) if options.hosts > 1 else ""
    port = serve_store()
    traces, counts = Traces(folder), {}
    # A simulated host needs a rank.
    storm = Storm(random.Random(options.seed), port, options.hosts)
    try:
        for number in range(options.changes):
            kill, parts = storm.change()
            counts[kill] = counts.get(kill, 0) + 1
            if options.verbose or storm.problems:
                print(f"change {number}: {storm.what}", flush=True)
            if storm.problems:
                break
        storm.end()
    except Hung as hung:
        storm.problems.append(f"{hung}; {getattr(storm, 'what', '')}")
        storm.show_threads()
        for member in list(storm.members):
            storm.kill(member)
    if left := traces.left():
        storm.problems.append("left behind: " + ", ".join(left))
    return counts, storm.problems


def main():
    options = parse()
    import torch.distributed  # noqa: F401  (loaded, not used)
    import torch_tutti._C  # noqa: F401
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    print(f"seed {options.seed}", flush=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        counts, problems = run(options, folder)
        os.chdir("/")
    kills = ", ".join(f"{count} with {f'a kill {kill}' if kill else 'no kill'}" for kill, count in counts.items())
    print(f"{sum(counts.values())} changes in {time.monotonic() - begin:.0f} s ({kills}), {len(problems)} problems")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
