import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import polars as pl
import pytest

import curate
from curate.api import load as load_rows
from curate.demo import write_demo
from curate.demo.domains import DOMAINS, UNSEEN
from curate.rows import row_id
from curate.text.shingle import jaccard, normalize_question, shingles

FIELDS = ("source", "split", "db_id", "question", "sql")


def tree(path: Path) -> str:
    whole = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        whole.update(str(file.relative_to(path)).encode() + b"\0" + file.read_bytes())
    return whole.hexdigest()


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def identified(rows: list[dict]) -> dict[str, dict]:
    seen: Counter = Counter()
    found = {}
    for row in rows:
        key = tuple(row[f] for f in FIELDS)
        found[row_id(*key, seen[key])] = row
        seen[key] += 1
    return found


class Corpus:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.train = identified(lines(path / "train.jsonl"))
        self.reference = identified(lines(path / "reference.jsonl"))
        self.heldout = lines(path / "heldout.jsonl")
        self.truth = pl.read_parquet(path / "truth.parquet")
        self.open: dict[str, sqlite3.Connection] = {}

    def claims(self, defect: str) -> list[dict]:
        return self.truth.filter(pl.col("defect") == defect).to_dicts()

    def ids(self, *defects: str) -> set[str]:
        return set(self.truth.filter(pl.col("defect").is_in(defects))["row_id"])

    def result(self, row: dict, sql: str | None = None):
        db_id = row["db_id"]
        if db_id not in self.open:
            self.open[db_id] = sqlite3.connect(self.path / "databases" / db_id / f"{db_id}.sqlite")
        try:
            rows = self.open[db_id].execute(sql or row["sql"]).fetchall()
        except (sqlite3.Error, sqlite3.Warning):
            return None
        return rows if "ORDER BY" in row["sql"] and "OVER" not in row["sql"] else sorted(rows, key=repr)


@pytest.fixture(scope="module", params=["en", "both"])
def corpus(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / request.param
    write_demo(path, rows=2000, seed=3, language=request.param)
    return Corpus(path)


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for name, hash_seed in (("a", "1"), ("b", "2")):
        subprocess.run(
            [
                sys.executable,
                "-m",
                "curate.cli",
                "demo",
                name,
                "--rows",
                "300",
                "--seed",
                "5",
                "--language",
                "both",
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        )
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    write_demo(tmp_path / "c", rows=300, seed=6, language="both")
    assert tree(tmp_path / "c") != tree(tmp_path / "a")


def test_domains():
    assert len(DOMAINS) - len(UNSEEN) >= 12
    assert all(2 <= len(d.tables) <= 5 for d in DOMAINS)
    assert len({d.name for d in DOMAINS}) == len(DOMAINS)


def test_sizes(corpus):
    assert len(corpus.train) == 2000
    assert len(corpus.heldout) == 320
    seen = Counter(r["seen"] for r in corpus.heldout)
    assert 0.6 < seen[True] / len(corpus.heldout) < 0.72
    assert {r["domain"] for r in corpus.heldout if not r["seen"]} == set(UNSEEN)
    assert not {r["domain"] for r in corpus.train.values()} & set(UNSEEN)


def test_the_train_mix_is_skewed_against_the_target_mix(corpus):
    train = Counter(r["domain"] for r in corpus.train.values())
    reference = Counter(r["domain"] for r in corpus.reference.values())
    assert max(train.values()) / min(train.values()) > 4
    assert max(reference.values()) / min(reference.values()) < 4


def test_every_gold_does_what_the_truth_says(corpus):
    fails, wrong = corpus.ids("gold_fails"), corpus.ids("gold_wrong")
    for key, row in corpus.train.items():
        assert (corpus.result(row) is None) == (key in fails), row
    for claim in corpus.claims("gold_wrong"):
        row = corpus.train[claim["row_id"]]
        right = claim["detail"].partition("; right: ")[2]
        assert corpus.result(row) != corpus.result(row, right), claim
    assert fails
    assert wrong
    for row in [*corpus.heldout, *corpus.reference.values()]:
        assert corpus.result(row) is not None


def test_few_clean_golds_are_empty(corpus):
    clean = [r for k, r in corpus.train.items() if k not in corpus.ids("gold_fails", "gold_wrong")]
    assert sum(corpus.result(r) == [] for r in clean) / len(clean) < 0.03


def test_copies_and_leaks_are_what_they_claim(corpus):
    for claim in corpus.claims("exact_duplicate"):
        a, b = corpus.train[claim["row_id"]], corpus.train[claim["partner_id"]]
        assert [a[f] for f in FIELDS] == [b[f] for f in FIELDS]
        assert claim["row_id"] > claim["partner_id"]
    for claim in corpus.claims("leak_exact"):
        a, b = corpus.train[claim["row_id"]], corpus.reference[claim["partner_id"]]
        assert [a[f] for f in FIELDS[2:]] == [b[f] for f in FIELDS[2:]]
    for defect, held in (("near_duplicate", corpus.train), ("leak_near", corpus.reference)):
        for claim in corpus.claims(defect):
            a, b = corpus.train[claim["row_id"]], held[claim["partner_id"]]
            assert (a["sql"], a["db_id"]) == (b["sql"], b["db_id"])
            assert a["question"] != b["question"]
            assert similarity(a, b) > 0.7


def similarity(a: dict, b: dict) -> float:
    return jaccard(*(shingles(normalize_question(r["question"])) for r in (a, b)))


def test_nothing_is_repeated_or_leaked_beyond_the_truth(corpus):
    copies = corpus.ids("exact_duplicate", "near_duplicate", "leak_exact", "leak_near")
    free = [r for k, r in corpus.train.items() if k not in copies]
    questions = Counter((r["db_id"], normalize_question(r["question"])) for r in free)
    assert max(questions.values()) == 1
    per_sql = Counter((r["db_id"], r["sql"]) for r in free)
    assert max(per_sql.values()) <= 4
    others = {
        (r["db_id"], normalize_question(r["question"])) for r in [*corpus.heldout, *corpus.reference.values()]
    }
    assert not others & set(questions)


def test_paraphrases_and_contrasts(corpus):
    groups = defaultdict(list)
    for claim in corpus.claims("paraphrase"):
        row, first = corpus.train[claim["row_id"]], corpus.train[claim["partner_id"]]
        assert (row["sql"], row["db_id"]) == (first["sql"], first["db_id"])
        groups[claim["partner_id"]] += [row]
    for first, rows in groups.items():
        members = [corpus.train[first], *rows]
        for i, a in enumerate(members):
            assert all(similarity(a, b) < 0.6 for b in members[i + 1 :])
    contrasts = corpus.claims("contrast_pair")
    assert len(contrasts) > 50
    for claim in contrasts:
        a, b = corpus.train[claim["row_id"]], corpus.train[claim["partner_id"]]
        assert a["sql"] != b["sql"]
        assert corpus.result(a) != corpus.result(b)


@pytest.mark.parametrize("rows", [1, 10, 100])
def test_small_corpora(tmp_path, rows):
    summary = write_demo(tmp_path / "d", rows=rows)
    assert summary.train == rows == len(lines(tmp_path / "d" / "train.jsonl"))
    assert summary.heldout >= 9


def test_wrong_arguments(tmp_path):
    with pytest.raises(ValueError, match="en, zh or both"):
        write_demo(tmp_path, language="fr")
    with pytest.raises(ValueError, match="at least 1"):
        write_demo(tmp_path, rows=0)


@pytest.mark.slow
def test_the_pipeline_finds_what_was_planted(corpus):
    manifest = curate.run(corpus.path / "pipeline.yaml", set=[f"output.path={corpus.path.parent / 'out'}"])
    out = corpus.path.parent / "out"
    ledger = pl.read_parquet(out / "ledger.parquet").filter(pl.col("action") == "drop")

    def dropped(*reasons: str) -> set[str]:
        return set(ledger.filter(pl.col("reason").is_in(reasons))["row_id"])

    for reason, defect in (
        ("exact_duplicate", "exact_duplicate"),
        ("gold_fails", "gold_fails"),
        ("leak_exact", "leak_exact"),
    ):
        assert dropped(reason) == corpus.ids(defect), reason
    assert dropped("near_duplicate", "same_question") == corpus.ids("near_duplicate")
    assert dropped("leak_near", "leak_question") == corpus.ids("leak_near")
    survivors = corpus.ids("contrast_pair", "paraphrase")
    assert not survivors & set(ledger["row_id"])
    assert survivors <= set(load_rows(out)["row_id"])
    partners = dict(
        ledger.filter(pl.col("step") == "decontaminate").select("row_id", "partner_id").iter_rows()
    )
    claimed = {c["row_id"]: c["partner_id"] for c in corpus.claims("leak_exact")}
    assert {row: partners[row] for row in claimed} == claimed
    assert manifest["counts"]["read"] == 2000
