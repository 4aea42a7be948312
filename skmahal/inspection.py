"""How good an index is: what its methods say of that, and a picture of it."""

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ._compat import import_optional
from ._core.audit import Audit, PairAudit
from ._core.guarantee import Failures, Guarantee

__all__ = ["Audit", "Failures", "Guarantee", "PairAudit", "SketchQualityDisplay"]

_POOLS = {"random": "random pairs", "recent": "recent pairs"}

# Room above the curves for a legend of three lines.
_TOP = 1.35


class SketchQualityDisplay:
    """How far estimated distances are from exact ones.

    The distribution of estimate over exact distance, for random pairs of points and for
    recent queries with their neighbours, beside the band 1 ± eps that was promised. Use
    :meth:`from_estimator` to make one; it needs matplotlib,
    ``pip install 'skmahal[plot]'``.

    Parameters
    ----------
    audit : Audit
        What :meth:`SketchedMahalanobisNeighbors.audit` has found.
    estimator_name : str, default=None
        A name for the title.

    Attributes
    ----------
    lines_ : dict
        The curve of each pool of pairs, "random" and, where there is one, "recent".
    band_ : matplotlib artist
        The band 1 ± eps.
    ax_ : matplotlib Axes
        Where it was drawn.
    figure_ : matplotlib Figure
        What the axes belong to.

    See Also
    --------
    SketchedMahalanobisNeighbors.audit : The numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal import SketchedMahalanobisNeighbors
    >>> from skmahal.inspection import SketchQualityDisplay
    >>> X = np.random.default_rng(0).normal(size=(300, 1000))
    >>> index = SketchedMahalanobisNeighbors(random_state=0).fit(X)
    >>> display = SketchQualityDisplay.from_estimator(index, random_state=0)
    >>> display.ax_.get_title()
    'SketchedMahalanobisNeighbors: passed'
    """

    def __init__(self, audit, *, estimator_name=None):
        self.audit = audit
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(
        cls, estimator, *, n_pairs=1000, random_state=None, ax=None, **kwargs
    ):
        """Audit an index and draw what was found; the cost is that of the audit.

        O(k) a pair, and O(nk) for each of at most 64 recent queries.

        Parameters
        ----------
        estimator : SketchedMahalanobisNeighbors
            A fitted index.
        n_pairs : int, default=1000
            Number of pairs that are drawn from each pool.
        random_state : int, RandomState instance or None, default=None
            Determines the pairs.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.
        **kwargs : dict
            For the curves, as :meth:`matplotlib.axes.Axes.plot` takes them.

        Returns
        -------
        display : SketchQualityDisplay
            What was drawn.
        """
        _pyplot()
        check_is_fitted(estimator)
        audit = estimator.audit(n_pairs=n_pairs, random_state=random_state)
        display = cls(audit, estimator_name=type(estimator).__name__)
        return display.plot(ax=ax, **kwargs)

    def plot(self, ax=None, *, name=None, **kwargs):
        """Draw the share of pairs up to each ratio. O(n_pairs log n_pairs).

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a figure.
        name : str, default=None
            A name for the title in place of `estimator_name`.
        **kwargs : dict
            For the curves, as :meth:`matplotlib.axes.Axes.plot` takes them.

        Returns
        -------
        display : SketchQualityDisplay
            The object itself, with what was drawn.
        """
        plt = _pyplot()
        if ax is None:
            _, ax = plt.subplots()
        self.ax_, self.figure_ = ax, ax.figure
        eps = self.audit.eps
        self.band_ = ax.axvspan(
            1 - eps, 1 + eps, color="0.9", zorder=0, label=f"within 1 ± {eps:g}"
        )
        ax.axvline(1.0, color="0.6", linewidth=1, zorder=1)
        self.lines_ = {}
        for pool, label in _POOLS.items():
            found = getattr(self.audit, pool)
            if found is not None:
                drawn = {"drawstyle": "steps-post", "label": _caption(found, label)}
                (self.lines_[pool],) = ax.plot(*_steps(found.sample), **drawn | kwargs)
        ax.set(xlabel="estimated distance / exact distance", ylabel="share of pairs")
        ax.set(ylim=(-0.03, _TOP), yticks=np.linspace(0, 1, 5))
        ax.set_title(self._title(name or self.estimator_name))
        ax.legend(loc="upper left")
        return self

    def _title(self, name):
        verdict = "passed" if self.audit.passed else "failed"
        return f"{name}: {verdict}" if name else f"audit {verdict}"


def _caption(found, label):
    verdict = "passed" if found.passed else "failed"
    return f"{label}: {100 * found.outside:.3g} % outside, {verdict}"


def _steps(sample):
    """A sorted sample as the points of its distribution function.

    Examples
    --------
    >>> _steps(np.array([0.9, 1.1]))
    (array([0.9, 0.9, 1.1]), array([0. , 0.5, 1. ]))
    """
    sample = sample if len(sample) else np.ones(1)
    shares = np.linspace(0, 1, len(sample) + 1)
    return np.concatenate([sample[:1], sample]), shares


def _pyplot():
    import_optional("matplotlib", "plot", "SketchQualityDisplay")
    from matplotlib import pyplot

    return pyplot
