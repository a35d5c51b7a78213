"""What happens beside the updates: metrics, greedy evaluation, best checkpoint, early stop, progress."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from curate.atomic import replace_folder, write_atomic
from train.evaluate import Evaluation, generate, judge_completions, summarize
from train.ledger import Ledger
from train.policy import Policy
from train.progress import Advance
from train.rewards import Judge
from train.shards import Example

LEDGER = "prompts.parquet"


class JsonLines:
    """An append-only file of JSON objects, each with a phase and a step."""

    def __init__(self, path: Path):
        self.path = path

    def append(self, record: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines() if line]

    def forget_after(self, step: int) -> None:
        """Drop GRPO's lines beyond a step: the run resumes there and will write them again.

        A half-written last line, left by a kill, goes too.
        """
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record["phase"] != "grpo" or record["step"] <= step:
                kept.append(line)
        write_atomic(self.path, "".join(line + "\n" for line in kept).encode())


class MetricsWriter(TrainerCallback):
    """Each logged step as one line of metrics.jsonl. A number that is not finite is written as null."""

    def __init__(self, lines: JsonLines, phase: str):
        self.lines, self.phase = lines, phase

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        numbers = {k: _finite(v) for k, v in logs.items() if isinstance(v, int | float) or v is None}
        self.lines.append({"phase": self.phase, "step": state.global_step, **numbers})


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


class ProgressBar(TrainerCallback):
    """Advances the reporter's task by a step, with the newest figures beside it."""

    def __init__(self, advance: Advance, figures: Sequence[str]):
        self.advance, self.figures = advance, figures
        self._note = ""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.advance(1, self._note)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        found = [(name, (logs or {}).get(name)) for name in self.figures]
        note = " ".join(
            f"{name.removeprefix('rewards/').removesuffix('/mean')} {v:.3f}"
            for name, v in found
            if v is not None
        )
        self._note = note or self._note


class LedgerWriter(TrainerCallback):
    """The ledger with every checkpoint (to resume from) and as `ledger.parquet` of the run."""

    def __init__(self, ledger: Ledger, path: Path):
        self.ledger, self.path = ledger, path

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if state.is_world_process_zero:
            self.ledger.save(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / LEDGER)
            self.ledger.frame().write_parquet(self.path)


class GreedyEvaluation(TrainerCallback):
    """Greedy EX on held-out rows at step 0, every `every` steps and at the end.

    A higher EX than any before replaces best/; nothing else does, neither reward nor loss. `patience`
    evaluations in a row without one stop the run (0: never).
    """

    def __init__(
        self,
        policy: Policy,
        examples: Sequence[Example],
        judge: Judge,
        *,
        lines: JsonLines,
        best: Path,
        every: int,
        patience: int,
        batch_size: int,
        max_new_tokens: int,
        about: dict[str, Any],
        say: Callable[[str], None],
    ):
        self.policy, self.examples, self.judge = policy, examples, judge
        self.lines, self.best = lines, best
        self.every, self.patience = every, patience
        self.batch_size, self.max_new_tokens = batch_size, max_new_tokens
        self.about, self.say = about, say

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if not any(r["step"] == state.global_step for r in self._records()):
            self.evaluate(state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if state.global_step % self.every == 0 or state.global_step >= state.max_steps:
            self.evaluate(state.global_step)
            if self.patience and self._without_best() >= self.patience:
                control.should_training_stop = control.should_save = True
                self.say(f"stopping: no new best EX in {self.patience} evaluations")
        return control

    def _records(self) -> list[dict[str, Any]]:
        return [r for r in self.lines.read() if r["phase"] == "grpo"]

    def _without_best(self) -> int:
        """Evaluations since the best one; read from eval.jsonl, so a resumed run counts on."""
        values = [r["ex"] for r in self._records()]
        return len(values) - 1 - values.index(max(values)) if values else 0

    def evaluate(self, step: int) -> None:
        """Measure EX, append it to eval.jsonl, and keep the policy if it is the best so far."""
        evaluation = self._measure()
        if PartialState().is_main_process:
            self._record(evaluation, step)
        PartialState().wait_for_everyone()  # the others read eval.jsonl to decide on stopping

    def _record(self, evaluation: Evaluation, step: int) -> None:
        before = max((r["ex"] for r in self._records()), default=-1.0)
        self.lines.append({"phase": "grpo", "step": step, **evaluation.as_json()})
        stages = ", ".join(f"stage {s} {r.ex:.3f}" for s, r in evaluation.by_stage.items())
        better = evaluation.overall.ex > before
        self.say(
            f"step {step}: EX {evaluation.overall.ex:.3f} on {evaluation.overall.rows} held-out rows"
            f" ({stages})" + (", a new best" if better and step else "")
        )
        if better:
            record = {**self.about, "step": step, **evaluation.as_json()}
            replace_folder(self.best, lambda folder: self._save(folder, record))

    def _save(self, folder: Path, record: dict[str, Any]) -> None:
        self.policy.save(folder)
        text = json.dumps(record, indent=1, ensure_ascii=False)
        (folder / "evaluation.json").write_text(text, encoding="utf-8")

    def _measure(self) -> Evaluation:
        """Each process takes its share of the rows; all of them get the whole result."""
        rank, world = PartialState().process_index, PartialState().num_processes
        mine = self.examples[rank::world]
        texts = generate(
            self.policy,
            [e.prompt for e in mine],
            max_new_tokens=self.max_new_tokens,
            batch_size=self.batch_size,
        )
        verdicts = judge_completions(self.judge, texts, mine)
        gathered = gather_object(list(zip(range(rank, len(self.examples), world), verdicts, strict=True)))
        return summarize(self.examples, [v for _, v in sorted(gathered, key=lambda p: p[0])])
