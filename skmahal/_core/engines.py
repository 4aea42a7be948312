"""Which engine answers: sketches where they pay, exact rows where they do not."""

from . import plan
from .exact import ExactMaintenance
from .maintenance import MetricMaintenance


def make_engine(U, X, *, eps, delta, m, L, R, lead, sketch, seed):
    """An index over the points X under U, by sketches unless exact rows cost less.

    The rule is ``m R + lead < k`` for the R of a neighbour query; an "auto" lead never
    breaks it. `m`, `R` and `lead` may be "auto".
    """
    n, k = X.shape[0], X.shape[1] if U is None else len(U)
    rows = plan.sketch_rows(n, L, eps, delta, sketch) if m == "auto" else m
    asked = None if R == "auto" else R
    votes, _ = plan.certificate(1, k, rows, L, asked, eps, delta, sketch)
    if not plan.pays(rows, votes, 0 if lead == "auto" else lead, k):
        return ExactMaintenance(U, X)
    return MetricMaintenance(
        U, X, eps=eps, delta=delta, m=m, L=L, R=R, lead=lead, sketch=sketch, seed=seed
    )
