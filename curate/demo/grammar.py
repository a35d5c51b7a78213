"""A small compositional grammar of questions: a template gives a SQL, and several phrasings of its question."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from curate.demo.domains import Column, Database, Language, Table

Phrasings = dict[Language, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Drawn:
    """One query. `slots` fill the phrasings; `contrast` is the same template a word away."""

    template: str
    stage: int
    sql: str
    slots: dict[str, str]
    contrast: "Drawn | None" = None


def phrase(drawn: Drawn, language: Language) -> list[str]:
    """Every phrasing of the question, in a fixed order."""
    return [text.format_map(drawn.slots) for text in PHRASINGS[drawn.template][language]]


# How each comparison is said.
SAID: dict[Language, dict[str, str]] = {
    "en": {">": "more than", "<": "less than", ">=": "at least", "<=": "at most"},
    "zh": {">": "大于", "<": "小于", ">=": "至少为", "<=": "至多为"},
}
OPPOSITE = {">": "<", "<": ">", ">=": "<=", "<=": ">="}
AGGREGATES: dict[Language, dict[str, str]] = {
    "en": {"AVG": "average", "MAX": "highest", "MIN": "lowest", "SUM": "total"},
    "zh": {"AVG": "平均", "MAX": "最高", "MIN": "最低", "SUM": "总"},
}
OTHER_AGGREGATE = {"AVG": "SUM", "SUM": "AVG", "MAX": "MIN", "MIN": "MAX"}

PHRASINGS: dict[str, Phrasings] = {
    "compare": {
        "en": (
            "What is the {c} of every {t} with {n} {op} {v}?",
            "Show each {t} having {n} of {op} {v}; I want the {c}.",
            "{ts} where {n} is {op} {v}: give {c}",
            "Looking at {ts} of {op} {v} in {n}, list their {c}.",
        ),
        "zh": (
            "{n}{op}{v}的{t}的{c}是什么？",
            "请列出{c}，只看{t}中{n}{op}{v}的记录。",
            "哪些{t}的{n}{op}{v}？给出它们的{c}。",
            "我想知道{t}表里{n}{op}{v}者的{c}",
        ),
    },
    "equal": {
        "en": (
            "What is the {c} of the {ts} with {k} {w}?",
            "Give me the {c} for all {w} {ts} by {k}.",
            "Find every {t} in {k} {w} and return {c}",
            "{k} equals {w}: which {c} do those {ts} have?",
        ),
        "zh": (
            "{k}为{w}的{t}的{c}是什么？",
            "请给出{c}：{t}的{k}必须是{w}",
            "找出{k}等于{w}的所有{t}，返回{c}。",
            "哪些{c}属于{k}是{w}的{t}？",
        ),
    },
    "not_equal": {
        "en": (
            "What is the {c} of the {ts} whose {k} is not {w}?",
            "Excluding {k} {w}, return each {t} by {c}.",
            "List {c} for {ts} of any {k} except {w}",
            "All {ts} outside {k} {w}: show the {c}.",
        ),
        "zh": (
            "{k}不是{w}的{t}的{c}是什么？",
            "除去{k}{w}，列出其余{t}的{c}。",
            "请给出{c}，{t}的{k}不得为{w}",
            "哪些{t}不属于{k}{w}？返回{c}。",
        ),
    },
    "both": {
        "en": (
            "What is the {c} of {ts} with {k} {w} and {n} {op} {v}?",
            "Return {c}: {n} of the {t} is {op} {v}, and {k} is {w}.",
            "Which {w} {ts} by {k} also show {n} of {op} {v}? Give {c}.",
            "Find every {t}, {k} {w}, {op} {v} in {n}; list {c}",
        ),
        "zh": (
            "{k}为{w}且{n}{op}{v}的{t}的{c}是什么？",
            "请列出{c}：{t}的{n}{op}{v}，同时{k}是{w}。",
            "哪些{t}既属于{k}{w}，又有{n}{op}{v}？给出{c}",
            "在{k}等于{w}的{t}里找{n}{op}{v}的，返回{c}。",
        ),
    },
    "either": {
        "en": (
            "What is the {c} of {ts} with {k} {w} or {k} {w2}?",
            "Return each {t} from {w} or {w2} by {k}; show {c}.",
            "Either {w} or {w2} as {k}: list {c} for such {ts}",
        ),
        "zh": (
            "{k}为{w}或{w2}的{t}的{c}是什么？",
            "请列出{c}，{t}的{k}可以是{w}或者{w2}。",
            "哪些{t}属于{k}{w}或{w2}？返回{c}",
        ),
    },
    "between": {
        "en": (
            "What is the {c} of {ts} with {n} between {v} and {v2}?",
            "From {v} to {v2} in {n}, which {ts} are there? Give {c}.",
            "List {c} for any {t} whose {n} lies in {v} to {v2}",
        ),
        "zh": (
            "{n}在{v}到{v2}之间的{t}的{c}是什么？",
            "请列出{c}，条件是{t}的{n}介于{v}和{v2}。",
            "哪些{t}的{n}从{v}至{v2}？返回{c}",
        ),
    },
    "two": {
        "en": (
            "Show {c} and {c2} of {ts} with {n} {op} {v}.",
            "For each {t} with {n} of {op} {v}, return the {c} along with the {c2}.",
            "{n} {op} {v}: list {ts} by {c}, {c2}",
        ),
        "zh": (
            "列出{n}{op}{v}的{t}的{c}和{c2}。",
            "请返回{c}以及{c2}，{t}需满足{n}{op}{v}",
            "哪些{t}的{n}{op}{v}？给出{c}、{c2}。",
        ),
    },
    "distinct": {
        "en": (
            "What different {k} values do {ts} with {n} {op} {v} have?",
            "List every distinct {k} among {ts} of {op} {v} in {n}.",
            "{n} {op} {v}: which unique {k} occurs for a {t}?",
        ),
        "zh": (
            "{n}{op}{v}的{t}有哪些不同的{k}？",
            "请列出不重复的{k}，只看{t}中{n}{op}{v}的。",
            "去重后，{t}里{n}{op}{v}者的{k}是什么",
        ),
    },
    "count": {
        "en": (
            "How many {ts} have {n} {op} {v}?",
            "Count every {t} of {op} {v} in {n}.",
            "Number of {ts} when {n} is {op} {v}",
            "Tell me the count for each {t} reaching {n} of {op} {v}.",
        ),
        "zh": (
            "{n}{op}{v}的{t}有多少？",
            "请统计{t}中{n}{op}{v}的数目。",
            "一共有几个{t}的{n}{op}{v}",
            "数一数：{t}，要求{n}{op}{v}。",
        ),
    },
    "count_equal": {
        "en": (
            "How many {ts} have {k} {w}?",
            "Count every {t} where {w} is the {k}.",
            "Number of {w} {ts} by {k}",
        ),
        "zh": (
            "{k}为{w}的{t}有多少？",
            "请统计{t}中{k}等于{w}的数目。",
            "一共有几个{t}属于{k}{w}",
        ),
    },
    "aggregate": {
        "en": (
            "What is the {a} {n} of all {ts}?",
            "Compute the {a} {n} over each {t}.",
            "{ts}: {a} {n}",
        ),
        "zh": ("所有{t}的{a}{n}是多少？", "请计算{t}的{a}{n}。", "{t}表中{a}{n}为几"),
    },
    "aggregate_equal": {
        "en": (
            "What is the {a} {n} of {ts} with {k} {w}?",
            "Compute for {w} as {k} the {a} {n} over each {t}.",
            "Only {k} {w}: {a} {n} among {ts}",
        ),
        "zh": (
            "{k}为{w}的{t}的{a}{n}是多少？",
            "请计算{a}{n}，只看{k}是{w}的{t}。",
            "在{t}里，{k}等于{w}时{a}{n}为几",
        ),
    },
    "group_count": {
        "en": (
            "How many {ts} are there for each {k}?",
            "Show every {k} with its number of {ts}.",
            "Count {ts} grouped by {k}",
        ),
        "zh": ("每个{k}有多少{t}？", "请按{k}统计{t}的数目。", "列出各{k}及其{t}数量"),
    },
    "group_aggregate": {
        "en": (
            "What is the {a} {n} of {ts} for each {k}?",
            "Show every {k} with the {a} {n} over its {ts}.",
            "{a} {n} grouped by {k}, from {ts}",
        ),
        "zh": ("每个{k}的{t}的{a}{n}是多少？", "请按{k}计算{t}的{a}{n}。", "列出各{k}及{t}{a}{n}"),
    },
    "having": {
        "en": (
            "Which {k} has {op} {v} {ts}?",
            "List each {k} where the number of {ts} is {op} {v}.",
            "{op} {v} {ts} share what {k}",
        ),
        "zh": ("哪些{k}的{t}数量{op}{v}？", "列出{t}个数{op}{v}的每个{k}。", "{k}下有{op}{v}个{t}的是什么"),
    },
    "order": {
        "en": (
            "List the {c} of all {ts} in {d} order of {n}.",
            "Sort every {t} by {n}, {d}, and show {c}.",
            "{ts} ranked on {d} {n}: give {c}",
        ),
        "zh": ("按{n}{d}列出所有{t}的{c}。", "请把{t}依{n}{d}排列，显示{c}", "{c}列表：{t}，{n}{d}排序。"),
    },
    "top": {
        "en": (
            "What is the {c} of the {v} {ts} with the {s} {n}?",
            "Return {c} for the {s} {v} by {n} among {ts}.",
            "Which {v} of the {ts} have the {s} {n}? Show {c}",
        ),
        "zh": (
            "{n}{s}的{v}个{t}的{c}是什么？",
            "请给出{t}中{n}{s}的前{v}名的{c}。",
            "哪{v}个{t}拥有{s}的{n}？返回{c}",
        ),
    },
    "join": {
        "en": (
            "What is the {pc} of the {p} for each {t} with {n} {op} {v}?",
            "Show {pc} of {ps} linked to any {t} of {op} {v} in {n}.",
            "For {ts} where {n} is {op} {v}, list the {p} {pc}",
        ),
        "zh": (
            "{n}{op}{v}的{t}对应的{p}的{pc}是什么？",
            "请列出{p}的{pc}，其{t}的{n}{op}{v}。",
            "查找{t}里{n}{op}{v}的记录，显示{p}{pc}",
        ),
    },
    "join_count": {
        "en": (
            "How many {ts} belong to {ps} with {pk} {w}?",
            "Count each {t} whose {p} has {w} as {pk}.",
            "Number of {ts} under {p} {pk} {w}",
        ),
        "zh": ("{pk}为{w}的{p}有多少{t}？", "请统计{p}的{pk}是{w}的{t}数目。", "一共有几个{t}属于{p}{pk}{w}"),
    },
    "join_group": {
        "en": (
            "How many {ts} does each {p} have? Show {pc} and the count.",
            "For every {p}, give the {pc} with the number of {ts}.",
            "{ts} counted per {p} {pc}",
        ),
        "zh": (
            "每个{p}有多少{t}？显示{pc}和数量。",
            "请按{p}{pc}统计{t}的数目。",
            "列出各{p}的{pc}及其{t}个数",
        ),
    },
    "above_average": {
        "en": (
            "What is the {c} of {ts} with {n} {side} the average?",
            "Which {ts} are {side} the mean {n}? Return {c}.",
            "Compare {n} to its average: list {c} of every {t} {side} it",
        ),
        "zh": (
            "{n}{side}平均值的{t}的{c}是什么？",
            "哪些{t}的{n}{side}平均水平？返回{c}。",
            "请列出{c}：{t}，{n}{side}全体均值",
        ),
    },
    "in": {
        "en": (
            "What is the {pc} of {ps} that have some {t} with {n} {op} {v}?",
            "Which {ps} own any {t} of {op} {v} in {n}? Give {pc}.",
            "List {pc} of each {p} found in {ts} where {n} is {op} {v}, once per {p}",
        ),
        "zh": (
            "至少有一个{t}的{n}{op}{v}的{p}的{pc}是什么？",
            "哪些{p}拥有{n}{op}{v}的任何{t}？给出{pc}。",
            "列出出现在{t}（{n}{op}{v}）中的{p}的{pc}，每个只列一次",
        ),
    },
    "not_in": {
        "en": (
            "What is the {pc} of {ps} without any {t}?",
            "Which {ps} have no {t} at all? Return {pc}.",
            "List {pc} for every {p} never seen in {ts}",
        ),
        "zh": (
            "没有任何{t}的{p}的{pc}是什么？",
            "哪些{p}从未有过{t}？返回{pc}。",
            "列出与{t}无关的每个{p}的{pc}",
        ),
    },
    "extreme": {
        "en": (
            "Which {ts} have the {s} {n} among those with {k} {w}? Give {c}.",
            "What {c} has the {t} whose {n} equals the {s} one for {k} {w}?",
            "{k} {w}: return {c} of {ts} holding its {s} {n}",
        ),
        "zh": (
            "{n}等于{k}为{w}者中{s}{n}的{t}的{c}是什么？",
            "在{k}{w}里取{s}的{n}，哪些{t}与之相同？给出{c}。",
            "返回{c}：{t}的{n}是{k}{w}中{s}的",
        ),
    },
    "set": {
        "en": (
            "Which {k} values have {ts} with {n} {op} {v} {joined} {ts} with {n} {op2} {v2}?",
            "List each {k} of {op} {v} in {n}, {joined} {op2} {v2}, over {ts}.",
            "{ts}: {k} for {n} {op} {v}, {joined} for {n} {op2} {v2}",
        ),
        "zh": (
            "哪些{k}有{n}{op}{v}的{t}，{joined}有{n}{op2}{v2}的{t}？",
            "请列出{t}的{k}：{n}{op}{v}，{joined}{n}{op2}{v2}。",
            "{t}中{n}{op}{v}的{k}{joined}{n}{op2}{v2}的{k}是什么",
        ),
    },
    "window": {
        "en": (
            "Show the {c} of {ts} with their rank by {d} {n}.",
            "Rank every {t} on {n}, {d}; return {c} and rank.",
            "Give each {t} a position by {n} {d}: {c}, position",
        ),
        "zh": (
            "显示{t}的{c}以及按{n}{d}的排名。",
            "请给每个{t}按{n}{d}编排名次，返回{c}和名次。",
            "列出{c}与名次：{t}，{n}{d}",
        ),
    },
    "window_equal": {
        "en": (
            "Show the {c} of {ts} with {k} {w} and their rank by {d} {n}.",
            "Only {k} {w}: rank each {t} on {n}, {d}; return {c} and rank.",
            "Among {w} {ts} by {k}, give a position by {n} {d}: {c}, position",
        ),
        "zh": (
            "显示{k}为{w}的{t}的{c}以及按{n}{d}的排名。",
            "只看{k}{w}，请给每个{t}按{n}{d}编排名次，返回{c}和名次。",
            "在{k}是{w}的{t}里列出{c}与名次：{n}{d}",
        ),
    },
}


class Grammar:
    """Queries over one database. Every draw comes from the generator that is passed in."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.language = database.language
        tables = database.domain.tables
        self.numeric = [t for t in tables if t.of_kind("number") and (t.named or t.of_kind("category"))]
        self.categorical = [t for t in tables if t.of_kind("category")]
        self.grouped = [t for t in self.categorical if t.of_kind("number")]
        self.counted = [t for t in tables if t.of_kind("number")]
        self.links = [(c, p) for c, p in database.domain.links if p.named]
        self.numeric_links = [(c, p) for c, p in self.links if c.of_kind("number")]
        self.category_links = [(c, p) for c, p in self.links if p.of_kind("category")]
        self.makers: dict[int, list[Callable[[random.Random], Drawn]]] = {
            1: [
                self.compare,
                self.equal,
                self.not_equal,
                self.both,
                self.either,
                self.between,
                self.two,
                self.distinct,
            ],
            2: [
                self.count,
                self.count_equal,
                self.aggregate,
                self.aggregate_equal,
                self.group_count,
                self.group_aggregate,
                self.having,
                self.order,
                self.top,
            ],
            3: [self.above_average, self.extreme, self.set_operation, self.window, self.window_equal],
        }
        if self.numeric_links:
            self.makers[2] += [self.join, self.join, self.join]
            self.makers[3] += [self.in_, self.in_, self.in_]
        if self.category_links:
            self.makers[2].append(self.join_count)
        if self.links:
            self.makers[2].append(self.join_group)
            self.makers[3].append(self.not_in)

    def draw(self, stage: int, draw: random.Random) -> Drawn:
        return draw.choice(self.makers[stage])(draw)

    # parts

    def _values(self, table: Table, column: Column) -> tuple[str | int, ...]:
        return self.database.values[table.name, column.name]

    def _number(self, table: Table, column: Column, draw: random.Random) -> int:
        """A literal inside the column's range: between two of its values, so that neither side is empty."""
        values = sorted(int(v) for v in self._values(table, column))
        return draw.randint(values[1], values[-2]) if len(values) > 3 else values[0]

    def _word(self, table: Table, column: Column, draw: random.Random) -> str:
        return str(draw.choice(sorted(set(map(str, self._values(table, column))))))

    def _shown(self, table: Table, draw: random.Random, *, but: Column | None = None) -> Column:
        """An output column: the name as a rule, now and then another."""
        names, others = table.of_kind("name"), [c for c in table.columns if c.kind != "name" and c != but]
        if names and (not others or draw.random() < 0.7):
            return names[0]
        return draw.choice(others or list(table.columns))

    def _slots(self, table: Table, **columns: Column) -> dict[str, str]:
        slots = {"t": table.label[self.language], "ts": table.label[self.language]}
        if self.language == "en":
            slots["ts"] = table.plural
        return {**slots, **{name: column.label[self.language] for name, column in columns.items()}}

    def _comparison(self, draw: random.Random) -> str:
        return draw.choice([">", "<", ">=", "<="])

    def _pair(
        self, template: str, stage: int, op: str, build: Callable[[str], tuple[str, dict[str, str]]]
    ) -> Drawn:
        """A query with a comparison, and the one that compares the other way."""
        sql, slots = build(op)
        other = OPPOSITE[op]
        other_sql, other_slots = build(other)
        return Drawn(template, stage, sql, slots, Drawn(template, stage, other_sql, other_slots))

    # stage 1

    def compare(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.numeric)
        n = draw.choice(t.of_kind("number"))
        c = self._shown(t, draw, but=n)
        v = self._number(t, n, draw)

        def build(op: str) -> tuple[str, dict[str, str]]:
            slots = {**self._slots(t, c=c, n=n), "op": SAID[self.language][op], "v": str(v)}
            return f"SELECT {c.name} FROM {t.name} WHERE {n.name} {op} {v}", slots

        return self._pair("compare", 1, self._comparison(draw), build)

    def equal(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.categorical)
        k = draw.choice(t.of_kind("category"))
        c, w = self._shown(t, draw, but=k), self._word(t, k, draw)
        sql = f"SELECT {c.name} FROM {t.name} WHERE {k.name} = '{w}'"
        return Drawn("equal", 1, sql, {**self._slots(t, c=c, k=k), "w": w})

    def not_equal(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.categorical)
        k = draw.choice(t.of_kind("category"))
        c, w = self._shown(t, draw, but=k), self._word(t, k, draw)
        sql = f"SELECT {c.name} FROM {t.name} WHERE {k.name} != '{w}'"
        return Drawn("not_equal", 1, sql, {**self._slots(t, c=c, k=k), "w": w})

    def both(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.grouped)
        k, n = draw.choice(t.of_kind("category")), draw.choice(t.of_kind("number"))
        c, w, v = self._shown(t, draw, but=k), self._word(t, k, draw), self._number(t, n, draw)

        def build(op: str) -> tuple[str, dict[str, str]]:
            slots = {**self._slots(t, c=c, n=n, k=k), "op": SAID[self.language][op], "v": str(v), "w": w}
            return f"SELECT {c.name} FROM {t.name} WHERE {k.name} = '{w}' AND {n.name} {op} {v}", slots

        return self._pair("both", 1, self._comparison(draw), build)

    def either(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.categorical)
        k = draw.choice(t.of_kind("category"))
        c = self._shown(t, draw, but=k)
        choices = sorted(set(map(str, self._values(t, k))))
        if len(choices) < 2:
            return self.equal(draw)
        w, w2 = sorted(draw.sample(choices, 2))
        sql = f"SELECT {c.name} FROM {t.name} WHERE {k.name} = '{w}' OR {k.name} = '{w2}'"
        return Drawn("either", 1, sql, {**self._slots(t, c=c, k=k), "w": w, "w2": w2})

    def between(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.numeric)
        n = draw.choice(t.of_kind("number"))
        c = self._shown(t, draw, but=n)
        v, v2 = sorted((self._number(t, n, draw), self._number(t, n, draw)))
        sql = f"SELECT {c.name} FROM {t.name} WHERE {n.name} BETWEEN {v} AND {v2}"
        return Drawn("between", 1, sql, {**self._slots(t, c=c, n=n), "v": str(v), "v2": str(v2)})

    def two(self, draw: random.Random) -> Drawn:
        t = draw.choice([t for t in self.numeric if len(t.columns) > 1])
        n = draw.choice(t.of_kind("number"))
        c, c2 = draw.sample(t.columns, 2)
        v = self._number(t, n, draw)

        def build(op: str) -> tuple[str, dict[str, str]]:
            slots = {**self._slots(t, c=c, c2=c2, n=n), "op": SAID[self.language][op], "v": str(v)}
            return f"SELECT {c.name}, {c2.name} FROM {t.name} WHERE {n.name} {op} {v}", slots

        return self._pair("two", 1, self._comparison(draw), build)

    def distinct(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.grouped)
        k, n = draw.choice(t.of_kind("category")), draw.choice(t.of_kind("number"))
        v = self._number(t, n, draw)

        def build(op: str) -> tuple[str, dict[str, str]]:
            slots = {**self._slots(t, n=n, k=k), "op": SAID[self.language][op], "v": str(v)}
            return f"SELECT DISTINCT {k.name} FROM {t.name} WHERE {n.name} {op} {v}", slots

        return self._pair("distinct", 1, self._comparison(draw), build)

    # stage 2

    def count(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.counted)
        n = draw.choice(t.of_kind("number"))
        v = self._number(t, n, draw)

        def build(op: str) -> tuple[str, dict[str, str]]:
            slots = {**self._slots(t, n=n), "op": SAID[self.language][op], "v": str(v)}
            return f"SELECT COUNT(*) FROM {t.name} WHERE {n.name} {op} {v}", slots

        return self._pair("count", 2, self._comparison(draw), build)

    def count_equal(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.categorical)
        k = draw.choice(t.of_kind("category"))
        w = self._word(t, k, draw)
        sql = f"SELECT COUNT(*) FROM {t.name} WHERE {k.name} = '{w}'"
        return Drawn("count_equal", 2, sql, {**self._slots(t, k=k), "w": w})

    def _aggregated(self, template: str, a: str, build: Callable[[str], tuple[str, dict[str, str]]]) -> Drawn:
        sql, slots = build(a)
        other_sql, other_slots = build(OTHER_AGGREGATE[a])
        return Drawn(template, 2, sql, slots, Drawn(template, 2, other_sql, other_slots))

    def aggregate(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.counted)
        n = draw.choice(t.of_kind("number"))

        def build(a: str) -> tuple[str, dict[str, str]]:
            slots = {**self._slots(t, n=n), "a": AGGREGATES[self.language][a]}
            return f"SELECT {a}({n.name}) FROM {t.name}", slots

        return self._aggregated("aggregate", draw.choice(sorted(OTHER_AGGREGATE)), build)

    def aggregate_equal(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.grouped)
        k, n = draw.choice(t.of_kind("category")), draw.choice(t.of_kind("number"))
        w = self._word(t, k, draw)

        def build(a: str) -> tuple[str, dict[str, str]]:
            slots = {**self._slots(t, n=n, k=k), "a": AGGREGATES[self.language][a], "w": w}
            return f"SELECT {a}({n.name}) FROM {t.name} WHERE {k.name} = '{w}'", slots

        return self._aggregated("aggregate_equal", draw.choice(sorted(OTHER_AGGREGATE)), build)

    def group_count(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.categorical)
        k = draw.choice(t.of_kind("category"))
        sql = f"SELECT {k.name}, COUNT(*) FROM {t.name} GROUP BY {k.name}"
        return Drawn("group_count", 2, sql, self._slots(t, k=k))

    def group_aggregate(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.grouped)
        k, n = draw.choice(t.of_kind("category")), draw.choice(t.of_kind("number"))

        def build(a: str) -> tuple[str, dict[str, str]]:
            slots = {**self._slots(t, n=n, k=k), "a": AGGREGATES[self.language][a]}
            return f"SELECT {k.name}, {a}({n.name}) FROM {t.name} GROUP BY {k.name}", slots

        return self._aggregated("group_aggregate", draw.choice(sorted(OTHER_AGGREGATE)), build)

    def having(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.categorical)
        k = draw.choice(t.of_kind("category"))
        v = draw.randint(2, 6)

        def build(op: str) -> tuple[str, dict[str, str]]:
            slots = {**self._slots(t, k=k), "op": SAID[self.language][op], "v": str(v)}
            return f"SELECT {k.name} FROM {t.name} GROUP BY {k.name} HAVING COUNT(*) {op} {v}", slots

        return self._pair("having", 2, self._comparison(draw), build)

    def _directed(
        self, template: str, stage: int, down: bool, build: Callable[[bool], tuple[str, dict[str, str]]]
    ) -> Drawn:
        sql, slots = build(down)
        other_sql, other_slots = build(not down)
        return Drawn(template, stage, sql, slots, Drawn(template, stage, other_sql, other_slots))

    def _direction(self, down: bool) -> str:
        if self.language == "zh":
            return "降序" if down else "升序"
        return "descending" if down else "ascending"

    def _superlative(self, down: bool) -> str:
        if self.language == "zh":
            return "最高" if down else "最低"
        return "highest" if down else "lowest"

    def order(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.numeric)
        n = draw.choice(t.of_kind("number"))
        c = self._shown(t, draw, but=n)

        def build(down: bool) -> tuple[str, dict[str, str]]:
            slots = {**self._slots(t, c=c, n=n), "d": self._direction(down)}
            return f"SELECT {c.name} FROM {t.name} ORDER BY {n.name} {'DESC' if down else 'ASC'}", slots

        return self._directed("order", 2, draw.random() < 0.5, build)

    def top(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.numeric)
        n = draw.choice(t.of_kind("number"))
        c = self._shown(t, draw, but=n)
        v = draw.randint(1, 8)

        def build(down: bool) -> tuple[str, dict[str, str]]:
            slots = {**self._slots(t, c=c, n=n), "s": self._superlative(down), "v": str(v)}
            end = f"ORDER BY {n.name} {'DESC' if down else 'ASC'} LIMIT {v}"
            return f"SELECT {c.name} FROM {t.name} {end}", slots

        return self._directed("top", 2, draw.random() < 0.5, build)

    def _parent_slots(self, parent: Table, **columns: Column) -> dict[str, str]:
        label = parent.label[self.language]
        slots = {"p": label, "ps": parent.plural if self.language == "en" else label}
        return {**slots, **{name: column.label[self.language] for name, column in columns.items()}}

    def join(self, draw: random.Random) -> Drawn:
        t, p = draw.choice(self.numeric_links)
        n, pc = draw.choice(t.of_kind("number")), self._shown(p, draw)
        v = self._number(t, n, draw)

        def build(op: str) -> tuple[str, dict[str, str]]:
            slots = {**self._slots(t, n=n), **self._parent_slots(p, pc=pc)}
            sql = (
                f"SELECT {p.name}.{pc.name} FROM {t.name} JOIN {p.name} ON {t.name}.{p.name}_id = {p.name}.id "
                f"WHERE {t.name}.{n.name} {op} {v}"
            )
            return sql, {**slots, "op": SAID[self.language][op], "v": str(v)}

        return self._pair("join", 2, self._comparison(draw), build)

    def join_count(self, draw: random.Random) -> Drawn:
        t, p = draw.choice(self.category_links)
        pk = draw.choice(p.of_kind("category"))
        w = self._word(p, pk, draw)
        sql = (
            f"SELECT COUNT(*) FROM {t.name} JOIN {p.name} ON {t.name}.{p.name}_id = {p.name}.id "
            f"WHERE {p.name}.{pk.name} = '{w}'"
        )
        return Drawn("join_count", 2, sql, {**self._slots(t), **self._parent_slots(p, pk=pk), "w": w})

    def join_group(self, draw: random.Random) -> Drawn:
        t, p = draw.choice(self.links)
        pc = p.of_kind("name")[0]
        sql = (
            f"SELECT {p.name}.{pc.name}, COUNT(*) FROM {t.name} JOIN {p.name} "
            f"ON {t.name}.{p.name}_id = {p.name}.id GROUP BY {p.name}.{pc.name}"
        )
        return Drawn("join_group", 2, sql, {**self._slots(t), **self._parent_slots(p, pc=pc)})

    # stage 3

    def above_average(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.numeric)
        n = draw.choice(t.of_kind("number"))
        c = self._shown(t, draw, but=n)
        said = {"en": {">": "above", "<": "below"}, "zh": {">": "高于", "<": "低于"}}[self.language]

        def build(op: str) -> tuple[str, dict[str, str]]:
            sql = f"SELECT {c.name} FROM {t.name} WHERE {n.name} {op} (SELECT AVG({n.name}) FROM {t.name})"
            return sql, {**self._slots(t, c=c, n=n), "side": said[op]}

        return self._pair("above_average", 3, draw.choice("<>"), build)

    def in_(self, draw: random.Random) -> Drawn:
        t, p = draw.choice(self.numeric_links)
        n, pc = draw.choice(t.of_kind("number")), self._shown(p, draw)
        v = self._number(t, n, draw)

        def build(op: str) -> tuple[str, dict[str, str]]:
            inner = f"SELECT {p.name}_id FROM {t.name} WHERE {n.name} {op} {v}"
            slots = {**self._slots(t, n=n), **self._parent_slots(p, pc=pc)}
            sql = f"SELECT {pc.name} FROM {p.name} WHERE id IN ({inner})"
            return sql, {**slots, "op": SAID[self.language][op], "v": str(v)}

        return self._pair("in", 3, self._comparison(draw), build)

    def not_in(self, draw: random.Random) -> Drawn:
        t, p = draw.choice(self.links)
        pc = self._shown(p, draw)
        sql = f"SELECT {pc.name} FROM {p.name} WHERE id NOT IN (SELECT {p.name}_id FROM {t.name})"
        return Drawn("not_in", 3, sql, {**self._slots(t), **self._parent_slots(p, pc=pc)})

    def extreme(self, draw: random.Random) -> Drawn:
        t = draw.choice([t for t in self.grouped if t.named] or self.grouped)
        k, n = draw.choice(t.of_kind("category")), draw.choice(t.of_kind("number"))
        c, w = self._shown(t, draw, but=n), self._word(t, k, draw)

        def build(down: bool) -> tuple[str, dict[str, str]]:
            a = "MAX" if down else "MIN"
            inner = f"SELECT {a}({n.name}) FROM {t.name} WHERE {k.name} = '{w}'"
            slots = {**self._slots(t, c=c, n=n, k=k), "s": self._superlative(down), "w": w}
            return f"SELECT {c.name} FROM {t.name} WHERE {n.name} = ({inner})", slots

        return self._directed("extreme", 3, draw.random() < 0.5, build)

    def set_operation(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.grouped)
        k, n = draw.choice(t.of_kind("category")), draw.choice(t.of_kind("number"))
        v, v2 = self._number(t, n, draw), self._number(t, n, draw)
        word = draw.choice(["INTERSECT", "EXCEPT", "UNION"])
        said = {
            "en": {"INTERSECT": "and also", "EXCEPT": "but not", "UNION": "or else"},
            "zh": {"INTERSECT": "并且", "EXCEPT": "但不", "UNION": "或者"},
        }[self.language]
        op, op2 = draw.choice([(">", "<"), ("<", ">")])
        sql = (
            f"SELECT {k.name} FROM {t.name} WHERE {n.name} {op} {v} {word} "
            f"SELECT {k.name} FROM {t.name} WHERE {n.name} {op2} {v2}"
        )
        slots = {
            **self._slots(t, k=k, n=n),
            "op": SAID[self.language][op],
            "op2": SAID[self.language][op2],
            "v": str(v),
            "v2": str(v2),
            "joined": said[word],
        }
        return Drawn("set", 3, sql, slots)

    def window(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.numeric)
        n = draw.choice(t.of_kind("number"))
        c = self._shown(t, draw, but=n)

        def build(down: bool) -> tuple[str, dict[str, str]]:
            over = f"RANK() OVER (ORDER BY {n.name} {'DESC' if down else 'ASC'})"
            slots = {**self._slots(t, c=c, n=n), "d": self._direction(down)}
            return f"SELECT {c.name}, {over} FROM {t.name}", slots

        return self._directed("window", 3, draw.random() < 0.5, build)

    def window_equal(self, draw: random.Random) -> Drawn:
        t = draw.choice(self.grouped)
        k, n = draw.choice(t.of_kind("category")), draw.choice(t.of_kind("number"))
        c, w = self._shown(t, draw, but=k), self._word(t, k, draw)

        def build(down: bool) -> tuple[str, dict[str, str]]:
            over = f"RANK() OVER (ORDER BY {n.name} {'DESC' if down else 'ASC'})"
            slots = {**self._slots(t, c=c, n=n, k=k), "d": self._direction(down), "w": w}
            return f"SELECT {c.name}, {over} FROM {t.name} WHERE {k.name} = '{w}'", slots

        return self._directed("window_equal", 3, draw.random() < 0.5, build)
