"""Wrong calls of every public method, drawn from a grammar.

A form is a method and the kinds of its arguments. A kind gives right values, and wrong
ones with what the error has to say. A call has one fault: a wrong value, arguments that
do not go together, a parameter that is wrong, an argument too few or too many. So it is
known to be bad by the way it was made.
"""

from typing import NamedTuple

from .values import ROWS, Call, D, normal


class Language(NamedTuple):
    """All that can be wrong with the calls of an object."""

    forms: list
    together: list = []
    at_fit: dict = {}
    at_queries: list = []


def draw(language, rng):
    """A bad call of an object of this language."""
    ways = [_wrong_value, _wrong_value, _wrong_value, _wrong_names]
    ways += [_not_together] if language.together else []
    ways += [_wrong_at_fit] if language.at_fit else []
    ways += [_wrong_at_query] if language.at_queries else []
    return ways[rng.integers(len(ways))](language, rng)


def right(form, rng):
    """The form with arguments as they should be."""
    return {name: kind.good(rng) for name, kind in form.kinds.items()}


def _some(rng, items):
    return items[rng.integers(len(items))]


def _wrong_value(language, rng):
    form = _some(rng, [form for form in language.forms if form.kinds])
    name = _some(rng, [name for name, kind in form.kinds.items() if kind.bad])
    what = _some(rng, list(form.kinds[name].bad))
    fault = form.kinds[name].bad[what](rng)
    given = {**right(form, rng), name: fault.value}
    return Call(
        form.method,
        given,
        f"{name}: {what}",
        fault.says,
        may_be_index_error=name in ("indices", "rows", "i", "j", "a"),
    )


def _wrong_names(language, rng):
    """An argument that is missing, or one that there is not."""
    form = _some(rng, language.forms)
    given = right(form, rng)
    if form.needed and rng.random() < 0.5:
        name = _some(rng, form.needed)
        del given[name]
        return Call(form.method, given, f"{name} missing", rf"\b{name}\b|exactly one")
    return Call(
        form.method, {**given, "colour": 1}, "an unknown name", "'colour'|argument"
    )


def _not_together(language, rng):
    return _some(rng, language.together)(rng)


def _wrong_at_fit(language, rng):
    form = _some(rng, [form for form in language.forms if form.method == "fit"])
    name = _some(rng, list(language.at_fit))
    wrong = {name: _some(rng, language.at_fit[name])}
    return Call(
        "fit", right(form, rng), f"{name} at fit", rf"\b{name}\b|{LEARNER_SAYS}", wrong
    )


def _wrong_at_query(language, rng):
    method, parameters = _some(rng, language.at_queries)
    name = _some(rng, list(parameters))
    given = {"X": normal(rng, ROWS, D)}
    wrong = {name: _some(rng, parameters[name])}
    return Call(method, given, f"{name} at a query", rf"\b{name}\b", wrong)


# What clone, or the random state, says of a parameter.
LEARNER_SAYS = "too large|[Ss]eed"
