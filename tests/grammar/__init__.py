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


def every(language, rng):
    """A call for every production of the language."""
    for form in language.forms:
        for name, kind in form.kinds.items():
            for what in kind.bad:
                yield _wrong_value(form, name, what, rng)
        for name in form.needed:
            yield _missing(form, name, rng)
        yield _unknown(form, rng)
    for make in language.together:
        yield make(rng)
    for name, values in language.at_fit.items():
        for form in _fits(language):
            for value in values:
                yield _wrong_at_fit(form, name, value, rng)
    for method, parameters in language.at_queries:
        for name, values in parameters.items():
            for value in values:
                yield _wrong_at_query(method, name, value, rng)


def draw(language, rng):
    """Any call of the language, half of them with a wrong value."""
    ways = [_some_wrong_value] * 4 + [_some_wrong_name]
    ways += [_not_together] if language.together else []
    ways += [_some_wrong_at_fit] if language.at_fit else []
    ways += [_some_wrong_at_query] if language.at_queries else []
    return _some(rng, ways)(language, rng)


def right(form, rng):
    """The form with arguments as they should be."""
    return {name: kind.good(rng) for name, kind in form.kinds.items()}


def _some(rng, items):
    return items[rng.integers(len(items))]


def _fits(language):
    return [form for form in language.forms if form.method == "fit"]


def _wrong_value(form, name, what, rng):
    fault = form.kinds[name].bad[what](rng)
    given = {**right(form, rng), name: fault.value}
    says = f"{name}: {what}", fault.says
    return Call(form.method, given, *says, may_be_index_error=name in INDICES)


def _missing(form, name, rng):
    given = right(form, rng)
    del given[name]
    return Call(form.method, given, f"{name} missing", rf"\b{name}\b|exactly one")


def _unknown(form, rng):
    given = {**right(form, rng), "colour": 1}
    return Call(form.method, given, "an unknown name", "'colour'|argument")


def _wrong_at_fit(form, name, value, rng):
    says = rf"\b{name}\b|{LEARNER_SAYS}"
    return Call("fit", right(form, rng), f"{name} at fit", says, {name: value})


def _wrong_at_query(method, name, value, rng):
    given, says = {"X": normal(rng, ROWS, D)}, rf"\b{name}\b"
    return Call(method, given, f"{name} at a query", says, {name: value})


def _some_wrong_value(language, rng):
    form = _some(rng, [form for form in language.forms if form.kinds])
    name = _some(rng, [name for name, kind in form.kinds.items() if kind.bad])
    return _wrong_value(form, name, _some(rng, list(form.kinds[name].bad)), rng)


def _some_wrong_name(language, rng):
    form = _some(rng, language.forms)
    if form.needed and rng.random() < 0.5:
        return _missing(form, _some(rng, form.needed), rng)
    return _unknown(form, rng)


def _not_together(language, rng):
    return _some(rng, language.together)(rng)


def _some_wrong_at_fit(language, rng):
    name = _some(rng, list(language.at_fit))
    form, value = _some(rng, _fits(language)), _some(rng, language.at_fit[name])
    return _wrong_at_fit(form, name, value, rng)


def _some_wrong_at_query(language, rng):
    method, parameters = _some(rng, language.at_queries)
    name = _some(rng, list(parameters))
    return _wrong_at_query(method, name, _some(rng, parameters[name]), rng)


# Arguments for which Python's own error is that of an index.
INDICES = ("indices", "rows", "i", "j", "a")

# What clone, or the random state, says of a parameter.
LEARNER_SAYS = "too large|[Ss]eed"
