"""What is a secret of a user's file and what is not."""

from __future__ import annotations

import pytest

from autotune.domain.secrets import LEFT_OUT, left_out_note, without_secrets

WORD = "correct-horse-42"
TOKEN = "hf_" + "abcdefghijklmnopqrstuv"  # nobody's


@pytest.mark.parametrize(
    "text",
    [
        f"hub_token: {TOKEN}", f"hub_token: '{WORD}'", f"--hub_token {WORD} --push_to_hub",
        f"--hub-token={WORD}", f'"hub_token": "{WORD}"', f'\\"hub_token\\": \\"{WORD}\\"',
        f'os.environ["WANDB_API_KEY"] = "{WORD}"', f'TrainingArguments(hub_token="{WORD}")',
        f'["--hub_token", "{WORD}"]', f"export HF_TOKEN={TOKEN}", f'export HF_TOKEN="{WORD}"',
        f"postgresql://me:{WORD}@host/db", f"login(token='{TOKEN}')",
        f"POSTGRESQL://me:{WORD}@host/db", f"aws_secret_access_key={WORD}",
        "key = 'sk-proj-abcdefghijklmnop'", "OPENAI_API_KEY=whatever-it-is",
    ],
)  # fmt: skip
def test_a_secret_is_left_out_and_named(text: str) -> None:
    found, names = without_secrets(text)
    assert WORD not in found
    assert TOKEN not in found
    assert names
    assert LEFT_OUT in left_out_note(names)[0]
    assert without_secrets(found) == (found, ())


@pytest.mark.parametrize(
    "text",
    [
        "hub_token: null", "hub_token: $HF_TOKEN", "export HF_TOKEN=${HF_TOKEN}",
        'hub_token=os.environ["HF_TOKEN"]', "hub_token=get_token()", "pad_token: <|endoftext|>",
        "set HF_TOKEN, or run `hf auth login`", "max_new_tokens: 1000000", "use_auth_token: false",
        "the token that ends a row: eos_token", "https://host:8080/path", "tokenizer: gpt2-large",
        "sky jobs launch sky.yaml --secret HF_TOKEN",
    ],
)  # fmt: skip
def test_what_is_none_stays(text: str) -> None:
    assert without_secrets(text) == (text, ())
    assert left_out_note(()) == []


def test_a_variable_of_a_script_is_taken_from_the_environment_instead() -> None:
    assert without_secrets(f"export HF_TOKEN={TOKEN}\n")[0] == "export HF_TOKEN=${HF_TOKEN:-}\n"


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "PGPASSWORD", "MY_SECRET"])
def test_what_a_secret_variable_of_the_process_holds_is_left_out_wherever_it_stands(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, WORD)
    found, names = without_secrets(f"wandb.errors.AuthenticationError: {WORD} is not valid\n")
    assert WORD not in found
    assert names == (name,)
    script = f'export {name}="{WORD}"\n'
    assert without_secrets(script)[0] == f'export {name}="${{{name}:-}}"\n'


def test_a_short_word_in_a_secret_variable_is_not_taken_out_of_every_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_SECRET", "lora")
    assert without_secrets("method: lora") == ("method: lora", ())
