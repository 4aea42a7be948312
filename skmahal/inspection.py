"""Results of `audit` and `guarantee`, and a plot of an audit."""

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ._compat import import_optional
from ._core.guarantees import Audit, Failures, Guarantee, PairAudit

__all__ = ["Audit", "Failures", "Guarantee", "PairAudit", "SketchQualityDisplay"]

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

    def __init__(self, audit, *, estimator_name=None):
        self.audit = audit
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(
        cls, estimator, *, n_pairs=1000, random_state=None, ax=None, **kwargs
    ):
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
        _pyplot()
        check_is_fitted(estimator)
        audit = estimator.audit(n_pairs=n_pairs, random_state=random_state)
        display = cls(audit, estimator_name=type(estimator).__name__)
        return display.plot(ax=ax, **kwargs)

    def plot(self, ax=None, *, name=None, **kwargs):
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


def _pyplot():
    import_optional("matplotlib", "plot", "SketchQualityDisplay")
    from matplotlib import pyplot

    return pyplot
