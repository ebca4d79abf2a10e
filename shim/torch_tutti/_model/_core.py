"""Gets the core's predictions for a group, by ctypes. No function communicates."""
from __future__ import annotations

import ctypes
import json
from typing import Any

from torch_tutti._library import _check, _library, _text


class _Prediction(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("algorithm", ctypes.c_char_p), ("ns", ctypes.c_double),
                ("tile_bytes", ctypes.c_size_t), ("slots", ctypes.c_int), ("candidate", ctypes.c_bool)]


def predict(backend: Any, collective: str, algorithm: str, size: int) -> dict[str, Any]:
    """Predicts the algorithm and the time of a collective. Returns the fields of tutti_prediction.

    backend: a group's ProcessGroupTutti. algorithm: a name, or empty for the core's choice. size: bytes of a rank's
    larger buffer. Raises ValueError, with the nearest name, for an unknown name, and for an algorithm that the hosts of
    the group do not allow."""
    prediction = _Prediction(ctypes.sizeof(_Prediction))
    _check(_library().tutti_comm_predict(ctypes.c_void_p(backend._communicator), collective.encode(),
                                         algorithm.encode() or None, ctypes.c_size_t(size), ctypes.byref(prediction)))
    return {"algorithm": prediction.algorithm.decode(), "ns": prediction.ns, "tile_bytes": prediction.tile_bytes,
            "slots": prediction.slots, "candidate": prediction.candidate}


def machine_parameters(backend: Any) -> dict[str, Any]:
    """Returns the machine parameters of a group, from which the core predicts times and chooses algorithms."""
    return json.loads(_text(_library().tutti_comm_info, ctypes.c_void_p(backend._communicator)))
