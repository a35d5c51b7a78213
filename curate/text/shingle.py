"""Normal form of a question, and its character shingles.

Characters, not words: a Chinese question has no spaces, and questions are short. A string shorter than the
shingle is one shingle, so short strings never collapse into one another.
"""

import re
import unicodedata

SIZE = 4  # characters in a shingle

_SPACE = re.compile(r"\s+")
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\w+|\S""")
_END = " \t\n.?!。？！；;,，"


def normalize_question(text: str) -> str:
    """NFKC, case folded, runs of space as one, punctuation at the end cut."""
    return _SPACE.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip().rstrip(_END)


def fold_question(text: str) -> str:
    """Case folded, runs of space as one; punctuation stays."""
    return " ".join(text.casefold().split())


def fold_sql(sql: str) -> str:
    """SQL with case and space folded outside quotes; nothing is parsed, only cut into tokens."""
    tokens = _TOKEN.findall(sql.strip().rstrip(";"))
    return " ".join(t if t[0] in "'\"`" else t.lower() for t in tokens)


def shingles(text: str, size: int = SIZE) -> frozenset[str]:
    """The set of `size`-character substrings; the text itself when it is shorter."""
    if len(text) <= size:
        return frozenset((text,))
    return frozenset(text[i : i + size] for i in range(len(text) - size + 1))


def jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    """|a and b| / |a or b|, in [0, 1]."""
    common = len(a & b)
    return common / (len(a) + len(b) - common)
