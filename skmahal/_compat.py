"""Private or versioned APIs of other libraries, gathered in one place.

The rest of the package imports these names from here, so that a change in a
dependency is answered in one file.
"""

import sys
from functools import wraps
from importlib import import_module
from inspect import signature

from sklearn.base import _fit_context as fit_context
from sklearn.utils import check_array
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

__all__ = ["HasMethods", "Interval", "StrOptions", "enable_metric_learn", "fit_context"]

# Where metric-learn 0.7 calls scikit-learn's validation.
_VALIDATION = {
    "metric_learn._util": ("check_array", "check_X_y"),
    "metric_learn.itml": ("check_array",),
    "metric_learn.scml": ("check_array",),
}
_MARK = "_knows_force_all_finite"


def import_optional(name, extra, purpose):
    """Import an optional dependency, or say how to install it.

    Examples
    --------
    >>> import_optional("no_such_module", "plot", "plotting")
    Traceback (most recent call last):
    ...
    ImportError: plotting needs no_such_module: pip install 'skmahal[plot]'.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        hint = f"pip install 'skmahal[{extra}]'"
        raise ImportError(f"{purpose} needs {name}: {hint}.") from error


def enable_metric_learn():
    """Let metric-learn 0.7 run on scikit-learn 1.8 and later.

    metric-learn 0.7.0 passes `force_all_finite` to scikit-learn's validation, which 1.8
    no longer knows. This replaces the validation functions inside metric-learn, and
    nowhere else, by ones that translate the keyword to `ensure_all_finite`. Where
    scikit-learn still knows it, or metric-learn no longer uses these functions, nothing
    is changed. Importing skmahal never changes anything.

    An estimator of skmahal with a learner of metric-learn takes the call along when it
    is pickled, so that a search with many processes needs no more.

    Returns
    -------
    changed : bool
        Whether metric-learn was changed by this call. O(1).

    Raises
    ------
    ImportError
        If metric-learn is not installed.

    Examples
    --------
    >>> import skmahal
    >>> changed = skmahal.enable_metric_learn()  # before metric-learn is used
    >>> skmahal.enable_metric_learn()  # once is enough
    False
    """
    import_optional("metric_learn", "metric-learn", "enable_metric_learn")
    if "force_all_finite" in signature(check_array).parameters:
        return False
    return any([_translate_in(*place) for place in _VALIDATION.items()])


def metric_learn_is_enabled():
    """Whether :func:`enable_metric_learn` has changed anything in this process."""
    return any(
        hasattr(getattr(sys.modules.get(module), name, None), _MARK)
        for module, names in _VALIDATION.items()
        for name in names
    )


def _translate_in(module, names):
    """Replace validation functions of a module; whether any was not yet replaced."""
    try:
        module = import_module(module)
    except ModuleNotFoundError:
        return False
    held = {name: getattr(module, name, None) for name in names}
    stale = {
        name: validate
        for name, validate in held.items()
        if validate is not None and not hasattr(validate, _MARK)
    }
    for name, validate in stale.items():
        setattr(module, name, _translated(validate))
    return bool(stale)


def _translated(validate):
    """`validate` that takes `force_all_finite` for `ensure_all_finite`."""

    @wraps(validate)
    def translated(*args, **kwargs):
        if "force_all_finite" in kwargs:
            kwargs["ensure_all_finite"] = kwargs.pop("force_all_finite")
        return validate(*args, **kwargs)

    setattr(translated, _MARK, True)
    return translated
