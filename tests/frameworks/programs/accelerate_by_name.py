"""Gives Accelerate the backend's name, as its documentation says."""
from accelerate import Accelerator, InitProcessGroupKwargs

Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="tutti")])
