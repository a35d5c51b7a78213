"""Result comparison: named modes, and digests that agree with them.

strict   ours: the same number of columns; rows as a multiset, or in order when the gold query orders: its
         outermost ORDER BY counts, and rows that it does not tell apart may come in any order.
         Typed: NULL is not '', '1' is not 1; 1 and 1.0 are equal numbers; floats equal within a relative
         1e-6 (two queries may sum in different orders); text, blobs and integers exactly.
bird     BIRD's official evaluator: set(predicted) == set(gold), so neither order nor repetition counts.
spider   the test-suite evaluator of Zhong et al. (2020), "Semantic Evaluation for Text-to-SQL with
         Distilled Test Suites", with its option --keep_distinct (without it, it takes DISTINCT out of both
         queries): rows as a multiset, in order when "order by" stands anywhere in the gold query, under some
         permutation of the columns. bird and spider compare values as Python does (1 == 1.0).

`soft_f1` is no mode but a score, for partial credit.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MODES = ("bird", "spider", "strict")
RELATIVE = 1e-6  # float tolerance of strict
ABSOLUTE = 1e-9  # for floats next to zero
_DIGITS = ".7g"  # equal in seven significant digits is equal within RELATIVE

REORDERED = "the same rows in another order, and the gold query orders them"

Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the results match, and why in words. reordered: only the order of the rows is wrong."""

    match: bool
    reason: str
    reordered: bool = False


def compare(
    predicted: Sequence[Row],
    gold: Sequence[Row],
    mode: str = "strict",
    *,
    ordered: bool = False,
    keys: Sequence[Row] | None = None,
) -> Verdict:
    """Compare two results (sequences of rows of equal length) under a mode.

    ordered: the gold query orders its result, as `orders` says; `bird` ignores it. keys: the values that each
    gold row was ordered by; with them `strict` lets rows of equal keys change places.
    Raises ValueError for an unknown mode.
    """
    verdict = _comparison(mode)(predicted, gold, ordered)
    if verdict.reordered and keys is not None and len(keys) == len(gold) and _tied(predicted, gold, keys):
        return Verdict(True, "the same rows in an order that ORDER BY allows")
    return verdict


def _comparison(mode: str) -> Callable[[Sequence[Row], Sequence[Row], bool], Verdict]:
    known = {"bird": _bird, "spider": _spider, "strict": _strict}
    if mode not in known:
        raise ValueError(f"unknown comparison mode '{mode}'; one of {', '.join(MODES)}")
    return known[mode]


def _tied(predicted: Sequence[Row], gold: Sequence[Row], keys: Sequence[Row]) -> bool:
    """Whether each run of gold rows with equal keys is matched, in any order, by the rows in its place."""
    start = 0
    for end in range(1, len(gold) + 1):
        if end == len(gold) or tuple(keys[end]) != tuple(keys[start]):
            if not _strict(predicted[start:end], gold[start:end], False).match:
                return False
            start = end
    return True


def orders(sql: str, mode: str = "strict", dialect: str = "sqlite") -> bool:
    """Whether a gold query orders its result under a mode: see the modes. False for what cannot be parsed."""
    if mode == "bird" or "order" not in sql.lower():
        return False
    if mode == "spider":
        return "order by" in sql.lower()
    from curate.sql.canonical import outermost_order

    return outermost_order(sql, dialect)


def soft_f1(predicted: Sequence[Row], gold: Sequence[Row]) -> float:
    """Partial credit in [0, 1] by cells, as BIRD's soft F1 counts them (BIRD mini-dev, evaluation_f1).

    Repeated rows count once. For a pair of rows, a predicted value that the gold row holds is a hit, one that it
    does not is false, a gold value that the predicted row lacks is missed; each as a share of the gold row's
    columns. Rows without a partner are wholly false or missed. F1 = 2PR / (P + R). Two empty results give 1.
    BIRD pairs the i-th rows of two Python sets, whose order is chance; here equal rows are paired first and the
    rest in sorted order, so the score is the same every time and never below that of the paired equals.
    """
    mine, theirs = dict.fromkeys(map(tuple, predicted)), dict.fromkeys(map(tuple, gold))
    if not mine and not theirs:
        return 1.0
    both = [row for row in theirs if row in mine]
    left = sorted((row for row in mine if row not in theirs), key=_row_token)
    right = sorted((row for row in theirs if row not in mine), key=_row_token)
    hits, false, missed = float(len(both)), 0.0, 0.0
    for one, other in zip(left, right, strict=False):
        width = max(1, len(other))
        hits += sum(value in other for value in one) / width
        false += sum(value not in other for value in one) / width
        missed += sum(value not in one for value in other) / width
    false += max(0, len(left) - len(right))
    missed += max(0, len(right) - len(left))
    precision = hits / (hits + false) if hits + false else 0.0
    recall = hits / (hits + missed) if hits + missed else 0.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def digest(rows: Iterable[Row], mode: str = "strict", *, ordered: bool = False) -> str:
    """32 hexadecimal digits of a result under a mode.

    strict: equal digests mean a match, and a match means equal digests but for floats that rounding to seven
    digits parts. bird: equal exactly when the sets are. spider: a match means equal digests (the converse
    can fail, since the pairing of columns is not kept).
    """
    if mode == "strict":
        tokens = [_row_token(row) for row in rows]
        return _hash(tokens if ordered else sorted(tokens))
    if mode == "bird":
        return _hash(sorted({_exact_token(row) for row in rows}))
    if mode == "spider":
        unordered = ["\x1e".join(sorted(_exact_value(v) for v in row)) for row in rows]
        return _hash(unordered if ordered else sorted(unordered))
    raise ValueError(f"unknown comparison mode '{mode}'; one of {', '.join(MODES)}")


def _hash(tokens: Iterable[str]) -> str:
    whole = hashlib.blake2b(digest_size=16)
    for token in tokens:
        data = token.encode("utf-8", "surrogatepass")
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.hexdigest()


# strict


def _strict(predicted: Sequence[Row], gold: Sequence[Row], ordered: bool) -> Verdict:
    refused = _sizes(predicted, gold)
    if refused:
        return refused
    # For what SQLite returns, Python's equality is the typed one: text, blobs, numbers and NULL are never equal
    # to each other. Only floats need more.
    if predicted == gold or (mine := [tuple(r) for r in predicted]) == (theirs := [tuple(r) for r in gold]):
        return Verdict(True, "the same rows in the same order")
    missing = Counter(theirs) - Counter(mine)
    if not missing:
        if not ordered:
            return Verdict(True, "the same rows")
        return Verdict(False, REORDERED, reordered=True)
    if _holds_float(mine) or _holds_float(theirs):
        if _close(mine, theirs, ordered):
            return Verdict(True, f"the same rows within a relative {RELATIVE:g}")
        if ordered and _close(mine, theirs, False):
            return Verdict(False, REORDERED, reordered=True)
    count = sum(missing.values())
    example = next(row for row in theirs if row in missing)
    return Verdict(False, f"{count} of {len(gold)} gold rows are missing, such as {_shown(example)}")


def _holds_float(rows: Sequence[Row]) -> bool:
    return any(isinstance(value, float) for row in rows for value in row)


def _sizes(predicted: Sequence[Row], gold: Sequence[Row]) -> Verdict | None:
    if predicted and gold and len(predicted[0]) != len(gold[0]):
        return Verdict(False, f"{len(predicted[0])} columns, gold has {len(gold[0])}")
    if len(predicted) != len(gold):
        return Verdict(False, f"{len(predicted)} rows, gold has {len(gold)}")
    return None


def _close(predicted: Sequence[Row], gold: Sequence[Row], ordered: bool) -> bool:
    """Row by row within tolerance; unordered rows are paired after sorting on what rounding cannot part."""
    if ordered:
        return all(_row_close(a, b) for a, b in zip(predicted, gold, strict=True))
    mine, theirs = sorted(predicted, key=_sort_key), sorted(gold, key=_sort_key)
    return all(_row_close(a, b) for a, b in zip(mine, theirs, strict=True))


def _sort_key(row: Row) -> tuple[Any, ...]:
    numbers = tuple(float(v) if isinstance(v, int | float) else 0.0 for v in row)
    return (tuple("number" if isinstance(v, int | float) else _token(v) for v in row), numbers)


def _row_close(a: Row, b: Row) -> bool:
    return all(_value_close(x, y) for x, y in zip(a, b, strict=True))


def _value_close(a: Any, b: Any) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        if not (isinstance(a, int | float) and isinstance(b, int | float)):
            return False
        try:
            return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        except OverflowError:
            return False
    return _token(a) == _token(b)


def _shown(row: Row) -> str:
    text = repr(tuple(row))
    return text if len(text) <= 100 else text[:99] + "…"


def _row_token(row: Row) -> str:
    return "\x1e".join(_token(value) for value in row)


def _token(value: Any) -> str:
    """A value as typed text: equal tokens are equal values under strict."""
    if value is None:
        return "null"
    if isinstance(value, float):
        if value.is_integer():
            return f"n{int(value)}"
        if not math.isfinite(value):
            return f"f{value}"
        rounded = float(format(value, _DIGITS))
        return f"n{int(rounded)}" if rounded.is_integer() else f"f{rounded!r}"
    if isinstance(value, int):
        return f"n{int(value)}"
    if isinstance(value, bytes):
        return f"b{value.hex()}"
    return f"t{value}"


# bird and spider: values as Python compares them


def _bird(predicted: Sequence[Row], gold: Sequence[Row], ordered: bool) -> Verdict:
    mine, theirs = {tuple(r) for r in predicted}, {tuple(r) for r in gold}
    if mine == theirs:
        return Verdict(True, "the same set of rows")
    return Verdict(
        False, f"{len(theirs - mine)} gold rows are missing, {len(mine - theirs)} rows are not gold"
    )


def _spider(predicted: Sequence[Row], gold: Sequence[Row], ordered: bool) -> Verdict:
    if not predicted and not gold:
        return Verdict(True, "both are empty")
    refused = _sizes(predicted, gold)
    if refused:
        return refused
    if _some_permutation(predicted, gold, ordered):
        return Verdict(True, "the same rows under some order of the columns")
    return Verdict(False, "no order of the columns makes the rows the same")


def _some_permutation(predicted: Sequence[Row], gold: Sequence[Row], ordered: bool) -> bool:
    """Choose for each gold column a predicted one so that the rows agree, column after column."""
    mine = [tuple(column) for column in zip(*predicted, strict=True)]
    theirs = [tuple(column) for column in zip(*gold, strict=True)]
    bags = [Counter(column) for column in mine]
    wanted = [Counter(column) for column in theirs]

    def agree(chosen: list[int]) -> bool:
        ours = list(zip(*(mine[c] for c in chosen), strict=True))
        gold_rows = list(zip(*theirs[: len(chosen)], strict=True))
        return ours == gold_rows if ordered else Counter(ours) == Counter(gold_rows)

    def extend(chosen: list[int]) -> bool:
        if len(chosen) == len(theirs):
            return True
        tried: set[Hashable] = set()
        for c in range(len(mine)):
            # Columns alike in every row are one choice.
            if c in chosen or mine[c] in tried or bags[c] != wanted[len(chosen)]:
                continue
            tried.add(mine[c])
            if agree([*chosen, c]) and extend([*chosen, c]):
                return True
        return False

    return extend([])


def _exact_token(row: Row) -> str:
    return "\x1e".join(_exact_value(v) for v in row)


def _exact_value(value: Any) -> str:
    """Equal texts for values that Python calls equal."""
    if isinstance(value, float) and value.is_integer():
        return f"n{int(value)}"
    return f"f{value!r}" if isinstance(value, float) else _token(value)
