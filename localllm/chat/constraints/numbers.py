"""GBNF for the decimal numbers within bounds, which llama.cpp's own schema converter passes over."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

# Digits that a model may write behind what the bounds decide; more would be noise.
ANY = "[0-9]{0,6}"
SOME = "[0-9]{1,6}"
# Where there is no upper bound: digits of a whole number behind its first, and how many more than a long lower bound has.
MAX_DIGITS = 15
MORE_DIGITS = 6
# A bound so far off limits nothing that would be written without it, unless the other bound is as far off.
_FAR = Decimal(10) ** 40
_NEAR = Decimal(10) ** 30


@dataclass(frozen=True)
class Bound:
    """An end of a range: its value, and whether it belongs to it."""

    value: Decimal
    inclusive: bool


def number(low: Bound | None, high: Bound | None) -> str:
    """A GBNF expression for the numbers between two bounds, written without exponents.

    Args:
        low, high: Bound, None for no limit.

    Raises:
        ValueError: There is no such number.
    """
    low, high = _near_ones(low, high)
    zero = Bound(Decimal(0), True)
    parts = []
    if high is None or high.value > 0 or (high.value == 0 and high.inclusive):
        start = low if low is not None and low.value >= 0 else zero
        parts += _magnitudes(start, high)
    if low is None or low.value < 0:
        # Decimal's minus would round to 28 digits.
        nearest = Bound(high.value.copy_negate(), high.inclusive) if high is not None and high.value <= 0 else zero
        farthest = None if low is None else Bound(low.value.copy_negate(), low.inclusive)
        parts += [f'"-" ({part})' for part in _magnitudes(nearest, farthest)]
    if not parts:
        raise ValueError("no number is within these bounds")
    return " | ".join(parts)


def integer(low: int | None, high: int | None) -> str:
    """A GBNF expression for the whole numbers from `low` to `high`, of any size; None for no limit.

    Raises:
        ValueError: There is no such number.
    """
    near = _near_ones(*(None if value is None else Bound(Decimal(value), True) for value in (low, high)))
    least, most = (None if bound is None else int(bound.value) for bound in near)
    parts = []
    if most is None or most >= 0:
        parts += integers(max(least or 0, 0), most)
    if least is None or least < 0:
        nearest = 1 if most is None or most >= 0 else -most
        parts += [f'"-" ({part})' for part in integers(nearest, None if least is None else -least)]
    if not parts:
        raise ValueError("no whole number is within these bounds")
    return " | ".join(parts)


def _near_ones(low: Bound | None, high: Bound | None) -> tuple[Bound | None, Bound | None]:
    """The bounds without one that is out of reach, as the largest number of a programming language is."""
    far_high = high is not None and high.value >= _FAR and (low is None or low.value < _NEAR)
    far_low = low is not None and low.value <= -_FAR and (high is None or high.value > -_NEAR)
    return None if far_low else low, None if far_high else high


def _magnitudes(low: Bound, high: Bound | None) -> list[str]:
    """Alternatives for low <= x <= high, where low is not negative."""
    first, above = _split(low.value)
    if high is None:
        return [*_from(first, above, low.inclusive), *integers(first + 1, None, f'("." {SOME})?')]
    if low.value > high.value or (low.value == high.value and not (low.inclusive and high.inclusive)):
        return []
    last, below = _split(high.value)
    if first == last:
        fractions = _between(above, below, low.inclusive, high.inclusive)
        whole = [_literal(first)] if not above and low.inclusive and (below or high.inclusive) else []
        return [*whole, *(f'{_literal(first)} "." ({fraction})' for fraction in fractions)]
    upper = [f'{_literal(last)} "." ({fraction})' for fraction in _at_most(below, high.inclusive)] if below else []
    whole = [_literal(last)] if below or high.inclusive else []
    return [*_from(first, above, low.inclusive), *integers(first + 1, last - 1, f'("." {SOME})?'), *whole, *upper]


def _from(first: int, digits: str, inclusive: bool) -> list[str]:
    """Numbers with the integral part `first` whose fraction is at least `digits`."""
    if not digits and inclusive:
        return [f'{_literal(first)} ("." {SOME})?']
    return [f'{_literal(first)} "." ({fraction})' for fraction in _at_least(digits, inclusive)]


def integers(low: int, high: int | None, tail: str = "") -> list[str]:
    """Alternatives for the integers low to high, none of them negative, each followed by `tail`."""
    result: list[str] = []
    while high is None or low <= high:
        text = str(low)
        if high is None and text.strip("0") == "1":
            # 1, 10, 100 and so on: all numbers of as many digits, and of more.
            least = len(text) - 1
            most = MAX_DIGITS if least < MAX_DIGITS else least + MORE_DIGITS
            return [*result, f"[1-9] [0-9]{{{least},{most}}} {tail}".strip()]
        n_free, digit = _block(low, high)
        at = len(text) - n_free - 1
        free = f"[0-9]{{{n_free}}} " if n_free else ""
        result.append(f"{_prefix(text, at)}[{text[at]}-{digit}] {free}{tail}".strip())
        low += (digit - int(text[at]) + 1) * 10**n_free
    return result


def _block(low: int, high: int | None) -> tuple[int, int]:
    """How many of the last digits of `low` may be anything, and how far the digit before them may rise, up to `high`."""
    n_free = 0
    while n_free + 1 < len(str(low)) and low % 10 ** (n_free + 1) == 0 and (high is None or low + 10 ** (n_free + 1) - 1 <= high):
        n_free += 1
    digit = int(str(low)[len(str(low)) - n_free - 1])
    while digit < 9 and (high is None or low + 2 * 10**n_free - 1 <= high):
        digit += 1
        low += 10**n_free
    return n_free, digit


def _at_least(digits: str, inclusive: bool) -> list[str]:
    """Fractions (the digits behind the point) that are not below 0.digits; `digits` has no zeros at its end."""
    result = [f"{_prefix(digits, at)}[{int(digit) + 1}-9] {ANY}" for at, digit in enumerate(digits) if digit != "9"]
    tail = ANY if inclusive else f"[0]{{0,3}} [1-9] {ANY}"
    return [*result, f"{_prefix(digits, len(digits))}{tail}"]


def _at_most(digits: str, inclusive: bool) -> list[str]:
    """Fractions that are not above 0.digits; `digits` is not empty and has no zeros at its end."""
    result = [f"{_prefix(digits, at)}[0-{int(digit) - 1}] {ANY}" for at, digit in enumerate(digits) if digit != "0"]
    result += [_literal(digits[:at]) for at in range(1, len(digits))]
    return [*result, f"{_prefix(digits, len(digits))}[0]{{0,3}}"] if inclusive else result


def _between(low: str, high: str, low_inclusive: bool, high_inclusive: bool) -> list[str]:
    """Fractions from 0.low to 0.high."""
    if not high:
        return []
    length = max(len(low), len(high))
    one, other = low.ljust(length, "0"), high.ljust(length, "0")
    if one == other:
        return [f"{_prefix(high, len(high))}[0]{{0,3}}"] if low_inclusive and high_inclusive else []
    at = next(at for at in range(length) if one[at] != other[at])
    before = _prefix(one, at)
    result = []
    if int(other[at]) - int(one[at]) > 1:
        result.append(f"{before}[{int(one[at]) + 1}-{int(other[at]) - 1}] {ANY}")
    rest = one[at + 1 :].rstrip("0")
    result += [f"{before}{_literal(one[at])} {tail}" for tail in _at_least(rest, low_inclusive)]
    rest = other[at + 1 :].rstrip("0")
    if rest:
        result.append(f"{before}{_literal(other[at])}")
        result += [f"{before}{_literal(other[at])} {tail}" for tail in _at_most(rest, high_inclusive)]
    elif high_inclusive:
        result.append(f"{before}{_literal(other[at])} [0]{{0,3}}")
    return result


def _split(value: Decimal) -> tuple[int, str]:
    """The integral part and the digits behind the point, without zeros at their end."""
    whole, _, fraction = f"{value:f}".partition(".")
    return int(whole), fraction.rstrip("0")


def _prefix(digits: str, n: int) -> str:
    return f"{_literal(digits[:n])} " if n else ""


def _literal(digits: str | int) -> str:
    return f'"{digits}"'
