"""The demo's domains: tables, columns, and where their values come from, in English and Chinese."""

import random
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from curate.atomic import write_atomic

Kind = Literal["name", "category", "number"]
Language = Literal["en", "zh"]


@dataclass(frozen=True, slots=True)
class Column:
    """`label` is how a question names it. Numbers are integers in [low, high], distinct where they fit."""

    name: str
    label: dict[Language, str]
    kind: Kind
    values: dict[Language, tuple[str, ...]] | None = None
    low: int = 0
    high: int = 0


@dataclass(frozen=True)
class Table:
    """`parents`: tables it references by PARENT_id. `names` makes the values of its name column."""

    name: str
    plural: str
    label: dict[Language, str]
    columns: tuple[Column, ...]
    parents: tuple[str, ...] = ()
    rows: int = 20

    @property
    def named(self) -> bool:
        return any(c.kind == "name" for c in self.columns)

    def of_kind(self, kind: Kind) -> list[Column]:
        return [c for c in self.columns if c.kind == kind]


@dataclass(frozen=True)
class Domain:
    name: str
    tables: tuple[Table, ...]

    def table(self, name: str) -> Table:
        return next(t for t in self.tables if t.name == name)

    @cached_property
    def links(self) -> list[tuple[Table, Table]]:
        """(child, parent) for every foreign key."""
        return [(t, self.table(p)) for t in self.tables for p in t.parents]


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FIRST = _split(
    "Ann Ben Cora Dan Eva Finn Gina Hugo Iris Jack Kate Liam Mona Noah Olga Paul Rosa Sam Tina Umar"
)
_LAST = _split(
    "Adams Baker Clark Diaz Evans Foster Gray Hill Irwin Jones Klein Lopez Moore Nolan Owens Price"
)
_SURNAMES = _split("王 李 张 刘 陈 杨 赵 黄 周 吴 徐 孙 胡 朱 高 林")
_GIVEN = _split("伟 芳 娜 敏 静 丽 强 磊 军 洋 勇 艳 杰 娟 涛 明")

PEOPLE: dict[Language, tuple[str, ...]] = {
    "en": tuple(f"{a} {b}" for a in _FIRST for b in _LAST),
    "zh": tuple(f"{a}{b}" for a in _SURNAMES for b in _GIVEN),
}
CITIES: dict[Language, tuple[str, ...]] = {
    "en": _split("Paris Oslo Rome Madrid Vienna Dublin"),
    "zh": _split("北京 上海 广州 成都 武汉 西安"),
}


def _things(first: str, second: str, first_zh: str, second_zh: str) -> dict[Language, tuple[str, ...]]:
    return {
        "en": tuple(f"{a} {b}" for a in _split(first) for b in _split(second)),
        "zh": tuple(f"{a}{b}" for a in _split(first_zh) for b in _split(second_zh)),
    }


def _name(values: dict[Language, tuple[str, ...]]) -> Column:
    return Column("name", {"en": "name", "zh": "姓名" if values is PEOPLE else "名称"}, "name", values)


def _category(name: str, zh: str, values: str, values_zh: str) -> Column:
    choices: dict[Language, tuple[str, ...]] = {"en": _split(values), "zh": _split(values_zh)}
    return Column(name, {"en": name.replace("_", " "), "zh": zh}, "category", choices)


def _city() -> Column:
    return Column("city", {"en": "city", "zh": "城市"}, "category", CITIES)


def _number(name: str, zh: str, low: int, high: int) -> Column:
    return Column(name, {"en": name.replace("_", " "), "zh": zh}, "number", None, low, high)


def _table(name: str, plural: str, zh: str, *columns: Column, of: str = "", rows: int = 20) -> Table:
    return Table(name, plural, {"en": name.replace("_", " "), "zh": zh}, columns, _split(of), rows)


DOMAINS: tuple[Domain, ...] = (
    Domain(
        "shop",
        (
            _table("customer", "customers", "顾客", _name(PEOPLE), _city(), _number("age", "年龄", 18, 80)),
            _table(
                "product",
                "products",
                "商品",
                _name(
                    _things(
                        "red blue small large smart",
                        "lamp chair desk clock bag",
                        "红色 蓝色 小号 大号 智能",
                        "台灯 椅子 书桌 时钟 背包",
                    )
                ),
                _category("category", "类别", "home office travel garden", "家居 办公 旅行 园艺"),
                _number("price", "价格", 5, 900),
                _number("stock", "库存", 0, 500),
            ),
            _table(
                "purchase",
                "purchases",
                "订单",
                _number("quantity", "数量", 1, 30),
                _number("year", "年份", 2010, 2024),
                of="customer product",
                rows=60,
            ),
        ),
    ),
    Domain(
        "hospital",
        (
            _table(
                "doctor",
                "doctors",
                "医生",
                _name(PEOPLE),
                _category(
                    "specialty", "专科", "cardiology surgery pediatrics neurology", "心内科 外科 儿科 神经科"
                ),
                _number("salary", "工资", 300, 990),
                _number("age", "年龄", 28, 70),
            ),
            _table("patient", "patients", "病人", _name(PEOPLE), _city(), _number("age", "年龄", 1, 95)),
            _table(
                "visit",
                "visits",
                "就诊",
                _category("result", "结果", "cured stable referred", "治愈 稳定 转诊"),
                _number("cost", "费用", 20, 800),
                of="doctor patient",
                rows=60,
            ),
        ),
    ),
    Domain(
        "school",
        (
            _table("student", "students", "学生", _name(PEOPLE), _city(), _number("age", "年龄", 10, 40)),
            _table(
                "course",
                "courses",
                "课程",
                _name(
                    _things(
                        "basic modern applied advanced",
                        "algebra biology history music physics",
                        "基础 现代 应用 高级",
                        "代数 生物 历史 音乐 物理",
                    )
                ),
                _category("level", "级别", "easy middle hard", "初级 中级 高级"),
                _number("credits", "学分", 1, 60),
            ),
            _table(
                "enrollment",
                "enrollments",
                "选课",
                _number("grade", "成绩", 40, 100),
                _number("year", "年份", 2010, 2024),
                of="student course",
                rows=60,
            ),
        ),
    ),
    Domain(
        "airline",
        (
            _table(
                "airport",
                "airports",
                "机场",
                _name(
                    _things(
                        "north south east west central",
                        "field port hill bay gate",
                        "城北 城南 城东 城西 中央",
                        "机场 空港 航站 基地 枢纽",
                    )
                ),
                _city(),
                _number("gates", "登机口数", 2, 90),
            ),
            _table(
                "pilot",
                "pilots",
                "飞行员",
                _name(PEOPLE),
                _number("age", "年龄", 25, 65),
                _number("hours", "飞行小时", 100, 990),
            ),
            _table(
                "flight",
                "flights",
                "航班",
                _category("status", "状态", "landed delayed cancelled", "到达 延误 取消"),
                _number("distance", "距离", 100, 990),
                _number("price", "票价", 40, 900),
                of="airport pilot",
                rows=60,
            ),
        ),
    ),
    Domain(
        "library",
        (
            _table(
                "author",
                "authors",
                "作者",
                _name(PEOPLE),
                _category("country", "国家", "France Spain Japan Brazil", "法国 西班牙 日本 巴西"),
                _number("birth_year", "出生年份", 1900, 1990),
            ),
            _table(
                "book",
                "books",
                "图书",
                _name(
                    _things(
                        "silent golden hidden broken",
                        "river forest letter garden mirror",
                        "寂静的 金色的 隐藏的 破碎的",
                        "河流 森林 信件 花园 镜子",
                    )
                ),
                _category("genre", "体裁", "novel poetry drama", "小说 诗歌 戏剧"),
                _number("pages", "页数", 50, 900),
                of="author",
                rows=20,
            ),
            _table(
                "loan",
                "loans",
                "借阅",
                _number("days", "天数", 1, 90),
                _number("year", "年份", 2010, 2024),
                of="book",
                rows=50,
            ),
        ),
    ),
    Domain(
        "bank",
        (
            _table("client", "clients", "客户", _name(PEOPLE), _city(), _number("income", "收入", 100, 990)),
            _table(
                "account",
                "accounts",
                "账户",
                _category("type", "类型", "saving checking joint", "储蓄 支票 联名"),
                _number("balance", "余额", 10, 999),
                of="client",
                rows=40,
            ),
            _table(
                "transfer",
                "transfers",
                "转账",
                _category("channel", "渠道", "online branch phone", "网上 柜台 电话"),
                _number("amount", "金额", 5, 900),
                of="account",
                rows=60,
            ),
        ),
    ),
    Domain(
        "restaurant",
        (
            _table(
                "dish",
                "dishes",
                "菜品",
                _name(
                    _things(
                        "spicy sweet fried roasted",
                        "soup rice noodles fish salad",
                        "香辣 甜味 油炸 烤制",
                        "汤 米饭 面条 鱼 沙拉",
                    )
                ),
                _category("course", "类型", "starter main dessert", "前菜 主菜 甜点"),
                _number("price", "价格", 3, 120),
                _number("calories", "热量", 50, 900),
            ),
            _table("waiter", "waiters", "服务员", _name(PEOPLE), _number("age", "年龄", 18, 60)),
            _table(
                "bill",
                "bills",
                "账单",
                _category("payment", "支付方式", "cash card mobile", "现金 刷卡 手机"),
                _number("total", "总额", 5, 500),
                of="dish waiter",
                rows=60,
            ),
        ),
    ),
    Domain(
        "cinema",
        (
            _table(
                "director",
                "directors",
                "导演",
                _name(PEOPLE),
                _category("country", "国家", "France Spain Japan Brazil", "法国 西班牙 日本 巴西"),
                _number("age", "年龄", 30, 85),
            ),
            _table(
                "film",
                "films",
                "电影",
                _name(
                    _things(
                        "last first lost wild",
                        "summer dance planet road winter",
                        "最后的 最初的 失落的 狂野的",
                        "夏天 舞蹈 星球 道路 冬天",
                    )
                ),
                _category("genre", "类型", "comedy drama action", "喜剧 剧情 动作"),
                _number("minutes", "片长", 60, 200),
                _number("rating", "评分", 1, 100),
                of="director",
                rows=20,
            ),
            _table("screening", "screenings", "放映", _number("tickets", "票数", 5, 400), of="film", rows=50),
        ),
    ),
    Domain(
        "museum",
        (
            _table(
                "painter",
                "painters",
                "画家",
                _name(PEOPLE),
                _category("style", "风格", "realism cubism pop", "写实 立体 波普"),
                _number("birth_year", "出生年份", 1800, 1980),
            ),
            _table(
                "painting",
                "paintings",
                "画作",
                _name(
                    _things(
                        "blue evening stone quiet",
                        "harbor portrait horse window bridge",
                        "蓝色 傍晚 石头 宁静",
                        "港口 肖像 骏马 窗户 桥梁",
                    )
                ),
                _category("material", "材料", "oil ink chalk", "油画 水墨 粉笔"),
                _number("width", "宽度", 20, 400),
                _number("value", "估值", 10, 990),
                of="painter",
                rows=24,
            ),
        ),
    ),
    Domain(
        "farm",
        (
            _table(
                "field",
                "fields",
                "田地",
                _name(
                    _things(
                        "upper lower long round",
                        "meadow slope valley corner",
                        "上坡 下坡 长条 圆形",
                        "草地 坡地 谷地 角地",
                    )
                ),
                _category("soil", "土壤", "clay sand loam", "黏土 沙土 壤土"),
                _number("area", "面积", 1, 300),
                rows=14,
            ),
            _table(
                "worker",
                "workers",
                "工人",
                _name(PEOPLE),
                _number("age", "年龄", 18, 70),
                _number("wage", "工资", 50, 400),
            ),
            _table(
                "harvest",
                "harvests",
                "收成",
                _category("crop", "作物", "wheat corn beans", "小麦 玉米 豆子"),
                _number("weight", "重量", 10, 900),
                _number("year", "年份", 2010, 2024),
                of="field worker",
                rows=60,
            ),
        ),
    ),
    Domain(
        "league",
        (
            _table(
                "team",
                "teams",
                "球队",
                _name(
                    _things(
                        "red iron royal river",
                        "lions hawks wolves bears",
                        "红色 钢铁 皇家 河畔",
                        "雄狮 雄鹰 群狼 棕熊",
                    )
                ),
                _city(),
                _number("points", "积分", 1, 120),
                rows=14,
            ),
            _table(
                "player",
                "players",
                "球员",
                _name(PEOPLE),
                _category("position", "位置", "goalkeeper defender striker", "门将 后卫 前锋"),
                _number("goals", "进球数", 0, 90),
                _number("age", "年龄", 17, 41),
                of="team",
                rows=24,
            ),
        ),
    ),
    Domain(
        "hotel",
        (
            _table(
                "guest",
                "guests",
                "客人",
                _name(PEOPLE),
                _category("country", "国家", "France Spain Japan Brazil", "法国 西班牙 日本 巴西"),
                _number("age", "年龄", 18, 90),
            ),
            _table(
                "room",
                "rooms",
                "房间",
                _category("outlook", "景观", "sea city garden", "海景 城景 园景"),
                _number("floor", "楼层", 1, 30),
                _number("price", "价格", 30, 600),
                rows=24,
            ),
            _table(
                "booking",
                "bookings",
                "预订",
                _number("nights", "晚数", 1, 30),
                _number("year", "年份", 2010, 2024),
                of="guest room",
                rows=60,
            ),
        ),
    ),
    Domain(
        "company",
        (
            _table(
                "department",
                "departments",
                "部门",
                _name(
                    _things(
                        "global local digital",
                        "sales design support finance",
                        "全球 本地 数字",
                        "销售部 设计部 支持部 财务部",
                    )
                ),
                _city(),
                _number("budget", "预算", 50, 990),
                rows=12,
            ),
            _table(
                "employee",
                "employees",
                "员工",
                _name(PEOPLE),
                _category("role", "职位", "manager engineer analyst", "经理 工程师 分析师"),
                _number("salary", "工资", 200, 990),
                _number("age", "年龄", 20, 65),
                of="department",
                rows=24,
            ),
        ),
    ),
    Domain(
        "garage",
        (
            _table("owner", "owners", "车主", _name(PEOPLE), _city(), _number("age", "年龄", 18, 85)),
            _table(
                "car",
                "cars",
                "汽车",
                _category("color", "颜色", "white black silver", "白色 黑色 银色"),
                _number("year", "年份", 1990, 2024),
                _number("price", "价格", 20, 900),
                of="owner",
                rows=30,
            ),
            _table("repair", "repairs", "维修", _number("cost", "费用", 10, 800), of="car", rows=50),
        ),
    ),
    Domain(
        "zoo",
        (
            _table(
                "keeper",
                "keepers",
                "饲养员",
                _name(PEOPLE),
                _number("age", "年龄", 20, 65),
                _number("salary", "工资", 100, 500),
            ),
            _table(
                "animal",
                "animals",
                "动物",
                _name(
                    _things(
                        "little old brave sleepy",
                        "tiger panda zebra camel otter",
                        "小 老 勇敢 瞌睡",
                        "老虎 熊猫 斑马 骆驼 水獭",
                    )
                ),
                _category("diet", "食性", "meat plants both", "肉食 草食 杂食"),
                _number("weight", "体重", 2, 900),
                of="keeper",
                rows=20,
            ),
        ),
    ),
)

UNSEEN = ("company", "garage", "zoo")  # databases that only held-out rows ask about


@dataclass(frozen=True)
class Database:
    """A domain filled with values. `values`: (table, column) -> the column's values in row order."""

    db_id: str
    domain: Domain
    language: Language
    values: dict[tuple[str, str], tuple[str | int, ...]]


def fill(domain: Domain, db_id: str, language: Language, seed: int) -> Database:
    """Seeded values for every table: distinct names, distinct numbers where they fit."""
    draw = random.Random(f"{seed}/{db_id}/values")
    values: dict[tuple[str, str], tuple[str | int, ...]] = {}
    for table in domain.tables:
        count = table.rows
        for column in table.columns:
            if column.kind == "number":
                span = range(column.low, column.high + 1)
                numbers = draw.sample(span, count) if len(span) >= count else draw.choices(span, k=count)
                values[table.name, column.name] = tuple(numbers)
                continue
            words = (column.values or {})[language]
            names = column.kind == "name" and len(words) >= count
            chosen: Sequence[str] = draw.sample(words, count) if names else draw.choices(words, k=count)
            values[table.name, column.name] = tuple(chosen)
        for parent in table.parents:
            size = domain.table(parent).rows
            # Some parents have no children, so that "without any" has an answer.
            used = draw.sample(range(1, size + 1), max(2, round(size * 0.7)))
            values[table.name, f"{parent}_id"] = tuple(draw.choices(used, k=count))
    return Database(db_id, domain, language, values)


def write_database(database: Database, path: Path) -> None:
    """The database as a SQLite file; the same values give the same bytes."""
    connection = sqlite3.connect(":memory:")
    try:
        for table in database.domain.tables:
            connection.execute(_create(table))
            columns = [f"{p}_id" for p in table.parents] + [c.name for c in table.columns]
            held = [database.values[table.name, c] for c in columns]
            marks = ", ".join("?" * (len(columns) + 1))
            rows = [(i, *row) for i, row in enumerate(zip(*held, strict=True), start=1)]
            connection.executemany(f'INSERT INTO "{table.name}" VALUES ({marks})', rows)
        connection.commit()
        write_atomic(path, connection.serialize())
    finally:
        connection.close()


def _create(table: Table) -> str:
    parts = ["id INTEGER PRIMARY KEY"]
    parts += [f"{p}_id INTEGER REFERENCES {p}(id)" for p in table.parents]
    parts += [f"{c.name} {'INTEGER' if c.kind == 'number' else 'TEXT'}" for c in table.columns]
    return f'CREATE TABLE "{table.name}" ({", ".join(parts)})'
