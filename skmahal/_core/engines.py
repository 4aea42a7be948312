"""Which engine answers: sketches where they pay, exact rows where they do not."""

from . import plan
from .exact import ExactMaintenance
from .maintenance import MetricMaintenance


def make_engine(U, X, *, targets=None, **parameters):
    """An index over the points X under U, by sketches unless exact rows cost less.

    `parameters` are those of :class:`MetricMaintenance`; `targets` travel with the
    points. The rule is ``m R + lead < k`` for the R of a neighbour query; an "auto"
    lead never breaks it.

    Examples
    --------
    >>> import numpy as np
    >>> make_engine(None, np.eye(3), eps=0.2, delta=0.01, m="auto", L=10, R="auto",
    ...             lead="auto", sketch="gaussian", n_neighbors=10, seed=0)
    ExactMaintenance(n=3, d=3, k=3)
    """
    engine = ExactMaintenance(U, X)
    engine.targets = targets
    return _sketched_where_it_pays(engine, **parameters)


def with_metric(engine, U, jobs=1, *, seed, **parameters):
    """The engine under a whole new metric, which may ask for an engine of other kind.

    Points, targets and, where the kind stays, the generator of sketches are kept.
    """
    same_shape = len(U) == engine.k
    engine.set_metric(U, jobs)
    if same_shape:
        return engine
    if isinstance(engine, MetricMaintenance):
        return engine if _pays(engine, **parameters) else engine.exact()
    # Sketches that were there before must not come back.
    seed = None if seed is None else [*seed, engine.version]
    return _sketched_where_it_pays(engine, seed=seed, **parameters)


def engine_from(saved):
    """The engine of which these values were saved, or an error."""
    kind = MetricMaintenance if "sketches" in saved else ExactMaintenance
    return kind.restored(saved)


def _sketched_where_it_pays(engine, **parameters):
    if not _pays(engine, **parameters):
        return engine
    return MetricMaintenance.over(engine, **parameters)


def _pays(engine, *, eps, delta, m, L, R, lead, sketch, **_):
    rows = plan.sketch_rows(engine.n, L, eps, delta, sketch) if m == "auto" else m
    asked = None if R == "auto" else R
    votes, _ = plan.certificate(1, engine.k, rows, L, asked, eps, delta, sketch)
    return plan.pays(rows, votes, 0 if lead == "auto" else lead, engine.k)
