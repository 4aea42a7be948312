"""How many points approximate queries read, and when that is measured.

Work is counted in nanoseconds of the model of costs, and not by a clock, so that the
same queries and changes have the same results.
"""

from typing import NamedTuple

import numpy as np

from . import cached
from .cells import cost_of_making
from .guarantees import Recall, recent_queries
from .plan import cost
from .recall import LEAST_RECENT, Probing, calibrated

# Pairs of neighbours that show how far the metric has moved.
_GAPS = 128

# Queries for which it is decided at a time whether cells are probed.
_SERVES = 64


class Work(NamedTuple):
    """Nanoseconds of queries and updates.

    `wasted` is what new cells would have saved of them, and `missed` what cells would
    have saved while the recall was not known.
    """

    spent: float = 0.0
    wasted: float = 0.0
    missed: float = 0.0

    def plus(self, other, times=1):
        """The sum of this and other work, done so many times."""
        return Work(
            self.spent + times * other.spent,
            self.wasted + times * other.wasted,
            self.missed + times * other.missed,
        )


class Choice(NamedTuple):
    """The probing for queries of one version, or None, until so much work is spent.

    `cost` is the work of a query.
    """

    probing: Probing | None
    version: int
    end: float
    cost: Work


class Probes:
    """The policy of an :class:`~.index.Index` that has a recall.

    The index is an argument of its methods, which are called while it is read.
    """

    def __init__(self, work=()):
        self.work, self._choices = Work(*work), {}

    def forget(self):
        """Decide again for the next queries."""
        self._choices = {}

    def for_queries(self, index, K, count, jobs):
        """The :meth:`probing` for some queries, or None if an exact search costs less.

        What is decided once serves many queries.
        """
        key = K, count == 1
        choice, spent = self._choices.get(key), self.work.spent
        if choice is None or choice.version != index.version or spent > choice.end:
            choice = self._choices[key] = self._choose(index, K, key[1], jobs)
        self.work = self.work.plus(choice.cost, count)
        return choice.probing

    def serves_one(self, K):
        """Whether it was decided that a single query for K neighbours probes cells."""
        choice = self._choices.get((K, True))
        return choice is not None and choice.probing is not None

    def probing(self, index, K, jobs=1):
        """The :class:`Probing` for K neighbours, measured where it is needed, or None.

        O(nd) for each held point.
        """
        index.searcher(jobs)
        K = _at_least(K, index.n_neighbors)
        if index.state.cells is None or index.n < 4 * K:
            return None
        probing = index.state.probings.get(K)
        if probing is None or self._is_old(index, K):
            with index.lock.deriving:
                if self._is_old(index, K):
                    self._calibrate(index, K, jobs)
                probing = index.state.probings[K]
        return probing

    def measured(self, index, K):
        """The recall of K neighbours as it was measured; None if they are exact."""
        probing = self.probing(index, K)
        choices = [self._choice(index, probing, one) for one in (True, False)]
        if all(choice.probing is None for choice in choices):
            return None
        found = probing.recall, probing.least, probing.queries
        return Recall(index.recall, *found, probing.version, probing.share)

    def _choose(self, index, K, one, jobs):
        """Whether queries probe cells or are exact.

        If metric or points have moved, they are exact until cells would have saved as
        much time as it takes to measure the recall.
        """
        index.searcher(jobs)
        held = index.state.probings.get(_at_least(K, index.n_neighbors))
        if held is not None and held.has_moved(index.state.drift):
            pays = self.work.missed >= _cost_of_measuring(index, held)
            if not pays and not self._has_worn_cells(index):
                return self._choice(index, held, one, has_moved=True)
        return self._choice(index, self.probing(index, K, jobs), one)

    def _choice(self, index, probing, one, has_moved=False):
        """The :class:`Choice` of what costs less, cells or an exact search."""
        if probing is None:
            return Choice(None, index.version, np.inf, Work())
        exact = min(index.plan.costs["one" if one else "many"].values())
        rest = index.n, index.searcher().d, index.n_cells
        now, new = (
            cost("cells", *rest, share, many=False)
            for share in (probing.share, probing.first_share)
        )
        least, pays = min(now, exact), now < exact
        work = Work(least, max(0.0, least - new))
        if has_moved:
            pays, work = False, Work(exact, max(0.0, least - new), exact - least)
        end = self.work.spent + _SERVES * work.spent
        return Choice(probing if pays else None, index.version, end, work)

    def _has_worn_cells(self, index):
        """Whether cells have wasted as much work as it takes to make new ones."""
        return self.work.wasted > cost_of_making(index.n, index.d)

    def _is_old(self, index, K):
        """Whether the number of points for K neighbours is to be measured."""
        probing = index.state.probings.get(K)
        if probing is None or self._has_worn_cells(index):
            return True
        recent, cost = recent_queries(index), _cost_of_measuring(index, probing)
        full = len(recent) == recent.maxlen >= LEAST_RECENT
        return probing.is_old(index.state.drift, self.work.spent, cost, full)

    def _calibrate(self, index, K, jobs):
        """Measure how many points are to be read; make new cells if that saves work.

        It does once the old ones have wasted as much work as new ones take. They are
        compared with what they were when they were new.
        """
        first, old, work = None, index.state.probings.get(K), self.work
        if old is not None and self._has_worn_cells(index):
            index.set_state(cached.with_cells(index.state, False, jobs, anew=True))
            index.search_anew()
            work = work._replace(wasted=0.0)
        elif old is not None:
            first = old.first_share
        state, search = index.state, index.searcher(jobs)
        rest = {"version": index.version, "drift": state.drift, "spent": work.spent}
        recent = index.recent()
        if recent is not None:
            recent = index.queries(search, recent, jobs)
        given = index.recall, recent, jobs, index.working_bytes
        new, pairs = calibrated(search, K, *given, first_share=first, **rest)
        gaps = cached.gaps_between(state, *(at[:_GAPS] for at in pairs))
        probings = {**state.probings, K: new}
        index.set_state(index.state._replace(probings=probings, **gaps))
        self.work = work._replace(missed=0.0)
        self.forget()


def _at_least(K, n_neighbors):
    """The number of neighbours, K or more, that the recall is measured for.

    >>> [_at_least(K, 5) for K in (3, 5, 6, 11)]
    [5, 5, 10, 20]
    """
    times = -(-K // n_neighbors)
    return n_neighbors << (times - 1).bit_length()


def _cost_of_measuring(index, probing):
    """Nanoseconds of exact searches for held points and recent queries."""
    count = probing.queries + probing.recent
    return count * min(index.plan.costs["many"].values())
