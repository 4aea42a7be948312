"""Results of `audit` and `guarantee`, and plots of results, sketches and recall."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_consistent_length, gen_batches, indexable

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
from ._core.sketches import toarray
from ._core.types import RandomState, Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Audit",
    "Failures",
    "Guarantee",
    "NeighborsDisplay",
    "PairAudit",
    "Recall",
    "RecallAudit",
    "RecallDisplay",
    "SketchQualityDisplay",
    "StreamAccuracyDisplay",
]

_VERDICT = {True: "passed", False: "failed"}


class _Display:
    """Base of the displays, which define ``_draw(ax, name, kwargs)``."""

    estimator_name: str | None
    _draw: Any

    @classmethod
    def _pyplot(cls):
        import_optional("matplotlib", "plot", cls.__name__)
        from matplotlib import pyplot

        return pyplot

    def plot(
        self, ax: Axes | None = None, *, name: str | None = None, **kwargs: Any
    ) -> Self:
        """Plot on the given axes, or on those of a new figure.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to plot on. None creates a figure.
        name : str, default=None
            Name for the title or the legend, in place of `estimator_name`.
        **kwargs : dict
            Keywords of the methods of :class:`matplotlib.axes.Axes` that draw: `plot`
            for curves, `imshow` for images, and `scatter` for points, such as ``c=y``.

        Returns
        -------
        display : object
            The display itself.
        """
        ax = self._pyplot().subplots()[1] if ax is None else ax
        self.ax_, self.figure_ = ax, ax.figure
        self._draw(ax, name or self.estimator_name, kwargs)
        return self


class NeighborsDisplay(_Display):
    """Plot of queries and their nearest neighbours, as images or as points.

    Use :meth:`from_estimator` to create one. It needs matplotlib,
    ``pip install 'skmahal[plot]'``.

    Parameters
    ----------
    queries : ndarray of shape (n_queries, n_features)
        The queries.
    neighbors : ndarray of shape (n_queries, n_neighbors, n_features)
        Their neighbours, nearest first.
    distances : ndarray of shape (n_queries, n_neighbors)
        Their distances.
    image_shape : tuple of int, default=None
        Shape of the image that the features of a point are, such as (8, 8) or
        (32, 32, 3). None plots points in the plane of two features.
    labels : array-like of shape (n_queries, n_neighbors), default=None
        Labels of the neighbours, which are written above images.
    points : ndarray of shape (n_samples, n_features), default=None
        All points, the background of a plot of points.
    components : ndarray of shape (k, n_features), default=None
        U of the metric. If there are two features, an ellipse shows all points that are
        as far from a query as its last neighbour.
    features : tuple of two ints, default=(0, 1)
        Features on the axes of a plot of points.
    estimator_name : str, default=None
        Name of the estimator for the title.

    Attributes
    ----------
    images_ : list of matplotlib AxesImage
        The images row by row, a query and its neighbours in each; only with
        `image_shape`.
    points_, neighbors_, queries_ : matplotlib artists
        All points, the neighbours and the queries; only without `image_shape`.
    lines_ : matplotlib LineCollection
        Lines from queries to their neighbours; only without `image_shape`.
    ellipses_ : list of matplotlib Line2D
        The ellipses; only without `image_shape`.
    ax_, figure_ : matplotlib Axes and Figure
        Where the plot is.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skmahal import SketchedMahalanobisNeighbors
    >>> from skmahal.inspection import NeighborsDisplay
    >>> X, y = load_digits(return_X_y=True)
    >>> index = SketchedMahalanobisNeighbors(5).fit(X[3:])
    >>> display = NeighborsDisplay.from_estimator(
    ...     index, X[:3], image_shape=(8, 8), labels=y[3:]
    ... )
    >>> len(display.images_)
    18
    """

    def __init__(
        self,
        queries: np.ndarray,
        neighbors: np.ndarray,
        distances: np.ndarray,
        *,
        image_shape: tuple[int, ...] | None = None,
        labels: np.ndarray | None = None,
        points: np.ndarray | None = None,
        components: np.ndarray | None = None,
        features: tuple[int, int] = (0, 1),
        estimator_name: str | None = None,
    ) -> None:
        self.queries = queries
        self.neighbors = neighbors
        self.distances = distances
        self.image_shape = image_shape
        self.labels = labels
        self.points = points
        self.components = components
        self.features = features
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        *,
        n_neighbors: int | None = None,
        image_shape: tuple[int, ...] | None = None,
        labels: Any = None,
        features: tuple[int, int] = (0, 1),
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Find the neighbours of queries and plot them; the cost is that of the search.

        Parameters
        ----------
        estimator : fitted neighbour estimator
            An index with ``kneighbors``.
        X : {array-like, sparse matrix} of shape (n_queries, n_features)
            Queries.
        n_neighbors : int, default=None
            Number of neighbours; None is that of the estimator.
        image_shape, features : tuple of int
            As in :class:`NeighborsDisplay`.
        labels : array-like of shape (n_samples_fit,), default=None
            Labels of the points of the index, which are written above images.
        ax, **kwargs
            As in :meth:`plot`.

        Returns
        -------
        display : NeighborsDisplay
        """
        cls._pyplot()
        index = estimator._fitted().index
        with index.lock.reading():
            Q = toarray(estimator._queries(X, index))
            distances, indices = estimator.kneighbors(X, n_neighbors)
            neighbors = toarray(index.X[indices.ravel()]).reshape(*indices.shape, -1)
            shape = _as_image_shape(image_shape, index.d)
            display = cls(
                Q,
                neighbors,
                distances,
                image_shape=shape,
                points=None if shape else toarray(index.X).copy(),
                components=estimator.components_,
                features=_as_features(features, index.d),
                estimator_name=type(estimator).__name__,
            )
            if labels is not None:
                labels = np.asarray(labels)
                if labels.shape != (index.n,):
                    raise ValueError(
                        f"labels must be one label for each of {index.n} points, got "
                        f"an array of shape {labels.shape}."
                    )
                display.labels = labels[indices]
        return display.plot(ax=ax, **kwargs)

    def _draw(self, ax, name, kwargs):
        """A row of images for each query, or all queries among the points."""
        if name:
            ax.set_title(name)
        if self.image_shape is None:
            self._plot_points(ax, kwargs)
        else:
            self._plot_images(ax, kwargs)

    def _plot_images(self, ax, kwargs):
        """Rows of a query and its neighbours, with the distance below each."""
        shown = np.concatenate([self.queries[:, None], self.neighbors], axis=1)
        rows, columns = shown.shape[:2]
        # An image is one unit wide. Between them there is space for a line of text, and
        # the query stands a little apart.
        height, gap, line = self.image_shape[0] / self.image_shape[1], 0.12, 0.3
        above = 0 if self.labels is None else line
        style = {"cmap": "gray_r", "vmin": shown.min(), "vmax": shown.max(), **kwargs}
        self.images_ = []
        for row, column in np.ndindex(rows, columns):
            left = column * (1 + gap) + (0.3 if column else 0)
            top = row * (height + above + line + gap) + above
            place = (left, left + 1, top + height, top)
            image = shown[row, column].reshape(self.image_shape)
            self.images_.append(ax.imshow(image, extent=place, **style))
            text = f"{self.distances[row, column - 1]:.3g}" if column else "query"
            centred = {"ha": "center", "fontsize": "small"}
            ax.text(left + 0.5, top + height + 0.05, text, va="top", **centred)
            if column and self.labels is not None:
                text = self.labels[row, column - 1]
                ax.text(left + 0.5, top - 0.05, text, va="bottom", **centred)
        ax.set(xlim=(-gap, left + 1 + gap), ylim=(top + height + line, -gap))
        ax.set_axis_off()

    def _plot_points(self, ax, kwargs):
        """Queries, lines to their neighbours, and all points behind them."""
        from matplotlib.collections import LineCollection

        plane = list(self.features)
        ends, Q = self.neighbors[:, :, plane], self.queries[:, plane]
        self.points_ = None
        if self.points is not None:
            style = {"s": 8, "c": "0.75", "label": "points", **kwargs}
            self.points_ = ax.scatter(*self.points[:, plane].T, **style)
        starts = np.broadcast_to(Q[:, None], ends.shape)
        segments = np.stack([starts, ends], axis=2).reshape(-1, 2, 2)
        self.lines_ = LineCollection(segments, colors="C0", linewidths=0.8, alpha=0.6)
        ax.add_collection(self.lines_)
        style = {"s": 14, "c": "C0", "zorder": 3, "label": "neighbours"}
        self.neighbors_ = ax.scatter(*ends.reshape(-1, 2).T, **style)
        style = {"s": 90, "c": "C1", "marker": "*", "zorder": 4, "label": "queries"}
        self.queries_ = ax.scatter(*Q.T, **style)
        self.ellipses_ = []
        if self.components is not None and self.components.shape[1] == 2:
            unit = _unit_ellipse(self.components)
            for q, radius in zip(self.queries, self.distances[:, -1], strict=True):
                curve = q + radius * unit
                style = {"color": "C1", "linewidth": 1}
                self.ellipses_ += ax.plot(*curve[:, plane].T, **style)
        ax.set(xlabel=f"feature {plane[0]}", ylabel=f"feature {plane[1]}")
        ax.legend()


class SketchQualityDisplay(_Display):
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
        ax: Axes | None = None,
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
        cls._pyplot()
        audit = estimator.audit(n_pairs=n_pairs, random_state=random_state)
        display = cls(audit, estimator_name=type(estimator).__name__)
        return display.plot(ax=ax, **kwargs)

    def _draw(self, ax, name, kwargs):
        """The share of pairs up to each ratio."""
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
        verdict = _VERDICT[self.audit.passed]
        ax.set_title(f"{name}: {verdict}" if name else f"audit {verdict}")
        ax.legend(loc="upper left")


class RecallDisplay(_Display):
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
        self.budgets = budgets
        self.recalls = recalls
        self.seconds = seconds
        self.exact_seconds = exact_seconds
        self.target = target
        self.chosen = chosen
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Rows | None = None,
        *,
        n_queries: int = 200,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Measure recall and time for several numbers of points, and plot them.

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
        cls._pyplot()
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

    def _draw(self, ax, name, kwargs):
        """Mean recall against the time of a query."""
        ax.axhline(self.target, color="0.7", linewidth=1, zorder=0)
        micro, at = 1e6 * self.seconds, np.flatnonzero(self.budgets == self.chosen)
        style = {"marker": ".", "label": "numbers of points that double", **kwargs}
        self.line_ = ax.plot(micro, self.recalls, **style)[0]
        label = f"{self.chosen:,} points, for a recall of {self.target:g}"
        style = {"marker": "o", "linestyle": "none", "label": label, "color": "C1"}
        self.chosen_ = ax.plot(micro[at], self.recalls[at], **style)[0]
        style = {"marker": "s", "linestyle": "none", "label": "exact", "color": "C2"}
        self.exact_ = ax.plot([1e6 * self.exact_seconds], [1.0], **style)[0]
        ax.set(xlabel="microseconds per query", ylabel="mean recall", xscale="log")
        if name:
            ax.set_title(name)
        ax.legend(loc="lower right")


class StreamAccuracyDisplay(_Display):
    """Plot of the accuracy of a classifier over the time of a stream.

    The accuracy at a time is the share of right predictions among the latest ones,
    where each point was predicted before its label was learned. Use
    :meth:`from_estimator` or :meth:`from_predictions` to create one. It needs
    matplotlib, ``pip install 'skmahal[plot]'``.

    Parameters
    ----------
    correct : array-like of shape (n_predictions,)
        Whether each prediction was right, in the order of the stream.
    window : int, default=100
        Number of predictions that each value is the mean of.
    first : int, default=0
        Number of points before the first that was predicted.
    estimator_name : str, default=None
        Name of the estimator for the legend.

    Attributes
    ----------
    line_ : matplotlib Line2D
        The curve.
    ax_, figure_ : matplotlib Axes and Figure
        Where the plot is.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skmahal import SketchedMahalanobisClassifier
    >>> from skmahal.inspection import StreamAccuracyDisplay
    >>> X, y = load_digits(return_X_y=True)
    >>> knn = SketchedMahalanobisClassifier(3)
    >>> display = StreamAccuracyDisplay.from_estimator(knn, X, y, batch_size=50)
    >>> bool(display.correct.mean() > 0.9)
    True
    """

    def __init__(
        self,
        correct: np.ndarray,
        *,
        window: int = 100,
        first: int = 0,
        estimator_name: str | None = None,
    ) -> None:
        self.correct = correct
        self.window = window
        self.first = first
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        batch_size: int = 1,
        window: int = 100,
        classes: Any = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Predict each batch of a stream before learning from it, and plot the result.

        This costs a ``predict`` and a ``partial_fit`` for each batch. The first batch
        is not predicted.

        Parameters
        ----------
        estimator : classifier with ``partial_fit``
            A clone of it is used.
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Points in the order of the stream.
        y : array-like of shape (n_samples,)
            Their labels.
        batch_size : int, default=1
            Number of points in a batch.
        window : int, default=100
            Number of predictions that each value is the mean of.
        classes : array-like, default=None
            All labels, for the first ``partial_fit`` of estimators that ask for them.
        ax, **kwargs
            As in :meth:`plot`.

        Returns
        -------
        display : StreamAccuracyDisplay
        """
        cls._pyplot()
        X, y = indexable(X, np.asarray(y))
        size = as_count("batch_size", batch_size, most=len(y) - 1)
        as_count("window", window, most=len(y) - size)
        batches = list(gen_batches(len(y), size))
        given = {} if classes is None else {"classes": classes}
        stream = clone(estimator).partial_fit(X[batches[0]], y[batches[0]], **given)
        right = []
        for batch in batches[1:]:
            right.append(stream.predict(X[batch]) == y[batch])
            stream.partial_fit(X[batch], y[batch])
        correct, name = np.concatenate(right), type(estimator).__name__
        display = cls(correct, window=window, first=size, estimator_name=name)
        return display.plot(ax=ax, **kwargs)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_pred: Any,
        *,
        window: int = 100,
        first: int = 0,
        name: str | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Plot the accuracy of predictions that were made during a stream.

        Parameters
        ----------
        y_true, y_pred : array-like of shape (n_predictions,)
            Labels and predictions, in the order of the stream.
        window, first : int, default=100, 0
            As in :class:`StreamAccuracyDisplay`.
        name : str, default=None
            Name for the legend.
        ax, **kwargs
            As in :meth:`plot`.

        Returns
        -------
        display : StreamAccuracyDisplay
        """
        cls._pyplot()
        check_consistent_length(y_true, y_pred)
        correct = np.asarray(y_true) == np.asarray(y_pred)
        as_count("window", window, most=len(correct))
        display = cls(correct, window=window, first=first, estimator_name=name)
        return display.plot(ax=ax, **kwargs)

    def _draw(self, ax, name, kwargs):
        """The accuracy of the latest predictions against time."""
        correct = np.asarray(self.correct, dtype=bool)
        window = as_count("window", self.window, most=len(correct))
        counts = np.concatenate([[0], np.cumsum(correct)])
        shares = (counts[window:] - counts[:-window]) / window
        mean = f"mean {correct.mean():.3f}"
        style = {"label": f"{name}: {mean}" if name else mean, **kwargs}
        points = self.first + np.arange(window, len(correct) + 1)
        self.line_ = ax.plot(points, shares, **style)[0]
        last = "last prediction" if window == 1 else f"last {window} predictions"
        ax.set(xlabel="points of the stream", ylabel=f"accuracy of the {last}")
        ax.legend()


def _seconds(search, Q, *args):
    """Mean seconds of a query, one at a time; of each, the best of three rounds."""
    taken = np.empty((3, Q.shape[0]))
    for turn, at in np.ndindex(taken.shape):
        begun = perf_counter()
        search(Q[at : at + 1], *args)
        taken[turn, at] = perf_counter() - begun
    return taken.min(axis=0).mean()


def _unit_ellipse(U):
    """Points at distance 1 from the origin, or none if they are not an ellipse."""
    squares, axes = np.linalg.eigh(U.T @ U)
    if squares[0] <= 1e-12 * squares[1]:
        return np.empty((0, 2))
    angles = np.linspace(0, 2 * np.pi, 181)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) @ (axes / squares**0.5).T


def _as_image_shape(shape, d):
    if shape is None:
        return None
    shape = tuple(as_count("image_shape", length) for length in shape)
    if len(shape) not in (2, 3) or np.prod(shape) != d:
        raise ValueError(
            "image_shape must be (height, width) or (height, width, channels) with a "
            f"product of {d}, the number of features, got {shape}."
        )
    return shape


def _as_features(features, d):
    features = tuple(features)
    if len(features) != 2:
        raise ValueError(f"features must be two positions, got {features}.")
    return tuple(as_count("features", place, least=0, most=d - 1) for place in features)
