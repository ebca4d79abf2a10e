"""Computes the results of reductions to the last bit, as kernels/reduce.h promises them, one rank after the other.

Inputs are combined in the order of the ranks; 16-bit and 8-bit floats in float32, rounded once, at the end; an average
is divided once; a NaN that was computed is the positive one without payload; -0 is smaller than +0; integers wrap. Over
two simulated hosts (TUTTI_HOSTS) the result of each host's ranks is rounded, and then the result of both. Tensors are
bytes here (arrays of uint8), types and operations are named as torch names them.
"""
from functools import reduce

import numpy
import torch

from ranks import hosts_of_job

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
COMPLEX = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}
MOVED_ONLY = ["float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "bits8", "bits16"]
DTYPES = [*FLOATS, *INTEGERS, "bool", *COMPLEX, *MOVED_ONLY]
BITWISE = ["BAND", "BOR", "BXOR"]
OPS = ["SUM", "AVG", "MIN", "MAX", "PRODUCT", "PREMUL_SUM", *BITWISE]
# The factor of PREMUL_SUM, which no type represents exactly.
FACTOR = 0.3
# Floats of these types are combined in their own type, all others in float32.
NUMBERS = {"float32": numpy.float32, "float64": numpy.float64}
BITS = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32, 8: numpy.uint64}
NAN = {"float64": 0x7ff8 << 48, "float32": 0x7fc0 << 16, "float16": 0x7e00, "bfloat16": 0x7fc0, "float8_e4m3fn": 0x7f,
       "float8_e5m2": 0x7f}


def itemsize(dtype):
    return getattr(torch, dtype).itemsize


def raw(tensor):
    return tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else numpy.empty(0, numpy.uint8)


def undefined(dtype, op):
    """Returns the errors that refuse a reduction, as (class, piece of its text); [] if it is defined."""
    if dtype in MOVED_ONLY:
        return [("NotImplementedError", "not reduced")]
    if dtype in COMPLEX:
        return [] if op in ("SUM", "AVG", "PREMUL_SUM") else [("ValueError", "complex")]
    if (op in BITWISE and dtype in FLOATS) or (op == "AVG" and dtype == "bool") or \
            (op == "PREMUL_SUM" and dtype not in FLOATS):
        return [("ValueError", dtype)]
    return []


def hosts_of(ranks, size):
    """Returns the simulated host of each of these ranks of a job of `size` ranks."""
    hosts = hosts_of_job(size)
    return [hosts[rank] for rank in ranks]


def by_host(parts, hosts):
    return [[part for part, at in zip(parts, hosts) if at == host] for host in dict.fromkeys(hosts)]


def reduced(parts, dtype, op, hosts=None):
    """Returns the parts of all ranks combined, as bytes. hosts: the host of each rank; None: the ranks
    are a whole job, and TUTTI_HOSTS decides."""
    if dtype in COMPLEX:
        return reduced(parts, COMPLEX[dtype], op, hosts)
    if not len(parts[0]):
        return parts[0]
    with numpy.errstate(all="ignore"):
        if op == "PREMUL_SUM":
            parts = [scaled(part, dtype) for part in parts]
        of_hosts, divisor = by_host(parts, hosts or hosts_of(range(len(parts)), len(parts))), len(parts)
        if len(of_hosts) > 1:
            parts = [combined(of_host, dtype, "SUM" if op == "AVG" else op, 1) for of_host in of_hosts]
        return combined(parts, dtype, op, divisor)


def combined(parts, dtype, op, divisor):
    if len(parts) == 1:
        return parts[0]
    if dtype == "bool":
        return reduced_bools(numpy.stack(parts) != 0, op).view(numpy.uint8)
    if dtype in INTEGERS:
        return reduced_integers([part.view(dtype) for part in parts], op, divisor).view(numpy.uint8)
    total = reduce(COMBINE[op], [widened(part, dtype) for part in parts])
    return narrowed(total / total.dtype.type(divisor) if op == "AVG" else total, dtype)


def reduced_bools(stack, op):
    if op == "BXOR":
        return stack.sum(0) % 2 == 1
    return stack.any(0) if op in ("SUM", "MAX", "BOR") else stack.all(0)


def reduced_integers(parts, op, divisor):
    """Integers wrap; an average is the wrapped sum divided towards zero."""
    names = {"SUM": numpy.add, "AVG": numpy.add, "PRODUCT": numpy.multiply, "MIN": numpy.minimum, "MAX": numpy.maximum,
             "BAND": numpy.bitwise_and, "BOR": numpy.bitwise_or, "BXOR": numpy.bitwise_xor}
    total = reduce(names[op], parts)
    if op != "AVG":
        return total
    divisor = total.dtype.type(divisor)
    return (total - numpy.fmod(total, divisor)) // divisor


def smaller(a, b):
    """Returns the smaller of each two numbers: NaN if one of them is NaN, and -0 of -0 and +0."""
    chosen = numpy.where((a < b) | ((a == b) & numpy.signbit(a)), a, b)
    return numpy.where(numpy.isnan(a) | numpy.isnan(b), a.dtype.type("nan"), chosen)


COMBINE = {"SUM": numpy.add, "AVG": numpy.add, "PREMUL_SUM": numpy.add, "PRODUCT": numpy.multiply, "MIN": smaller,
           "MAX": lambda a, b: -smaller(-a, -b)}


def widened(part, dtype):
    """Returns a part as an array of the type in which it is computed."""
    if dtype in NUMBERS:
        return part.view(NUMBERS[dtype])
    return torch.from_numpy(part.copy()).view(getattr(torch, dtype)).to(torch.float32).numpy()


def narrowed(values, dtype):
    """Returns the values as bytes of this type, rounded once, to nearest even. Every NaN gets the same bits."""
    bits = raw(torch.from_numpy(values).to(getattr(torch, dtype))).view(BITS[itemsize(dtype)])
    return numpy.where(numpy.isnan(values), bits.dtype.type(NAN[dtype]), bits).view(numpy.uint8)


def scaled(part, dtype):
    values = widened(part, dtype)
    return narrowed(values * values.dtype.type(FACTOR), dtype)
