"""All of an object's state as plain values, to see whether anything has changed."""

import pickle
import threading

import numpy as np
import pandas as pd

from skmahal.online._base import OnlineLearner


def snapshot(value, path="index"):
    """Every array, number and string reachable from `value`, by its path."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return {path: (value.dtype, value.shape, value.tobytes())}
    if isinstance(value, pd.DataFrame):
        return {path: value.to_csv()}
    if isinstance(value, OnlineLearner):
        # Its log has room to write to, which is not part of the state.
        return {path: (type(value), pickle.dumps(vars(value)))}
    if isinstance(value, np.random.Generator):
        return snapshot(value.bit_generator.state, path)
    if isinstance(value, dict):
        parts = [snapshot(part, f"{path}[{key!r}]") for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [snapshot(part, f"{path}[{i}]") for i, part in enumerate(value)]
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        attributes = vars(value).items()
        parts = [snapshot(part, f"{path}.{name}") for name, part in attributes]
    elif isinstance(value, type(threading.RLock())):
        return {}
    else:
        return {path: repr(value)}
    found = {path: type(value)}
    for part in parts:
        found.update(part)
    return found
