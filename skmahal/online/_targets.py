"""Learners that move distances towards two targets."""

from itertools import islice
from numbers import Real

import numpy as np

from skmahal._compat import Interval
from skmahal._core import compiled

from ._base import OnlineLearner, check_squares, moved
from ._steps import squared_length

# Targets are settled by so many points, or more where a batch brings them.
_ENOUGH, _MOST = 64, 256

# Pairs whose differences are held at once.
_AT_ONCE = 256

_TOO_FAR = "pairs has points too far apart: a squared distance or a step overflows."


class TargetLearner(OnlineLearner):
    """Similar pairs are to be nearer than one distance, others farther than another.

    Subclasses give `_change(factor, w, target)`, the step of a pair that is not where
    it should be, for its image ``w = Uz`` and its squared target; and `_compiled_step`,
    whether that is LEGO's, and its parameter.
    """

    _parameter_constraints = {
        **OnlineLearner._parameter_constraints,
        "similar_target": [None, Interval(Real, 0, None, closed="neither")],
        "dissimilar_target": [None, Interval(Real, 0, None, closed="neither")],
    }

    @property
    def _own_threshold(self):
        return np.nan if self.targets_ is None else self.targets_.mean()

    def _begin(self, points, labelled):
        super()._begin(points, labelled)
        self._start = self._factor
        self._sample = points[:0]
        self.targets_ = None
        given = self.similar_target, self.dissimilar_target
        if None not in given:
            self._settle(_checked(*given))

    def _prepare(self, points):
        if self._sample is None:
            return
        sample = np.concatenate([self._sample, _spread(points)])
        found = _percentiles(self._start.transform(sample))
        if found is None:
            self._sample = sample[:1]
            return
        self._sample = sample
        self.targets_ = _completed(self.similar_target, self.dissimilar_target, *found)
        if len(sample) >= _ENOUGH:
            self._settle(self.targets_)

    def _settle(self, targets):
        self.targets_ = targets
        self._start = self._sample = None

    def _after(self, steps):
        if compiled.fast() is None or self.targets_ is None:
            return super()._after(steps)
        steps, factor = iter(steps), self._factor
        while pairs := list(islice(steps, _AT_ONCE)):
            differences, signs = (np.array(part) for part in zip(*pairs, strict=True))
            apart = differences.any(axis=1)
            self.n_steps_ += int(apart.sum())
            self.n_skipped_ += int(len(apart) - apart.sum())
            factor = self._run(factor, differences[apart], signs[apart])
        return factor

    def _run(self, factor, differences, signs):
        """The factor after some pairs, by compiled loops between two full logs."""
        from ._loops import target_steps

        asked, first = (self.targets_**2, *self._compiled_step), 0
        while first < len(signs):
            rest = differences[first:], signs[first:]

            def steps(*U, rest=rest):
                done, count = target_steps(U, *rest, *asked)
                if done < 0:
                    raise ValueError(_TOO_FAR)
                return done, count

            factor, done = factor.extended(steps)
            first += done
        return factor

    def _step(self, factor, z, sign):
        if self.targets_ is None:
            return factor
        w = factor @ z
        squares = check_squares(squared_length(w))
        near, far = self.targets_
        target = (near if sign > 0 else far) ** 2
        if sign * (squares - target) <= 0:
            return factor
        return moved(factor, self._change(factor, w, target))


def _checked(near, far):
    if near > far:
        raise ValueError(
            f"similar_target must be at most dissimilar_target, got {near:.6g} and "
            f"{far:.6g}."
        )
    return np.array([near, far], dtype=np.float64)


def _completed(near, far, lower, upper):
    """Targets that are given, and otherwise percentiles that fit them."""
    if near is None:
        near = lower if far is None else min(lower, far)
    return np.array([near, max(upper, near) if far is None else far], dtype=np.float64)


def _spread(points):
    return points[:: -(-len(points) // _MOST)]


def _percentiles(images):
    """The 5th and 95th percentile of the distances that are not zero, or None."""
    images = images.astype(np.float64)
    distances = np.concatenate(
        [np.linalg.norm(images[n + 1 :] - row, axis=1) for n, row in enumerate(images)]
    )
    distances = distances[distances > 0]
    return np.percentile(distances, (5, 95)) if distances.size else None
