from pathlib import Path

import pytest
import yaml

from curate.config import ConfigError, load
from tests.conftest import PIPELINE


def problems(project, text=None, overrides=()) -> list[str]:
    if text is not None:
        project.pipeline.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(project.pipeline, overrides)
    return caught.value.lines()


def line_of(text: str, needle: str) -> int:
    return next(i for i, line in enumerate(text.splitlines(), start=1) if needle in line)


def test_a_good_file_loads_with_paths_against_the_file(project):
    pipeline = load(project.pipeline)
    assert [s.name for s in pipeline.steps] == [
        "normalize",
        "validate",
        "canonicalize",
        "dedup",
        "decontaminate",
        "difficulty",
        "curriculum",
    ]
    assert pipeline.output == project.folder / "out"
    assert pipeline.train == ("train",)
    assert pipeline.references == ("reference",)
    assert pipeline.steps[1].timeout_s == 5


def test_every_problem_is_reported_at_once_with_line_and_nearest_key(project):
    text = (
        PIPELINE.replace("seed: 0", "sead: 0")
        .replace("max_paraphrases: 4", "max_paraphrase: 4")
        .replace("- canonicalize: {}", "- canonicalise: {}")
        .replace("{timeout_s: 5}", "{timeout_s: soon}")
    )
    found = problems(project, text)
    said = "\n".join(found)
    assert f":{line_of(text, 'sead')}: sead: unknown key (did you mean 'seed'?)" in said
    assert f":{line_of(text, 'max_paraphrase:')}: " in said
    assert "did you mean 'max_paraphrases'?" in said
    assert "unknown step 'canonicalise' (did you mean 'canonicalize'?)" in said
    assert f":{line_of(text, 'soon')}: steps.1.validate.timeout_s" in said
    assert "'soon'" in said
    assert len(found) == 4


def test_a_column_that_nothing_writes_is_refused_with_the_remedy(project):
    found = problems(project, PIPELINE.replace("  - canonicalize: {}\n", ""))
    assert any("reads column 'sql_canonical'" in f and "`- canonicalize: {}`" in f for f in found)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("train.jsonl", "trian.jsonl", "no such file"),
        ("root: databases", "root: nowhere", "no such folder"),
        ("against: reference", "against: referense", "did you mean 'reference'?"),
        ("format: records}\n  reference", "format: recrods}\n  reference", "did you mean 'records'?"),
        ("name: small", "name: [small", "not valid YAML"),
        ("seed: 0", "seed: 0\nseed: 1", "stands here twice"),
        ("output: {path: out}", "output: {}", "output.path: this key is missing"),
        ("databases: {root: databases}\n", "", "needs databases"),
        ("train.jsonl", '"${NO_SUCH_VARIABLE}/train.jsonl"', "NO_SUCH_VARIABLE is not set"),
        ("train.jsonl", "${UNQUOTED}/train.jsonl", "put quotes around"),
        ("inputs:\n  train: ", "inputs:\n  tarin: ", "no training input"),
        ("part_rows: 32", "part_rows: 0", "greater than or equal to 1, got 0"),
        ("- difficulty: {}", "- difficulty: {}\n    extra: 1", "a step is written"),
    ],
)
def test_what_is_wrong_is_said(project, old, new, said):
    assert old in PIPELINE
    assert any(said in f for f in problems(project, PIPELINE.replace(old, new)))


def test_a_missing_file_and_a_file_that_is_no_mapping(project):
    project.pipeline.write_text("- just\n- a list\n")
    with pytest.raises(ConfigError, match="a pipeline file is a mapping"):
        load(project.pipeline)
    with pytest.raises(ConfigError, match="no such file"):
        load(project.folder / "absent.yaml")


def test_variables_and_their_defaults(project, monkeypatch):
    text = PIPELINE.replace("train.jsonl", '"${WHERE:-.}/train.jsonl"')
    project.pipeline.write_text(text)
    assert load(project.pipeline).inputs["train"].path == project.train
    monkeypatch.setenv("WHERE", str(project.folder))
    assert load(project.pipeline).inputs["train"].path == project.train


def test_overrides(project):
    pipeline = load(project.pipeline, ["steps.dedup.max_paraphrases=2", "seed=7", "output.path=elsewhere"])
    assert pipeline.steps[3].max_paraphrases == 2
    assert pipeline.seed == 7
    assert pipeline.output == project.folder / "elsewhere"
    assert any("no 'steps.dedupe'" in p for p in problems(project, None, ["steps.dedupe.max_paraphrases=2"]))
    assert any("unknown key" in p for p in problems(project, None, ["steps.dedup.nope=2"]))
    assert any("key.path=value" in p for p in problems(project, None, ["seed"]))


def test_the_design_example_has_only_known_keys(project):
    document = yaml.safe_load(PIPELINE)
    assert set(document) <= {"name", "seed", "part_rows", "inputs", "databases", "steps", "output"}
    assert Path(document["output"]["path"]) == Path("out")
