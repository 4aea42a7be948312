"""How much memory an object's arrays take."""

import numpy as np


def held_bytes(root):
    """Bytes of all arrays that can be reached from an object, each buffer once."""
    seen, total, stack = {}, 0, [root]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        # Kept, so that no identity is used twice.
        seen[id(item)] = item
        if isinstance(item, np.ndarray):
            if isinstance(item.base, np.ndarray):
                stack.append(item.base)
            else:
                total += item.nbytes
        else:
            stack += _inside(item)
    return total


def _inside(item):
    """What an object refers to, as far as it may hold arrays."""
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, list | tuple | set | frozenset):
        return list(item)
    if isinstance(item, type) or not type(item).__module__.startswith("skmahal"):
        return []
    slots = [getattr(item, name, None) for name in getattr(item, "__slots__", ())]
    return [*vars(item).values(), *slots] if hasattr(item, "__dict__") else slots
