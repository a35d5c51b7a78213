from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.text.near import match_probability, near_pairs
from curate.text.shingle import fold_sql, jaccard, normalize_question, shingles


def test_questions_differ_in_case_space_width_and_end_punctuation_only():
    assert normalize_question("  How  Many\tpets？ ") == normalize_question("how many pets")
    assert normalize_question("ＡＢＣ") == "abc"
    assert normalize_question("older than 30") != normalize_question("younger than 30")


def test_sql_is_folded_outside_quotes_only():
    assert fold_sql("SELECT  Name FROM T ;") == fold_sql("select name\nfrom t")
    assert fold_sql("SELECT 'Ann  B'") != fold_sql("SELECT 'ann b'")
    assert fold_sql("SELECT a , b") == fold_sql("SELECT a,b")
    assert fold_sql("count ( * )") == fold_sql("COUNT(*)")
    assert fold_sql("""WHERE a = "X" and b='it''s'""") == fold_sql("""where A="X"  AND b = 'it''s'""")


def test_a_text_shorter_than_the_shingle_is_one_shingle():
    assert shingles("cat") == {"cat"}
    assert shingles("cat") != shingles("dog")
    assert shingles("") == {""}
    assert len(shingles("哪些学生超过")) == 3


def test_jaccard():
    assert jaccard(shingles("abcdef"), shingles("abcdef")) == 1
    assert jaccard(shingles("abcd"), shingles("wxyz")) == 0
    assert jaccard(frozenset("abc"), frozenset("bcd")) == pytest.approx(0.5)


words = st.lists(
    st.sampled_from(
        ["who", "how many", "pets", "older", "than", "younger", "people", "live here", "30", "41"]
    ),
    max_size=7,
)


@given(st.lists(words, max_size=25), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_near_pairs_agree_with_brute_force(sentences, groups):
    texts = [" ".join(s) for s in sentences]
    keys = [i % groups for i in range(len(texts))]
    truth = {
        (i, j): jaccard(shingles(texts[i]), shingles(texts[j])) for i, j in combinations(range(len(texts)), 2)
    }
    found = {(i, j): score for i, j, score in near_pairs(texts, keys, 0.7)}
    wanted = {p: s for p, s in truth.items() if keys[p[0]] == keys[p[1]] and s >= 0.7}
    assert found == {p: pytest.approx(wanted[p]) for p in found}  # nothing but true pairs
    assert len(found) >= 0.99 * len(wanted)


def test_the_chance_of_a_match():
    assert match_probability(0.7) > 0.999
    assert match_probability(0.3) < 0.25
