"""Results of `audit` and `guarantee`, and plots of sketches and of recall."""

from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ._compat import import_optional
from ._core.checks import as_count
from ._core.guarantees import (
    Audit,
    Failures,
    Guarantee,
    PairAudit,
    Recall,
    RecallAudit,
)
from ._core.recall import held_positions
from ._core.types import RandomState, Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Audit",
    "Failures",
    "Guarantee",
    "PairAudit",
    "Recall",
    "RecallAudit",
    "RecallDisplay",
    "SketchQualityDisplay",
]

_VERDICT = {True: "passed", False: "failed"}


class SketchQualityDisplay:
    """Plot of the distribution of estimated over exact distance.

    It is shown for random pairs of points and for recent queries with their neighbours.
    Use :meth:`from_estimator` to create one. It needs matplotlib,
    ``pip install 'skmahal[plot]'``.

    Parameters
    ----------
    audit : Audit
        The result of :meth:`SketchedMahalanobisNeighbors.audit`.
    estimator_name : str, default=None
        Name of the estimator for the title.

    Attributes
    ----------
    lines_ : dict
        The curves: "random" and, if estimates have served queries, "recent".
    band_ : matplotlib artist
        The interval 1 ± eps.
    ax_, figure_ : matplotlib Axes and Figure
        Where the plot is.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal import SketchedMahalanobisNeighbors
    >>> from skmahal.inspection import SketchQualityDisplay
    >>> X = np.random.default_rng(0).normal(size=(300, 1000))
    >>> index = SketchedMahalanobisNeighbors(m=50, R=9, random_state=0).fit(X)
    >>> display = SketchQualityDisplay.from_estimator(index, random_state=0)
    >>> display.ax_.get_title()
    'SketchedMahalanobisNeighbors: passed'
    """

    def __init__(self, audit: Audit, *, estimator_name: str | None = None) -> None:
        self.audit = audit
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        n_pairs: int = 1000,
        random_state: RandomState = None,
        ax: "Axes | None" = None,
        **kwargs: Any,
    ) -> Self:
        """Audit an index and plot the result; the cost is that of `audit`.

        Parameters
        ----------
        estimator : SketchedMahalanobisNeighbors
            A fitted index.
        n_pairs, random_state : int, RandomState instance or None
            As in :meth:`SketchedMahalanobisNeighbors.audit`.
        ax, **kwargs
            As in :meth:`plot`.

        Returns
        -------
        display : SketchQualityDisplay
        """
        _pyplot("SketchQualityDisplay")
        check_is_fitted(estimator)
        audit = estimator.audit(n_pairs=n_pairs, random_state=random_state)
        display = cls(audit, estimator_name=type(estimator).__name__)
        return display.plot(ax=ax, **kwargs)

    def plot(
        self, ax: "Axes | None" = None, *, name: str | None = None, **kwargs: Any
    ) -> Self:
        """Plot the share of pairs up to each ratio. O(n_pairs).

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to plot on. None creates a figure.
        name : str, default=None
            Name for the title, in place of `estimator_name`.
        **kwargs : dict
            Keywords of :meth:`matplotlib.axes.Axes.plot` for the curves.

        Returns
        -------
        display : SketchQualityDisplay
        """
        ax = _axes(ax, "SketchQualityDisplay")
        self.ax_, self.figure_ = ax, ax.figure
        eps = self.audit.eps
        self.band_ = ax.axvspan(
            1 - eps, 1 + eps, color="0.9", zorder=0, label=f"within 1 ± {eps:g}"
        )
        ax.axvline(1.0, color="0.6", linewidth=1, zorder=1)
        self.lines_ = {}
        for pairs in ("random", "recent"):
            result = getattr(self.audit, pairs)
            if result is not None:
                outside, verdict = 100 * result.outside, _VERDICT[result.passed]
                label = f"{pairs} pairs: {outside:.3g} % outside, {verdict}"
                style = {"drawstyle": "steps-post", "label": label, **kwargs}
                ratios = result.sample if len(result.sample) else np.ones(1)
                ratios = np.concatenate([ratios[:1], ratios])
                shares = np.linspace(0, 1, len(ratios))
                (self.lines_[pairs],) = ax.plot(ratios, shares, **style)
        ax.set(xlabel="estimated distance / exact distance", ylabel="share of pairs")
        # The space above the curves is for the legend.
        ax.set(ylim=(-0.03, 1.35), yticks=np.linspace(0, 1, 5))
        name, verdict = name or self.estimator_name, _VERDICT[self.audit.passed]
        ax.set_title(f"{name}: {verdict}" if name else f"audit {verdict}")
        ax.legend(loc="upper left")
        return self


class RecallDisplay:
    """Plot of the recall of neighbours against the time of a query.

    A point of the curve is a number of points that are read. Use
    :meth:`from_estimator` to create one. It needs matplotlib,
    ``pip install 'skmahal[plot]'``.

    Parameters
    ----------
    budgets : ndarray of shape (n_points,)
        Numbers of points of the nearest cells, which are read.
    recalls, seconds : ndarray of shape (n_points,)
        Mean recall, and time of a query, of each.
    exact_seconds : float
        Time of an exact query.
    target, chosen : float and int
        The requested recall, and the number of points that are read for it.
    estimator_name : str, default=None
        Name of the estimator for the title.

    Attributes
    ----------
    line_, chosen_, exact_ : matplotlib artists
        The curve, the number of points in use, and exact search.
    ax_, figure_ : matplotlib Axes and Figure
        Where the plot is.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal import SketchedMahalanobisNeighbors
    >>> from skmahal.inspection import RecallDisplay
    >>> X = np.random.default_rng(0).normal(size=(5000, 8))
    >>> index = SketchedMahalanobisNeighbors(recall=0.9).fit(X)
    >>> display = RecallDisplay.from_estimator(index)  # doctest: +SKIP
    """

    def __init__(
        self,
        budgets: np.ndarray,
        recalls: np.ndarray,
        seconds: np.ndarray,
        *,
        exact_seconds: float,
        target: float,
        chosen: int,
        estimator_name: str | None = None,
    ) -> None:
        self.budgets, self.recalls, self.seconds = budgets, recalls, seconds
        self.exact_seconds, self.target, self.chosen = exact_seconds, target, chosen
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Rows | None = None,
        *,
        n_queries: int = 200,
        ax: "Axes | None" = None,
        **kwargs: Any,
    ) -> Self:
        """Measure recall and time for numbers of points, and plot them.

        Parameters
        ----------
        estimator : fitted neighbour estimator
            An index with cells: one that was given a `recall`, and enough points.
        X : {array-like, sparse matrix} of shape (n_queries, n_features), default=None
            Queries. None takes points of the index, which do not count as their own
            neighbours.
        n_queries : int, default=200
            Number of these points.
        ax, **kwargs
            As in :meth:`plot`.

        Returns
        -------
        display : RecallDisplay

        Notes
        -----
        O(kd + nd) a query for each number of points that is tried, and these double.
        """
        _pyplot("RecallDisplay")
        check_is_fitted(estimator)
        index, K = estimator._fitted().index, estimator.n_neighbors
        with index.lock.reading():
            probing = None if index.recall is None else index.probing(K)
            if probing is None:
                raise ValueError(
                    "RecallDisplay needs an estimator that has cells: set recall, fit "
                    "1,024 dense points or more, and install numba; it has "
                    f"recall={index.recall} and {index.n} points."
                )
            own = None
            if X is None:
                count = as_count("n_queries", n_queries)
                own = held_positions(index.n)[:count]
            Q = index.X[own] if X is None else estimator._queries(X, index)
            n, one_cell = index.n, index.n // index.n_cells
            tried = one_cell * 2 ** np.arange(int(np.log2(n / one_cell)) + 1)
            budgets = np.array(sorted({*map(int, tried), probing.budget, n}))
            recalls = [index.recall_of(Q, K, b, own).mean() for b in budgets]
            seconds = [_seconds(index.probe, Q, K, b) for b in budgets]
            exact = _seconds(index.kneighbors, Q, K)
        display = cls(
            budgets,
            np.array(recalls),
            np.array(seconds),
            exact_seconds=exact,
            target=index.recall,
            chosen=probing.budget,
            estimator_name=type(estimator).__name__,
        )
        return display.plot(ax=ax, **kwargs)

    def plot(
        self, ax: "Axes | None" = None, *, name: str | None = None, **kwargs: Any
    ) -> Self:
        """Plot mean recall against the time of a query.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to plot on. None creates a figure.
        name : str, default=None
            Name for the title, in place of `estimator_name`.
        **kwargs : dict
            Keywords of :meth:`matplotlib.axes.Axes.plot` for the curve.

        Returns
        -------
        display : RecallDisplay
        """
        ax = _axes(ax, "RecallDisplay")
        self.ax_, self.figure_ = ax, ax.figure
        ax.axhline(self.target, color="0.7", linewidth=1, zorder=0)
        micro, at = 1e6 * self.seconds, np.flatnonzero(self.budgets == self.chosen)
        style = {"marker": ".", "label": "twice as many points each", **kwargs}
        self.line_ = ax.plot(micro, self.recalls, **style)[0]
        label = f"{self.chosen:,} points, for a recall of {self.target:g}"
        style = {"marker": "o", "linestyle": "none", "label": label, "color": "C1"}
        self.chosen_ = ax.plot(micro[at], self.recalls[at], **style)[0]
        style = {"marker": "s", "linestyle": "none", "label": "exact", "color": "C2"}
        self.exact_ = ax.plot([1e6 * self.exact_seconds], [1.0], **style)[0]
        ax.set(xlabel="microseconds a query", ylabel="mean recall", xscale="log")
        name = name or self.estimator_name
        if name:
            ax.set_title(name)
        ax.legend(loc="lower right")
        return self


def _seconds(search, Q, *args):
    """Seconds of a query, one at a time; the best of three rounds."""
    rounds = []
    for _ in range(3):
        begun = perf_counter()
        for at in range(Q.shape[0]):
            search(Q[at : at + 1], *args)
        rounds.append((perf_counter() - begun) / Q.shape[0])
    return min(rounds)


def _axes(ax, what):
    """Axes to plot on: those that were given, or those of a new figure."""
    plt = _pyplot(what)
    return plt.subplots()[1] if ax is None else ax


def _pyplot(what):
    import_optional("matplotlib", "plot", what)
    from matplotlib import pyplot

    return pyplot
