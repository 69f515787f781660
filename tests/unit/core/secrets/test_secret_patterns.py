"""Secrets are found in every format in which logs show them, and nothing else is touched."""

import pytest
from deadlines import within
from secret_corpus import read_corpus

from aboard.core.secrets.secret_names import MASK, may_hold_secret
from aboard.core.secrets.secret_scrubber import SecretScrubber, mask_secrets, mask_words

BEGIN, END = (f"-----{edge} RSA PRIVATE" + " KEY-----" for edge in ("BEGIN", "END"))
BODY = "MIIEpAIBAAKCAQEA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8S9t0U1v2W3x4Y"


def test_every_case_of_the_corpus() -> None:
    """The secret is gone; an innocent look-alike is unchanged."""
    assert {case.id: mask_secrets(case.text) for case in read_corpus() if not case.passes(mask_secrets)} == {}


def test_no_secret_of_the_corpus_is_passed_over() -> None:
    """Plans are only searched for secrets where they may hold one; an ordinary command is not."""
    assert [case.id for case in read_corpus() if case.secret is not None and not may_hold_secret(case.text)] == []
    assert not may_hold_secret("python3 train.py --lr 2e-5 --gradient_accumulation_steps 8 20261115-0800-brave-otter")


def test_the_corpus_is_large_enough() -> None:
    """At least 80 formats and 80 innocents, each with its own name."""
    cases = read_corpus()
    secrets = [case for case in cases if case.secret is not None]
    assert min(len(secrets), len(cases) - len(secrets)) >= 80
    assert len({case.id for case in cases}) == len(cases)


@pytest.mark.ci
@pytest.mark.parametrize(
    "pattern",
    [
        "x",
        '"',
        "\\",
        "password=",
        "token='",
        'password=\\"',
        "api_key=[",
        "://",
        "http://a:b@",
        " -pabcd",
        "mysql -p",
        f"{BEGIN}\n",
        BEGIN,
        f"{END}\n",
        "MIIEpAIBAAKCAQEA",
        "Private-Lines: 999\n",
        "eyJhbGciOiJIUz.",
        "cookie: a=b; ",
        "machine a login b password c\n",
        "QUJDREVGR0hJSktMTU5PUFFS ",
        "token: ['a', ",
        "\x1b[32m",
        "\x1b[",
        "│ token ",
        "password |\n",
        "password'," + " " * 30,
        "AKIAIOSFODNN7EXAMPLE,",
        f"echo{' ' * 8_000}sudo -",
    ],
)
def test_hostile_text_takes_linear_time(pattern: str) -> None:
    """Repeated without an end of line; a pattern that backtracks would take hours."""
    with within(20):
        SecretScrubber(users=["adalove"]).text(pattern * (500_000 // len(pattern)))


@pytest.mark.ci
def test_ten_megabytes_without_an_end_of_line() -> None:
    """Windows overlap, so that a secret at the edge of one is found."""
    secret = "hf_" + "AbCdEfGh12" * 3
    with within(30):
        text = mask_secrets(f"{'x. ' * 3_300_000}{secret} {'y ' * 100_000}")
    assert secret[:12] not in text
    assert text.count(MASK) == 1
    for place in range(0, 40, 7):
        assert secret not in mask_secrets(" " * ((1 << 17) - place) + secret + " x" * 50_000)


def test_a_key_without_an_end_hides_no_other_lines() -> None:
    """The lines of the key go, up to the first that can't belong to it."""
    rest = "Traceback (most recent call last):\nValueError: bad key\n" + "step 1 loss 2.0\n" * 100
    assert mask_secrets(f"{BEGIN}\n{BODY}\n{BODY}\nMIIE==\n{rest}").endswith(rest)
    assert BODY[:10] not in mask_secrets(f"{BEGIN}\n{BODY}\n{BODY}\n{rest}")
    assert mask_secrets(f"{BEGIN}\n{rest}").endswith(rest)


def test_lines_of_others_within_a_key_stay() -> None:
    """Another rank printed between the lines of the key."""
    other = "[rank 0] step 12 loss 2.31 tokens/s 51234"
    text = mask_secrets("\n".join([f"[rank 1] {BEGIN}", other, f"[rank 1] {BODY}", other, f"[rank 1] {END}", other]))
    assert text.count(other) == 3
    assert BODY[:10] not in text
    assert text.count("\n") == 5


def test_the_values_of_secret_options_are_masked() -> None:
    """In a command that is a list of words; other words stay."""
    words = [
        "python",
        "t.py",
        "--hf_token",
        "X1 y2 z3 and more",
        "--max_tokens",
        "512",
        "--db",
        "postgres://u:PW123@h/d",
    ]
    assert mask_words(words) == [*words[:3], MASK, *words[4:7], f"postgres://u:{MASK}@h/d"]


def test_any_value_that_was_typed_for_a_secret_is_hidden() -> None:
    """However short or ordinary it is; numbers and model tokens are no secrets."""
    assert mask_words(["--hf_token", "X"]) == ["--hf_token", MASK]
    plain = ["--eos_token", "<end>", "--tokens", "512", "--tokenizer", "gpt2", "--auth", "none", "--key", "loss"]
    assert mask_words(plain) == plain


def test_a_prefix_and_hexadecimal_digits_are_a_key_where_a_provider_issues_such() -> None:
    """Of DeepSeek, without a name before it; a word that ends like the prefix, and a commit, are none."""
    digits = "27d337c6fb64003cd0ea7af867ff8282"
    assert mask_secrets(f"401 for sk-{digits}\n") == f"401 for {MASK}\n"
    plain = f"task-{digits} at {digits}\n"
    assert mask_secrets(plain) == plain
