"""What a message says, and that no text in it does anything at its receiver."""

import json

import pytest

from aboard.core.monitoring.message_formats import format_body
from aboard.core.monitoring.run_message import RunMessage
from aboard.core.secrets.secret_names import MASK
from aboard.doctor.gpu.diagnoses import XID

HOSTILE = "<!channel> @everyone `rm` ``` [here](http://x) &"


def build(seen: str) -> RunMessage:
    verdict = XID.finding(nodes=("n3", "n4"), ranks=(5,), seen=seen)
    return RunMessage(
        run="otter",
        events=("failure",),
        what="has failed",
        at=1.5,
        attempt=2,
        step=1200,
        verdict=verdict,
        action="wait",
    )


def test_the_whole_message() -> None:
    """JSON that a program can read, and the same in words."""
    assert build("Xid 79").build_document(3) == {
        "version": 1,
        "id": "otter-3",
        "run": "otter",
        "event": "failure",
        "ended": False,
        "at": 1.5,
        "time": "1970-01-01T00:00:01.500+00:00",
        "headline": f"otter has failed on n[3-4]: {XID.title}",
        "attempt": 2,
        "step": 1200,
        "exit_code": None,
        "code": "gpu-xid",
        "severity": XID.severity.word,
        "nodes": ["n3", "n4"],
        "ranks": [5],
        "seen": "Xid 79",
        "fix": "",
        "action": "wait",
        "text": f"otter has failed on n[3-4]: {XID.title}\nattempt 2, step 1,200\nseen: Xid 79\nthen: wait",
    }


def test_secrets_are_masked_and_texts_are_bounded() -> None:
    """What a rank printed may contain a key, or be long."""
    key = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vX7z" + "aB3dE5gH7"
    assert build(f"token {key}").build_document(1)["seen"] == f"token {MASK}"
    assert len(json.dumps(build("word " * 10_000).build_document(1))) < 10_000


@pytest.mark.parametrize("form", ["slack", "discord"])
def test_hostile_text_mentions_nobody_and_is_no_markup(form: str) -> None:
    """Neither service notifies a channel, formats anything or names a link because of what a rank printed."""
    body = format_body(build(HOSTILE * 60).build_document(1), form)
    if form == "slack":
        assert body["mrkdwn"] is False
        assert not {"<", ">"} & set(body["text"])
        assert "&lt;!channel&gt;" in body["text"]
    else:
        assert body["allowed_mentions"] == {"parse": []}
        assert body["content"].count("`") == 6
        assert len(body["content"]) <= 2000
