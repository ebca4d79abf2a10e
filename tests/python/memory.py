"""Finds whether a tensor is in tutti's shared memory."""


def is_shared(tensor):
    """Returns whether the tensor's memory is a mapping of tutti."""
    if not tensor.numel():
        return False
    with open("/proc/self/maps", encoding="ascii") as file:
        for line in file:
            begin, _, end = line.split()[0].partition("-")
            if int(begin, 16) <= tensor.data_ptr() < int(end, 16):
                return "tutti" in line
    return False
