import pytest
import yaml

from train.config import PRETRAINED_DEFAULTS, SCRATCH, ConfigError, resolve, save

PATHS = {"curriculum": "shards", "output": "runs/x"}


def test_each_source_overrides_the_one_before(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("grpo: {learning_rate: 3e-5, prompts: 16}\nsft: {epochs: 1}\n")
    config = resolve(
        SCRATCH,
        file=file,
        settings=["grpo.prompts=8", "sft.epochs=2", "sft.batch_size=64"],
        options={**PATHS, "seed": 5},
    )
    assert (config.grpo.learning_rate, config.grpo.prompts, config.sft.epochs, config.seed) == (3e-5, 8, 2, 5)
    assert config.schedule.warmup_steps is not None  # a default that neither source touched


def test_a_pretrained_model_has_defaults_of_its_own():
    config = resolve("some/model", options=PATHS)
    assert config.grpo.learning_rate == PRETRAINED_DEFAULTS["grpo"]["learning_rate"]
    assert config.sft.epochs == 0


def test_a_saved_config_is_read_back_the_same(tmp_path):
    config = resolve(SCRATCH, options=PATHS)
    save(config, tmp_path / "config.yaml")
    assert resolve(SCRATCH, base=yaml.safe_load((tmp_path / "config.yaml").read_text())) == config


def test_every_problem_is_told_at_once_with_the_nearest_key():
    with pytest.raises(ConfigError) as caught:
        resolve(
            SCRATCH, settings=["grpo.learning_rat=1", "sft.epochs=-1", "rewards.execution=0.3"], options=PATHS
        )
    text = str(caught.value)
    assert "grpo.learning_rat: unknown key; did you mean grpo.learning_rate?" in text
    assert "sft.epochs" in text
    assert "rewards.execution" in text


@pytest.mark.parametrize(
    "setting, message",
    [
        ("grpo.prompts", "KEY=VALUE"),
        ("grpo.micro_batch_size=48", "must divide"),
        ("rewards.syntax=0.3", "must be 1"),
        ("policy.heads=7", "multiple of heads"),
        ("grpo.iterations=3", "multiple of grpo.iterations"),
        ("grpo.prompts=[", "not a YAML value"),
    ],
)
def test_settings_that_cannot_work_are_refused(setting, message):
    with pytest.raises(ConfigError, match=message):
        resolve(SCRATCH, settings=[setting], options=PATHS)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none.yaml"):
        resolve(SCRATCH, file=tmp_path / "none.yaml", options=PATHS)
    (tmp_path / "list.yaml").write_text("- a\n")
    with pytest.raises(ConfigError, match="keys and values"):
        resolve(SCRATCH, file=tmp_path / "list.yaml", options=PATHS)
