import pytest

pytest.importorskip("trl", reason="needs the train extra")

from hypothesis import given
from hypothesis import strategies as st

from train.config import PolicyConfig
from train.policy import encode, encode_completions, learn_tokenizer, load_policy, new_policy

TEXTS = [
    "item(item_id int*, name text)\nQuestion: names of items?\nSQL:",
    " SELECT name FROM item WHERE price > 12",
]
SMALL = PolicyConfig(vocab_size=400, hidden_size=32, layers=1, heads=2)
TOKENIZER = learn_tokenizer(TEXTS * 10, 400)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_comes_back_from_its_tokens(text):
    ids = TOKENIZER(text=[text])["input_ids"][0]
    assert TOKENIZER.decode(ids) == text


def test_digits_stand_alone():
    words = TOKENIZER.convert_ids_to_tokens(TOKENIZER(text=["x>1234"])["input_ids"][0])
    assert words == ["x", ">", "1", "2", "3", "4"]


def test_prompt_and_completion_are_encoded_apart_and_the_end_is_marked():
    (prompt,), (gold,) = encode(TOKENIZER, [TEXTS[0]]), encode_completions(TOKENIZER, ["SELECT name"])
    assert TOKENIZER.decode(prompt) == TEXTS[0]
    assert gold[-1] == TOKENIZER.eos_token_id
    assert TOKENIZER.decode(gold, skip_special_tokens=True) == " SELECT name"
    assert encode(TOKENIZER, []) == encode_completions(TOKENIZER, []) == []


def test_a_chat_model_gets_a_message_and_answers_in_a_block():
    chat = learn_tokenizer(TEXTS, 400)
    chat.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    assert chat.decode(encode(chat, ["list items"])[0]) == "<user>list items<assistant>"
    assert (
        chat.decode(encode_completions(chat, ["SELECT 1"])[0], skip_special_tokens=True)
        == "```sql\nSELECT 1\n```"
    )


def test_one_seed_gives_one_policy_and_it_is_saved_whole(tmp_path):
    one, same, other = (new_policy(TEXTS * 10, SMALL, max_length=64, seed=s) for s in (3, 3, 4))
    weights = [p.model.model.layers[0].mlp.up_proj.weight for p in (one, same, other)]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])
    assert one.model.lm_head.weight is one.model.model.embed_tokens.weight
    one.save(tmp_path)
    again = load_policy(tmp_path)
    assert again.model.model.layers[0].mlp.up_proj.weight.equal(weights[0])
    assert encode(again.tokenizer, TEXTS) == encode(one.tokenizer, TEXTS)


def test_the_default_policy_has_two_to_four_million_parameters():
    policy = new_policy(
        [chr(i) + chr(j) for i in range(97, 123) for j in range(97, 123)],
        PolicyConfig(),
        max_length=64,
        seed=0,
    )
    body = sum(p.numel() for p in policy.model.parameters()) - policy.model.lm_head.weight.numel()
    assert 2e6 < body + PolicyConfig().vocab_size * PolicyConfig().hidden_size < 4e6
