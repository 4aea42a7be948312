"""Objects of all kinds, after updates of all kinds, and all of their results."""

from functools import partial

import numpy as np
from scipy import sparse

from skmahal import (
    MahalanobisCentroidClassifier,
    MahalanobisOutlierDetector,
    MahalanobisSketch,
    MetricMaintenance,
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRegressor,
)
from skmahal.online import LEGO, POLA, OnlineITML

N, D, K = 100, 24, 20
# So many points are searched by their codes.
MANY = 6000
SEARCHES = {
    "exact": {},
    "certified": {"m": 5, "L": 6, "R": 1, "lead": 4, "n_candidates": "certified"},
}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def points(dtype=np.float64, storage="dense", rows=N, seed=1):
    X = normal(rows, D, seed=seed).astype(dtype)
    if storage == "dense":
        return X
    return sparse.csr_matrix(np.where(np.abs(X) > 0.8, X, 0))


def labels(rows=N, seed=2):
    return np.random.default_rng(seed).integers(3, size=rows)


def queries(dtype=np.float64):
    return points(dtype, rows=6, seed=3)


def as_names(y):
    return np.array(["ant", "bee", "cat"])[y]


def used(estimator, X, y=None):
    """Fitted, queried, and changed in every way; the last change was not seen yet."""
    more = [points(X.dtype, "dense", rows, seed=rows) for rows in (7, 2)]
    targets = [None, None] if y is None else [labels(len(rows)) for rows in more]
    names = y is not None and y.dtype.kind == "U"
    targets = [as_names(part) if names else part for part in targets]
    known = [() if part is None else (part,) for part in targets]
    estimator.fit(X, y)
    results(estimator)
    k = len(estimator.components_)
    estimator.update_metric(low_rank=(normal(k, 2), normal(D, 2)))
    results(estimator)
    estimator.partial_fit(more[0], *known[0])
    estimator.update_points([3, 8], more[1], *known[1])
    estimator.remove_points([0, 5])
    # Twice the points, after some were removed: the origin is chosen again.
    estimator.partial_fit(X, *(() if y is None else (y,)))
    estimator.remove_points(np.arange(X.shape[0]))
    results(estimator)
    estimator.update_metric(low_rank=(0.1 * normal(k), normal(D, seed=4)))
    return estimator


def index(kind, search, dtype=np.float64, storage="dense", rows=N, **params):
    given = {"metric_learner": normal(K, D), "random_state": 0, **SEARCHES[search]}
    X, estimator = points(dtype, storage, rows), kind(**{**given, **params})
    y = None
    if kind is SketchedMahalanobisClassifier:
        y = as_names(labels(rows))
    if kind is SketchedMahalanobisRegressor:
        y = normal(rows)
    return used(estimator, X, y)


def maintenance(**params):
    made = MetricMaintenance(normal(K, D), points(), seed=0, **params)
    results(made)
    made.update_low_rank(normal(K), normal(D))
    made.append(points(rows=9))
    return made


def centroid(*params):
    made = MahalanobisCentroidClassifier(*params, priors="empirical")
    made.fit(points(), as_names(labels()))
    results(made)
    return made.partial_fit(points(rows=9, seed=4), as_names(labels(9)))


def learner(kind, labelled=True, rows=N, dtype=np.float64):
    if labelled:
        return kind(random_state=0).fit(points(dtype, rows=rows), labels(rows))
    pairs = points(dtype, rows=2 * rows).reshape(rows, 2, D)
    return kind(random_state=0).fit(pairs, np.where(labels(rows) > 1, 1, -1))


_NEIGHBORS = SketchedMahalanobisNeighbors
CASES = {
    f"{search}-{np.dtype(dtype)}-{storage}": partial(
        index, _NEIGHBORS, search, dtype, storage
    )
    for search in SEARCHES
    for dtype in (np.float32, np.float64)
    for storage in ("dense", "csr")
    if (search, dtype, storage) != ("certified", np.float32, "csr")
}
CASES |= {
    "euclidean": partial(index, _NEIGHBORS, "exact", metric_learner=None),
    "codes": partial(index, _NEIGHBORS, "exact", np.float32, rows=MANY),
    "few-rows": partial(index, _NEIGHBORS, "exact", metric_learner=normal(3, D)),
    "auto": partial(index, _NEIGHBORS, "certified", m="auto", lead="auto", eps=0.9),
    "countsketch": partial(index, _NEIGHBORS, "certified", sketch="countsketch", R=3),
    "classifier": partial(index, SketchedMahalanobisClassifier, "certified"),
    "learning-classifier": partial(
        index, SketchedMahalanobisClassifier, "exact", metric_learner=OnlineITML()
    ),
    "regressor": partial(index, SketchedMahalanobisRegressor, "exact"),
    "transformer": partial(index, SketchedMahalanobisNeighborsTransformer, "certified"),
    "outliers": lambda: used(
        MahalanobisOutlierDetector(5, novelty=True, metric_learner=normal(K, D)),
        points(),
    ),
    "sketch": lambda: MahalanobisSketch(
        6, metric_learner=normal(K, D), random_state=0
    ).fit(points()),
    "sparse-sketch": lambda: MahalanobisSketch(
        6, sketch="countsketch", random_state=0
    ).fit(points(np.float32)),
    "centroid": centroid,
    "learning-centroid": partial(centroid, LEGO(random_state=0)),
    "maintenance": partial(maintenance, m=12, L=5, lead=3),
    "LEGO": partial(learner, LEGO),
    "POLA": partial(learner, POLA, labelled=False, dtype=np.float32),
    "ITML": partial(learner, OnlineITML, labelled=False),
    "ITML-at-the-start": partial(learner, OnlineITML, rows=4),
    "unfitted": SketchedMahalanobisClassifier,
}


def results(thing):
    """Results of all its queries, as a list of arrays."""
    if isinstance(thing, MetricMaintenance):
        return _of_maintenance(thing)
    if hasattr(thing, "state_token"):
        return _of_learner(thing)
    if isinstance(thing, MahalanobisSketch):
        return [thing.components_, thing.transform(points())]
    if hasattr(thing, "centroids_"):
        predicted = [thing.predict(queries()), thing.predict_proba(queries())]
        return [thing.components_, thing.centroids_, thing.class_count_, *predicted]
    return _of_index(thing) if hasattr(thing, "n_samples_fit_") else []


def _of_maintenance(held):
    Q = queries()
    return [
        *held.kneighbors(Q, 4),
        *held.kneighbors(Q, 4, candidates="certified"),
        *held.kneighbors(Q, 4, candidates=20),
        held.query_all(Q),
        held.query_pair([0, 1], [5, 9]),
        held.sub_sum(Q, 3, 50),
        held.sample_exact(Q, size=5, random_state=0),
        held.U,
    ]


def _of_learner(learner):
    own = [learner.components_, learner.transform(points()), learner.threshold_]
    own += [learner.version_, learner.n_steps_]
    if not learner._labelled:
        pairs = points().reshape(-1, 2, D)
        own += [learner.predict(pairs), learner.pair_distance(pairs)]
    return own


def _of_index(index):
    # Queries become of the type of the points.
    Q = queries()
    found = [*index.kneighbors(Q, 4), index.components_]
    found += index.kneighbors() if index.n_samples_fit_ < MANY else []
    found += [index.kneighbors_graph(Q, mode="distance").toarray()]
    for method in ("predict", "predict_proba", "distances", "score_samples"):
        if hasattr(index, method):
            found.append(getattr(index, method)(Q))
    if hasattr(index, "offset_"):
        found += [index.negative_outlier_factor_, index.offset_]
    if hasattr(index, "sample"):
        found += [index.sample(Q, 5, power=power, random_state=0) for power in (1, 2)]
        found += [index.sum_distances(Q, 3, 80), index.sum_distances(Q, power=1)]
        found += [index.pair_distances([0, 1], [5, 9])]
        found += [*map(np.concatenate, index.radius_neighbors(Q, 6.0))]
    return found


def assert_same_results(one, other):
    """Bit by bit."""
    pairs = list(zip(results(one), results(other), strict=True))
    assert type(one) is type(other)
    for mine, others in pairs:
        np.testing.assert_array_equal(mine, others)
        assert np.asarray(mine).dtype == np.asarray(others).dtype


def go_on(thing):
    """One more change of every kind."""
    more = normal(3, D, seed=7)
    if hasattr(thing, "state_token"):
        y = np.array([1, -1, 1]) if not thing._labelled else labels(3)
        thing.partial_fit(more if thing._labelled else normal(3, 2, D, seed=7), y)
    elif isinstance(thing, MetricMaintenance):
        thing.update_low_rank(normal(K), normal(D))
        thing.update_x(more, [4, 5, 6])
        thing.append(more)
        thing.remove([1])
        thing.refresh_sketches()
    elif hasattr(thing, "centroids_"):
        thing.partial_fit(more, ["ant", "dog", "dog"])
        thing.update_metric(normal(2, D), rows=[0, 2])
    elif hasattr(thing, "n_samples_fit_"):
        _change_index(thing, more)


def _change_index(index, more):
    known = {
        SketchedMahalanobisClassifier: (as_names(labels(3)),),
        SketchedMahalanobisRegressor: (normal(3),),
    }.get(type(index), ())
    k = len(index.components_)
    index.update_points([4, 5, 6], more, *known)
    index.update_metric(low_rank=(normal(k), normal(D)))
    results(index)
    index.update_metric(normal(2, D), rows=[0, 2])
    if not hasattr(index.metric_learner_, "state_token"):
        index.partial_fit(more, *known)
    index.remove_points([1])
    index.refresh_sketches()
