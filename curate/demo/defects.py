"""Ways to spoil a row: gold that fails, gold that is wrong, questions said almost the same."""

import random
import re
from collections.abc import Iterator

from curate.demo.domains import Domain
from curate.demo.grammar import OPPOSITE, OTHER_AGGREGATE


def wrong_golds(sql: str, domain: Domain, draw: random.Random) -> Iterator[tuple[str, str]]:
    """(what was done, SQL) for every mutation that applies, in random order. Whether the result differs is
    for the caller to see."""
    found = [
        ("flipped comparison", _flip_comparison(sql)),
        ("wrong aggregate", _other_aggregate(sql)),
        ("wrong column", _other_column(sql, domain, draw)),
        ("missing condition", _drop_condition(sql)),
        ("wrong order", _other_order(sql)),
        ("missing distinct", sql.replace("SELECT DISTINCT ", "SELECT ", 1)),
    ]
    draw.shuffle(found)
    yield from ((name, mutated) for name, mutated in found if mutated != sql)


def _flip_comparison(sql: str) -> str:
    return re.sub(r" (>=|<=|>|<) ", lambda m: f" {OPPOSITE[m.group(1)]} ", sql, count=1)


def _other_aggregate(sql: str) -> str:
    return re.sub(r"\b(AVG|MAX|MIN|SUM)\(", lambda m: f"{OTHER_AGGREGATE[m.group(1)]}(", sql, count=1)


def _other_column(sql: str, domain: Domain, draw: random.Random) -> str:
    match = re.match(r"SELECT (DISTINCT )?(\w+)(,[^;]*?)? FROM (\w+)", sql)
    if match is None or all(t.name != match.group(4) for t in domain.tables):
        return sql
    others = [c.name for c in domain.table(match.group(4)).columns if c.name != match.group(2)]
    if not others:
        return sql
    start, end = match.span(2)
    return sql[:start] + draw.choice(others) + sql[end:]


def _drop_condition(sql: str) -> str:
    shorter = re.sub(r" AND \w+ (>=|<=|>|<) \d+$", "", sql)
    if shorter != sql:
        return shorter
    return re.sub(r" WHERE [\w.]+ (>=|<=|>|<|=|!=) ('[^']*'|\d+)$", "", sql)


def _other_order(sql: str) -> str:
    swapped = {"ASC": "DESC", "DESC": "ASC"}
    return re.sub(r"\b(ASC|DESC)\b", lambda m: swapped[m.group(1)], sql, count=1)


def failing_golds(sql: str, domain: Domain, draw: random.Random) -> Iterator[tuple[str, str]]:
    """(what was done, SQL) for SQL that SQLite should refuse, in random order."""
    table = draw.choice(domain.tables)
    column = draw.choice(table.columns)
    found = [
        ("unknown column", re.sub(rf"\b{column.name}\b", f"{column.name}_code", sql)),
        ("missing table", re.sub(r"\bFROM (\w+)", r"FROM \1_archive", sql, count=1)),
        ("syntax error", sql.replace(" FROM ", " FORM ", 1)),
        ("unbalanced parenthesis", f"{sql})"),
        ("unfinished query", re.sub(r"\S+$", "", sql).rstrip() + " ="),
    ]
    draw.shuffle(found)
    yield from ((name, mutated) for name, mutated in found if mutated != sql)


FILLERS = {
    "en": ("please", "so", "well", "now", "kindly", "okay"),
    "zh": ("请问", "那么", "麻烦", "另外"),
}


def near_same(question: str, language: str, draw: random.Random) -> tuple[str, str]:
    """(what was done, the question with a filler word, other punctuation, or two words exchanged)."""
    kind = draw.choice(["filler word", "filler word", "punctuation", "word order"])
    if kind == "filler word":
        filler = draw.choice(FILLERS[language])
        if language == "zh":
            return kind, filler + question
        return kind, f"{filler.capitalize()}, {question[0].lower()}{question[1:]}"
    if kind == "punctuation":
        bare = question.rstrip(" ?.!？。！")
        ends = ("！", "。。", "？？") if language == "zh" else ("!", " ?", "...", "")
        return kind, bare + draw.choice([e for e in ends if bare + e != question])
    return kind, _reordered(question, language)


def _reordered(question: str, language: str) -> str:
    """The last clause first, where there are two; else the last two words exchanged."""
    comma = "，" if language == "zh" else ", "
    end = question[-1] if question[-1] in "?.!？。！" else ""
    body = question[: len(question) - len(end)]
    head, found, tail = body.rpartition(comma)
    if found:
        return f"{tail}{comma}{head}{end}"
    words = body.split(" ")
    if len(words) < 4:
        return f"{body}{end}呢" if language == "zh" else f"{body} then{end}"
    return " ".join([*words[:-2], words[-1], words[-2]]) + end
