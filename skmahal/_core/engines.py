"""Which engine answers: sketches where they pay, exact rows where they do not."""

from . import plan
from .exact import ExactMaintenance
from .maintenance import MetricMaintenance


def make_engine(U, X, *, eps, delta, m, L, R, lead, sketch, seed):
    """An index over the points X under U, by sketches unless exact rows cost less.

    The rule is ``m R + lead < k`` for the R of a neighbour query; an "auto" lead never
    breaks it. `R` and `lead` may be "auto", `m` is a number.
    """
    k = X.shape[1] if U is None else len(U)
    asked = None if R == "auto" else R
    votes, _ = plan.certificate(1, k, m, L, asked, eps, delta, sketch)
    if not plan.pays(m, votes, 0 if lead == "auto" else lead, k):
        return ExactMaintenance(U, X)
    return MetricMaintenance(
        U, X, eps=eps, delta=delta, m=m, L=L, R=R, lead=lead, sketch=sketch, seed=seed
    )
