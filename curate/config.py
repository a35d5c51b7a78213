"""The pipeline file. Every problem is reported at once, with file, line, key and the nearest valid key."""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from curate.data import FORMATS
from curate.rows import COLUMNS
from curate.step import Step, load_step, make_step, step_names, writer_of

Loc = tuple[str | int, ...]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class InputSpec(_Strict):
    """One input. `role` is `train` for an input named train and `reference` for any other name."""

    path: Path
    format: str = "records"
    columns: dict[str, str] | None = None
    source: str | None = None
    split: str | None = None
    dialect: str = "sqlite"
    role: Literal["train", "reference"] | None = None

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: str) -> str:
        if value not in FORMATS:
            raise ValueError(
                f"unknown format '{value}'{nearest(value, FORMATS)}; one of {', '.join(FORMATS)}"
            )
        return value


class DatabasesSpec(_Strict):
    root: Path


class OutputSpec(_Strict):
    """`link`: hard-link databases into the shards instead of copying them. `suite`: ship test suites with them."""

    path: Path
    link: bool = False
    suite: bool = False


class _File(_Strict):
    name: str = "pipeline"
    seed: int = 0
    comparison: Literal["strict", "bird", "spider"] = "strict"
    max_error_rate: float = Field(0.0, ge=0, le=1)
    part_rows: int = Field(1024, ge=1)
    inputs: dict[str, InputSpec]
    databases: DatabasesSpec | None = None
    steps: list[Any]
    output: OutputSpec


@dataclass(frozen=True)
class Pipeline:
    """A pipeline file that was read and found whole.

    `part_rows`: rows in a part at most. `max_error_rate`: share of rows a run may leave undecided.
    """

    file: Path
    name: str
    seed: int
    comparison: str
    max_error_rate: float
    part_rows: int
    inputs: Mapping[str, InputSpec]
    databases: Path | None
    steps: tuple[Step, ...]
    output: Path
    link: bool
    suite: bool

    def role(self, name: str) -> str:
        return self.inputs[name].role or ("train" if name == "train" else "reference")

    @property
    def train(self) -> tuple[str, ...]:
        return tuple(n for n in self.inputs if self.role(n) == "train")

    @property
    def references(self) -> tuple[str, ...]:
        return tuple(n for n in self.inputs if self.role(n) == "reference")

    def settings(self) -> dict[str, Any]:
        """What the file says, with defaults filled in; JSON-able, without paths."""
        return {
            "name": self.name,
            "seed": self.seed,
            "comparison": self.comparison,
            "max_error_rate": self.max_error_rate,
            "inputs": {n: s.model_dump(mode="json", exclude={"path"}) for n, s in self.inputs.items()},
            "steps": [{step.name: step.model_dump(mode="json")} for step in self.steps],
            "suite": self.suite,
        }


@dataclass(frozen=True, order=True)
class Problem:
    line: int
    key: str
    message: str


class ConfigError(Exception):
    """All problems of one pipeline file."""

    def __init__(self, file: Path, problems: Sequence[Problem]):
        self.file, self.problems = file, sorted(problems)
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        return [f"{self.file}:{p.line}: {p.key + ': ' if p.key else ''}{p.message}" for p in self.problems]


def nearest(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    found = difflib.get_close_matches(str(word), [str(k) for k in known], n=1, cutoff=0.5)
    return f" (did you mean '{found[0]}'?)" if found else ""


def load(file: str | Path, overrides: Sequence[str] = ()) -> Pipeline:
    """Read a pipeline file; `overrides` are `key.path=value`, as `--set` gives them.

    Raises ConfigError with every problem found.
    """
    file = Path(file)
    document, lines = _read_yaml(file)
    problems: list[Problem] = []
    for override in overrides:
        _override(document, override, problems)
    document = _expand(document, (), lines, problems)
    if not isinstance(document, dict):
        raise ConfigError(file, [Problem(1, "", "a pipeline file is a mapping: name, inputs, steps, output")])
    parsed = _parse(document, lines, problems)
    steps = _steps(document.get("steps"), file.resolve().parent, lines, problems)
    if parsed is None or problems:
        raise ConfigError(file, problems)
    pipeline = _assemble(file, parsed, steps)
    problems = _whole(pipeline, lines)
    if problems:
        raise ConfigError(file, problems)
    return pipeline


def _read_yaml(file: Path) -> tuple[Any, dict[Loc, int]]:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(file, [Problem(0, "", "no such file")]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(file, [Problem(0, "", f"cannot be read: {error}")]) from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        said = getattr(error, "problem", None) or "not valid YAML"
        if "${" in (text.splitlines() or [""])[min(line, len(text.splitlines())) - 1]:
            said += '; put quotes around a value with ${...} inside { }: path: "${DIR}/x"'
        raise ConfigError(file, [Problem(line, "", f"not valid YAML: {said}")]) from None
    lines: dict[Loc, int] = {(): 1}
    twice: list[Problem] = []
    if node is not None:
        _mark_lines(node, (), lines, twice)
    if twice:
        raise ConfigError(file, twice)
    return document, lines


def _mark_lines(node: yaml.Node, loc: Loc, lines: dict[Loc, int], twice: list[Problem]) -> None:
    lines.setdefault(loc, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            here = (*loc, key.value)
            if key.value in seen:
                twice.append(Problem(key.start_mark.line + 1, _dotted(here), "this key stands here twice"))
            seen.add(key.value)
            lines[here] = key.start_mark.line + 1
            _mark_lines(value, here, lines, twice)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            lines[(*loc, i)] = value.start_mark.line + 1
            _mark_lines(value, (*loc, i), lines, twice)


def _line(loc: Loc, lines: Mapping[Loc, int]) -> int:
    while loc and loc not in lines:
        loc = loc[:-1]
    return lines.get(loc, 1)


def _dotted(loc: Loc) -> str:
    return ".".join(str(part) for part in loc)


def _override(document: Any, text: str, problems: list[Problem]) -> None:
    path, equals, raw = text.partition("=")
    if not equals:
        problems.append(Problem(0, f"--set {text}", "write it as key.path=value"))
        return
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError:
        problems.append(Problem(0, f"--set {text}", "the value is not valid YAML"))
        return
    keys = path.split(".")
    here = document
    for depth, key in enumerate(keys[:-1]):
        here = _descend(here, key)
        if here is None:
            problems.append(Problem(0, f"--set {text}", f"there is no '{'.'.join(keys[: depth + 1])}'"))
            return
    if not isinstance(here, dict):
        problems.append(Problem(0, f"--set {text}", f"'{'.'.join(keys[:-1])}' holds no keys"))
        return
    here[keys[-1]] = value


def _descend(here: Any, key: str) -> Any:
    """`steps.dedup` names the step; other lists have no names."""
    if isinstance(here, list):
        for i, entry in enumerate(here):
            if entry == key:
                here[i] = {key: {}}
                return here[i][key]
            if isinstance(entry, dict) and key in entry:
                if entry[key] is None:
                    entry[key] = {}
                return entry[key]
        return None
    return here.setdefault(key, {}) if isinstance(here, dict) else None


_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def _expand(value: Any, loc: Loc, lines: Mapping[Loc, int], problems: list[Problem]) -> Any:
    """`${VAR}` and `${VAR:-default}` in every string."""
    if isinstance(value, dict):
        return {k: _expand(v, (*loc, k), lines, problems) for k, v in value.items()}
    if isinstance(value, list):
        return [_expand(v, (*loc, i), lines, problems) for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def put(match: re.Match[str]) -> str:
        name, default = match.groups()
        found = os.environ.get(name) or default
        if found is None:
            problems.append(
                Problem(_line(loc, lines), _dotted(loc), f"the environment variable {name} is not set")
            )
            return ""
        return found

    return _VARIABLE.sub(put, value)


def _parse(document: Mapping[str, Any], lines: Mapping[Loc, int], problems: list[Problem]) -> _File | None:
    try:
        return _File.model_validate(document)
    except ValidationError as error:
        _collect(error, (), _File, lines, problems)
        return None


def _collect(
    error: ValidationError, base: Loc, model: Any, lines: Mapping[Loc, int], problems: list[Problem]
) -> None:
    for one in error.errors():
        loc: Loc = (*base, *one["loc"])
        message = one["msg"].removeprefix("Value error, ")
        if one["type"] == "extra_forbidden":
            known = _fields(model, one["loc"][:-1])
            message = f"unknown key{nearest(str(loc[-1]), known)}; known: {', '.join(known)}"
        elif one["type"] == "missing":
            message = "this key is missing"
        elif not isinstance(one["input"], dict | list) and str(one["input"]) not in message:
            message = f"{message[0].lower()}{message[1:]}, got {one['input']!r}"
        problems.append(Problem(_line(loc, lines), _dotted(loc), message))


def _fields(model: Any, loc: Loc) -> list[str]:
    """Names of the keys that are valid at `loc` below `model`."""
    for part in loc:
        if isinstance(model, type) and issubclass(model, BaseModel):
            field = model.model_fields.get(str(part))
            model = field.annotation if field else None
        for inner in getattr(model, "__args__", ()):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                model = inner
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def _steps(entries: Any, base: Path, lines: Mapping[Loc, int], problems: list[Problem]) -> tuple[Step, ...]:
    if not isinstance(entries, list):
        return ()
    found: list[Step] = []
    known = step_names()
    for i, entry in enumerate(entries):
        loc: Loc = ("steps", i)
        if isinstance(entry, str):
            entry = {entry: {}}
        if not isinstance(entry, dict) or len(entry) != 1:
            problems.append(
                Problem(_line(loc, lines), _dotted(loc), "a step is written `- name: {settings}`")
            )
            continue
        name, settings = next(iter(entry.items()))
        here: Loc = (*loc, name)
        if name not in known:
            message = f"unknown step '{name}'{nearest(name, known)}; known: {', '.join(sorted(known))}"
            problems.append(Problem(_line(here, lines), _dotted(loc), message))
            continue
        try:
            found.append(make_step(name, _with_files(name, settings or {}, base)))
        except ValidationError as error:
            _collect(error, here, load_step(name), lines, problems)
        except ImportError as error:
            problems.append(Problem(_line(here, lines), _dotted(loc), f"step '{name}' cannot load: {error}"))
    return tuple(found)


def _with_files(name: str, settings: Any, base: Path) -> Any:
    """A step's settings with its files below `base`, the folder of the pipeline file."""
    fields = getattr(load_step(name), "model_fields", {})
    if not isinstance(settings, dict):
        return settings
    return {
        key: _against(base, Path(value))
        if key in fields and fields[key].annotation is Path and isinstance(value, str)
        else value
        for key, value in settings.items()
    }


def _assemble(file: Path, parsed: _File, steps: tuple[Step, ...]) -> Pipeline:
    base = file.resolve().parent

    def located(spec: InputSpec) -> InputSpec:
        if spec.format == "datasets" and not (base / spec.path).exists():
            return spec  # a hub name, not a path
        return spec.model_copy(update={"path": _against(base, spec.path)})

    return Pipeline(
        file=file,
        name=parsed.name,
        seed=parsed.seed,
        comparison=parsed.comparison,
        max_error_rate=parsed.max_error_rate,
        part_rows=parsed.part_rows,
        inputs={name: located(spec) for name, spec in parsed.inputs.items()},
        databases=_against(base, parsed.databases.root) if parsed.databases else None,
        steps=steps,
        output=_against(base, parsed.output.path),
        link=parsed.output.link,
        suite=parsed.output.suite,
    )


def _against(base: Path, path: Path) -> Path:
    return Path(os.path.normpath(base / path.expanduser()))


def _whole(pipeline: Pipeline, lines: Mapping[Loc, int]) -> list[Problem]:
    """Missing files, an input without a use, columns nobody writes, references nobody gave."""
    problems: list[Problem] = []

    def problem(loc: Loc, message: str) -> None:
        problems.append(Problem(_line(loc, lines), _dotted(loc), message))

    if not pipeline.train:
        problem(("inputs",), "no training input: name one `train` or give it `role: train`")
    for name, spec in pipeline.inputs.items():
        if spec.format != "datasets" and not spec.path.exists():
            problem(("inputs", name, "path"), f"no such file: {spec.path}")
    if pipeline.databases is not None and not pipeline.databases.is_dir():
        problem(("databases", "root"), f"no such folder: {pipeline.databases}")
    if not pipeline.steps:
        problem(("steps",), "no steps")
    written = set(COLUMNS)
    for i, step in enumerate(pipeline.steps):
        loc: Loc = ("steps", i, step.name)
        if "databases" in step.uses and pipeline.databases is None:
            problem(loc, "needs databases: add `databases: {root: FOLDER}`")
        for column in step.reads:
            if column not in written:
                problem(loc, f"reads column '{column}', which no earlier step writes{_remedy(column)}")
        for name in step.needs_references():
            if name not in pipeline.references:
                given = pipeline.references
                problem(
                    loc, f"compares with input '{name}', which is no reference input{nearest(name, given)}"
                )
        written.update(step.writes)
        if step.name == "curriculum" and i != len(pipeline.steps) - 1:
            problem(loc, "must be the last step: it emits the shards")
    return problems


def _remedy(column: str) -> str:
    writer = writer_of(column)
    return f": put `- {writer.name}: {{}}` before it" if writer else ""
