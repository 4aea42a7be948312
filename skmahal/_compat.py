"""Private or versioned APIs of other libraries, which no other file imports."""

import sys
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from functools import wraps
from importlib import import_module
from inspect import signature
from typing import Any, TypeVar

from sklearn.base import _fit_context
from sklearn.neighbors._base import KNeighborsMixin, RadiusNeighborsMixin
from sklearn.utils import check_array, metaestimators
from sklearn.utils._param_validation import HasMethods, Interval, Options, StrOptions

__all__ = [
    "CallbackSupport",
    "HasMethods",
    "Interval",
    "KNeighborsMixin",
    "Options",
    "RadiusNeighborsMixin",
    "StrOptions",
    "available_if",
    "enable_metric_learn",
    "fit_context",
    "fit_task",
    "fit_tasks",
]

# Where metric-learn 0.7 calls scikit-learn's validation, and its base class.
_VALIDATION = {
    "metric_learn._util": ("check_array", "check_X_y"),
    "metric_learn.itml": ("check_array",),
    "metric_learn.scml": ("check_array",),
}
_BASE = ("metric_learn.base_metric", "BaseMetricLearner")
_MARK = "_changed_by_skmahal"


Method = TypeVar("Method", bound=Callable[..., Any])


def fit_context(*, prefer_skip_nested_validation: bool) -> Callable[[Method], Method]:
    """scikit-learn's decorator of `fit`, which keeps the types of the method."""
    return _fit_context(prefer_skip_nested_validation=prefer_skip_nested_validation)


def available_if(check: Callable[[Any], bool]) -> Callable[[Method], Method]:
    """scikit-learn's decorator of methods, which keeps the types of the method."""
    return metaestimators.available_if(check)


def _imported(module, name):
    """An attribute of a module, or None if there is no such module or attribute."""
    try:
        return getattr(import_module(module), name, None)
    except ModuleNotFoundError:
        return None


# Callbacks are new in scikit-learn 1.9. Before, no estimator has any.
CallbackSupport: Any = _imported("sklearn.callback", "CallbackSupportMixin")
CallbackSupport = CallbackSupport or type("CallbackSupport", (), {})
_with_callbacks: Any = _imported("sklearn.callback", "with_callbacks")


@contextmanager
def fit_tasks(estimator, most, X=None, y=None):
    """Show callbacks a `fit` that consists of up to `most` tasks, in this context."""
    if not hasattr(estimator, "_skl_callbacks"):
        yield
        return
    try:
        fit = estimator._init_callback_context(max_subtasks=most)
        fit.call_on_fit_task_begin(estimator=estimator, X=X, y=y)
        yield
        fit.call_on_fit_task_end(estimator=estimator, X=X, y=y)
    finally:
        # A method that does nothing, after which the decorator ends the callbacks.
        _with_callbacks(lambda estimator: None)(estimator)


class fit_task:
    """Show callbacks one task of a `fit`, in this context.

    `stop` says afterwards whether a callback has requested the end of a loop.
    """

    def __init__(self, estimator, name):
        fit = getattr(estimator, "_callback_fit_ctx", None)
        self.estimator, self.stop = estimator, False
        self.context = fit and fit.subcontext(task_name=name)

    def __enter__(self):
        if self.context is not None:
            self.context.call_on_fit_task_begin(estimator=self.estimator)
        return self

    def __exit__(self, kind, error, traceback):
        if self.context is not None and kind is None:
            self.stop = self.context.call_on_fit_task_end(estimator=self.estimator)

    def within(self, other):
        """A context in which the `fit` of another estimator is shown in this task."""
        if self.context is None or not hasattr(other, "set_callbacks"):
            return nullcontext()
        return self.context.propagate_callback_context(other)


def import_optional(name, extra, purpose):
    """Import an optional dependency, or say how to install it.

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


def enable_metric_learn() -> bool:
    """Let metric-learn 0.7 run on scikit-learn 1.8 and later, and in grid searches.

    metric-learn 0.7.0 passes `force_all_finite` to scikit-learn's validation, which
    does not accept it since 1.8. This function translates the keyword to
    `ensure_all_finite` inside metric-learn, and nowhere else.

    Learners of metric-learn cannot be cloned after they were pickled, so that a grid
    search with several processes fails. This function changes how they are pickled: a
    learner can then be cloned, and loading it calls this function, which is possible
    only where skmahal is installed. Importing skmahal changes nothing.

    Returns
    -------
    changed : bool
        Whether this call changed metric-learn; False if an earlier call did. O(1).

    Examples
    --------
    >>> import skmahal
    >>> changed = skmahal.enable_metric_learn()  # before metric-learn is used
    >>> skmahal.enable_metric_learn()  # one call is enough
    False
    """
    import_optional("metric_learn", "metric-learn", "enable_metric_learn")
    changed = False
    if "force_all_finite" not in signature(check_array).parameters:
        places = [(place, name) for place in _VALIDATION for name in _VALIDATION[place]]
        for module, name in places:
            validate = _imported(module, name)
            if validate is not None and not hasattr(validate, _MARK):
                setattr(sys.modules[module], name, _translated(validate))
                changed = True
    learner = _imported(*_BASE)
    if learner is not None and not hasattr(learner, _MARK):
        learner.__reduce_ex__, learner.__setstate__ = _reduce, _set_state(learner)
        setattr(learner, _MARK, True)
        changed = True
    return changed


def _translated(validate):
    """`validate` with `force_all_finite` as another name of `ensure_all_finite`."""

    @wraps(validate)
    def translated(*args, **kwargs):
        if "force_all_finite" in kwargs:
            kwargs["ensure_all_finite"] = kwargs.pop("force_all_finite")
        return validate(*args, **kwargs)

    setattr(translated, _MARK, True)
    return translated


def _reduce(learner, protocol):
    """Pickle a learner of metric-learn so that loading it calls :func:`new_learner`."""
    _, args, *state = object.__reduce_ex__(learner, max(2, protocol))
    return (new_learner, args, *state)


def new_learner(kind):
    """An instance of a class of metric-learn, which is enabled first, to unpickle."""
    enable_metric_learn()
    return kind.__new__(kind)


def _set_state(learner):
    """`__setstate__` for a class, which makes strings identical to equal literals."""
    # The constructors of metric-learn store the literal "deprecated" in place of an
    # equal string, and `clone` takes another object for a change.
    inherited = learner.__setstate__

    @wraps(inherited)
    def set_state(self, state):
        plain = {k: sys.intern(v) for k, v in state.items() if type(v) is str}
        inherited(self, {**state, **plain})

    return set_state
