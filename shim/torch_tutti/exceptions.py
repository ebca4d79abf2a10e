"""Errors of failed operations. All are `torch.distributed.DistBackendError`, so code written for other backends catches
them, too. Wrong arguments raise the builtin ValueError or NotImplementedError instead and leave the group unchanged.
After any of the errors here, except ResultError, every further call on the group raises the same error, until its
members reconfigure it (`torch_tutti.reconfigure`) or destroy it.
"""
from torch.distributed import DistBackendError


class Error(DistBackendError):
    """Something went wrong with a tutti group."""


class TimeoutError(Error):
    """An operation, or joining, did not finish in time. The text names the ranks that did not come."""


class MismatchError(Error):
    """Ranks called different operations, or the same with different counts, types, roots or reductions. The text
    shows both calls."""


class PeerError(Error):
    """A rank of the group died or left. The text names it."""


class AbortedError(Error):
    """The group was aborted, on this rank or another, or this rank has shut it down or is changing its members."""


class ForkedError(Error):
    """A child process used a group of its parent. Make a group in the child."""


class SystemError(Error):
    """The operating system refused something that tutti needs: a thread, a socket, shared memory."""


class ResultError(Error):
    """TUTTI_DEBUG has found NaN in the input of a reduction, or results that differ between ranks. The text names the
    operation and the ranks. The group stays usable if a blocking call raised it on all ranks."""


class InternalError(Error):
    """A fault of tutti itself. Please report it with the text."""


# The exception for every error of the core, by its number (tutti_status of include/tutti.h).
_BY_STATUS: dict[int, type[Exception]] = {
    -1: ValueError, -2: NotImplementedError, -3: MemoryError, -4: SystemError, -5: TimeoutError, -6: MismatchError,
    -7: PeerError, -8: AbortedError, -9: ForkedError, -10: InternalError,
}
