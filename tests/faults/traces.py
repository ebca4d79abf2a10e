"""Traces that a killed job may leave behind: processes, names in /dev/shm, sockets, files, descriptors of the
parent."""
import contextlib
import os
import time
from pathlib import Path

# The kernel removes the traces of a killed process a moment after its death.
GRACE_S = 2.0


def names_in_shared_memory():
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def sockets():
    """Returns the inodes of the abstract sockets whose names begin with tutti."""
    rows = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return {row[6] for row in rows if len(row) > 7 and row[7].startswith("@tutti")}


def holds(process, inode):
    try:
        links = [os.readlink(f"/proc/{process}/fd/{name}") for name in os.listdir(f"/proc/{process}/fd")]
    # The process has ended or closed a descriptor meanwhile.
    except OSError:
        return False
    return f"socket:[{inode}]" in links


def owners(inode):
    """Returns the processes that hold this socket."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit() and holds(name, inode)}


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def children():
    """Returns the running children of this process, after it has reaped those that have ended. The storm is a
    subreaper, so processes that its ranks started and left become its children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return {int(name) for name in os.listdir("/proc") if name.isdigit() and parent_of(name) == os.getpid()}


def parent_of(process):
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    # The process has ended meanwhile.
    except OSError:
        return None


class Traces:
    """The names, sockets, descriptors and children before a cycle, which are no traces of it. Sockets that another job
    on this machine holds do not count."""

    def __init__(self, folder):
        self.folder = folder
        self.names, self.sockets, self.descriptors = names_in_shared_memory(), sockets(), descriptors()
        self.children = children()

    def left_now(self):
        found = [f"/dev/shm/{name}" for name in names_in_shared_memory() - self.names]
        found += [f"socket {inode}" for inode in sockets() - self.sockets if owners(inode) <= {os.getpid()}]
        found += [f"file {name}" for name in os.listdir(self.folder)]
        if descriptors() > self.descriptors:
            found.append("a descriptor of the parent")
        if children() - self.children:
            found.append("a process")
        return found

    def left(self):
        """Returns the traces that stay for GRACE_S. Traces that appear later or go belong to another job."""
        found, deadline = self.left_now(), time.monotonic() + GRACE_S
        while found and time.monotonic() < deadline:
            time.sleep(0.02)
            now = self.left_now()
            found = [one for one in found if one in now]
        return found
