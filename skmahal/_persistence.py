"""Estimators in files: which release wrote one, and whether it is whole."""

from sklearn.base import BaseEstimator

from skmahal._core.saved import expecting, opened, require, stamped


class Persistent(BaseEstimator):
    """An estimator whose state is made of plain values, and is looked at when it loads.

    Subclasses turn what they hold into plain values in `_saved(state)`, which gets a
    copy of the attributes and returns it changed, and back in `_restored(state)`.
    """

    def __getstate__(self):
        return stamped(self._saved(dict(super().__getstate__())))

    def __setstate__(self, state):
        kind = type(self).__name__
        state = opened(kind, state)
        with expecting(kind):
            state = self._restored(state)
        super().__setstate__(state)

    def __copy__(self):
        """Another estimator with the same attributes, as of any object."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def _saved(self, state):
        return state

    def _restored(self, state):
        return state


def require_width(state, d):
    """Refuse attributes of an estimator that was not fitted with d features."""
    require(state["n_features_in_"] == d, f"n_features_in_ is not {d}")
    names = state.get("feature_names_in_")
    require(names is None or names.shape == (d,), f"there are not {d} feature names")
