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
    if not _pays(engine.n, engine.k, **parameters):
        return engine
    return MetricMaintenance.over(engine._state, **parameters)


def with_metric(engine, U, jobs=1, *, seed, **parameters):
    """The engine under a whole new metric, which may ask for an engine of other kind.

    That one is made beside the engine, which stays as it is. Else the engine itself is
    changed. Points, targets and, where the kind stays, the generator of sketches are
    kept.
    """
    pays = _pays(engine.n, len(U), **parameters)
    if len(U) == engine.k or pays == isinstance(engine, MetricMaintenance):
        engine.set_metric(U, jobs)
        return engine
    other = engine.under(U)
    if pays:
        # Sketches that were there before must not come back.
        seed = None if seed is None else [*seed, other.version]
        other = MetricMaintenance.over(other._state, seed=seed, **parameters)
    if engine.in_use:
        other.prepare(jobs)
    return other


def engine_from(saved):
    """The engine of which these values were saved, or an error."""
    kind = MetricMaintenance if "sketches" in saved else ExactMaintenance
    return kind.restored(saved)


def _pays(n, k, *, eps, delta, m, L, R, lead, sketch, **_):
    rows = plan.sketch_rows(n, L, eps, delta, sketch) if m == "auto" else m
    asked = None if R == "auto" else R
    votes, _ = plan.certificate(1, k, rows, L, asked, eps, delta, sketch)
    return plan.pays(rows, votes, 0 if lead == "auto" else lead, k)
