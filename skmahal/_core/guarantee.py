"""What an index promises as it is now, in numbers and in words."""

from dataclasses import dataclass
from typing import NamedTuple

from . import bounds, plan

_EXACT = 0.0, 0.0
_ROUNDING = 1e-9


class Failures(NamedTuple):
    """Probabilities, at the most, that an answer breaks its promise.

    The first three are for a query, `pair_distances` is for a pair. 0 is an exact
    answer, 1 is no promise, and None is for a question that the estimator does not
    take.
    """

    kneighbors: float | None = None
    radius_neighbors: float | None = None
    distances: float | None = None
    pair_distances: float | None = None


@dataclass(frozen=True)
class Guarantee:
    """What an index promises as it is now; its ``str()`` says it in words.

    Attributes
    ----------
    engine : {"sketched", "exact"}
        The engine in use.
    n, k, m, L, R, lead : int
        Points, rows of U, rows of a sketch, sketches, sketches that serve a query for
        distances, and leading directions. For the exact engine m and R are what they
        would be.
    R_neighbors : int
        Sketches that serve a neighbour query.
    eps, delta : float
        The error, and the probability of a larger one, that were asked for.
    fixed : Failures
        For queries that do not depend on answers of these sketches.
    adaptive : Failures
        For queries that somebody chooses by earlier answers, as many as they like.
    enough_sketches : bool
        Whether L sketches suffice for adaptive queries at this k, m, eps and delta;
        True where nothing is random.
    sufficient_L : int or None
        How many would, with m set to what it is now; None where no number is proven to.
    refresh_every : int or None
        After how many calls `refresh_sketches` keeps the promise of `fixed` for
        adaptive queries: 1, or None where it is kept without.
    """

    engine: str
    n: int
    k: int
    m: int
    L: int
    R: int
    R_neighbors: int
    lead: int
    eps: float
    delta: float
    fixed: Failures
    adaptive: Failures
    enough_sketches: bool
    sufficient_L: int | None
    refresh_every: int | None

    def __str__(self):
        return "\n".join(_in_words(self))


def guarantee(
    *,
    engine,
    n,
    k,
    m,
    L,
    R,
    lead,
    eps,
    delta,
    sketch,
    n_neighbors,
    auto_R=True,
    neighbors="certified",
    estimates=True,
    offers=Failures._fields,
):
    """The promises that follow from the numbers of an index.

    Parameters
    ----------
    engine, n, k, m, L, R, lead, eps, delta
        As in :class:`Guarantee`.
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}
        Kind of the sketches.
    n_neighbors : int
        Neighbours of a query.
    auto_R : bool, default=True
        Whether every operation chooses its own R.
    neighbors : {"certified", "exact", "budget"}, default="certified"
        How `kneighbors` finds them: "exact" does not look at sketches, and "budget"
        promises nothing.
    estimates : bool, default=True
        Whether distances are estimated.
    offers : iterable of str
        The questions of :class:`Failures` that are taken.

    Returns
    -------
    Guarantee

    Notes
    -----
    *fixed*: a neighbour query misses with probability delta by its certificate,
    whatever m and R are. An estimate is off with the probability that
    :func:`bounds.failure` gives, and some of n are with n times that.

    *adaptive*: with probability 1 - delta/2 over their draw, L sketches that suffice
    are representative, which is a statement about all vectors at once. A query that is
    new gets R of them by a keyed hash, independently of all that was seen before it,
    and the bad ones have the majority with the probability that
    :func:`bounds.adaptive_failure` gives.

    *refresh_every*: new sketches are independent of all that was seen before them, and
    so of a call that was chosen by it. The next call may depend on their answers; no
    longer interval is proven.

    Who sees nothing but certified neighbours may ask longer. Let the truth answer in
    place of the index: then the queries do not depend on the sketches, and each is one
    that these would miss with probability delta. Until the first miss the two answer
    alike, so the first t answers are all exact but for a probability of t delta. This
    leaves aside what the time of an answer, and its rounding, give away.

    Examples
    --------
    >>> numbers = dict(engine="sketched", n=1000, k=512, m=48, R=5, lead=16, eps=0.2,
    ...                delta=0.01, sketch="gaussian", n_neighbors=5)
    >>> few = guarantee(L=10, **numbers)
    >>> few.fixed.kneighbors, few.adaptive.kneighbors, few.refresh_every
    (0.01, 1.0, 1)
    >>> many = guarantee(L=few.sufficient_L, **numbers)
    >>> many.adaptive.kneighbors
    0.01
    """
    promise = k, m, L, eps, delta, sketch
    asked_R = None if auto_R else R
    certified = _certified(n_neighbors, asked_R, *promise)
    ways = {"certified": certified, "exact": _EXACT, "budget": (1.0, 1.0)}
    failures = {
        "kneighbors": ways[neighbors],
        "radius_neighbors": _certified(n, asked_R, *promise),
        "distances": _estimated(n, R, *promise) if estimates else _EXACT,
        "pair_distances": _estimated(1, R, *promise) if estimates else _EXACT,
    }
    exact = engine == "exact"
    if exact:
        failures = dict.fromkeys(failures, _EXACT)
    fixed, adaptive = (
        Failures(**{name: failures[name][side] for name in offers}) for side in (0, 1)
    )
    R_neighbors, _ = plan.certificate(n_neighbors, k, m, L, asked_R, eps, delta, sketch)
    draw = k, m, eps, delta / 2, sketch
    sufficient_L = 0 if exact else plan.sufficient_sketches(*draw)
    return Guarantee(
        engine=engine,
        n=n,
        k=k,
        m=m,
        L=L,
        R=R,
        R_neighbors=R_neighbors,
        lead=lead,
        eps=eps,
        delta=delta,
        fixed=fixed,
        adaptive=adaptive,
        enough_sketches=sufficient_L is not None and sufficient_L <= L,
        sufficient_L=sufficient_L,
        refresh_every=None if _is_kept(fixed, adaptive, delta) else 1,
    )


def _certified(misses, asked_R, k, m, L, eps, delta, sketch):
    """For a search that must not miss any of some points: fixed, adaptive."""
    if asked_R is None and plan.adaptive_votes(misses, k, m, L, eps, delta, sketch):
        return delta, delta
    return delta, 1.0


def _estimated(count, R, k, m, L, eps, delta, sketch):
    """For `count` estimates that must all be within 1 ± eps: fixed, adaptive."""
    adaptive = 1.0
    if plan.adaptively_safe(k, m, L, eps, delta / 2, sketch):
        outvoted = count * bounds.adaptive_failure(L, plan.BETA, R)
        adaptive = min(1.0, delta / 2 + outvoted)
    return min(adaptive, count * float(bounds.failure(eps, m, R, sketch))), adaptive


def _is_kept(fixed, adaptive, delta):
    """Whether what is promised is promised for adaptive queries too."""
    return all(
        before is None or after <= (1 + _ROUNDING) * max(delta, before)
        for before, after in zip(fixed, adaptive, strict=True)
    )


def _in_words(held):
    """The lines of a :class:`Guarantee`."""
    if held.engine == "exact":
        yield f"An exact index of {held.n} points: no answer has anything random in it,"
        yield "and each is right whoever asks."
        return
    yield f"An index of {held.n} points under k={held.k} rows of U."
    yield (
        f"L={held.L} sketches of m={held.m} rows: R={held.R} serve a query for "
        f"distances, {held.R_neighbors} a query for neighbours."
    )
    if held.lead:
        yield f"{held.lead} leading directions are not sketched."
    yield "For queries that do not depend on earlier answers:"
    yield from _promises(held, held.fixed)
    yield "For queries that somebody chooses by earlier answers:"
    yield from _promises(held, held.adaptive)
    yield from _advice(held)


def _promises(held, failures):
    subjects = {
        "kneighbors": ("neighbours are the exact ones", "a query"),
        "radius_neighbors": ("no point within the radius is left out", "a query"),
        "distances": (f"all {held.n} are within 1 ± {held.eps:g}", "a query"),
        "pair_distances": (f"a distance is within 1 ± {held.eps:g}", "a pair"),
    }
    for name, failure in failures._asdict().items():
        what, each = subjects[name]
        if failure == 0:
            yield f"- {name}: exact."
        elif failure == 1:
            yield f"- {name}: nothing is promised."
        elif failure is not None:
            yield f"- {name}: {what}, but for a probability of {failure:.2g} {each}."


def _advice(held):
    if held.refresh_every is None:
        return
    if held.sufficient_L is None:
        yield f"No number of sketches of m={held.m} rows is proven to do."
    elif held.enough_sketches:
        yield f"L={held.L} sketches suffice, but the R that was set does not."
    else:
        more = f"L={held.sufficient_L} sketches would do"
        yield f"{more}, with m={held.m} set and R at 'auto'."
    yield f"With m={held.k} the index is exact. Other m, L and R take a new fit."
    yield (
        "A refresh_sketches() after every call makes the first list hold. Longer "
        "intervals are not promised."
    )
    if 0 < held.fixed.kneighbors < 1:
        yield (
            "While nothing but neighbours is seen, the first t queries are all right "
            f"but for a probability of {held.fixed.kneighbors:g} t."
        )
