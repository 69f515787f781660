"""`aboard trust` on a terminal of 80 columns, and as plain lines."""

import base64

from rich.console import Console

from aboard.commands.trust.trust_view import HostKeyTable, describe_trust
from aboard.core.trust.public_keys import PublicKey
from aboard.core.trust.trust_report import MeshReport, NewHostKey, TrustedNode, TrustReport, UndoReport
from aboard.diagnoses.nodes import trust

KEY = PublicKey("ssh-ed25519", base64.b64encode(b"\0\0\0\x0bssh-ed25519" + bytes(36)).decode())
MISSING = trust.FINGERPRINT_MISSING.finding(
    nodes=("n4",),
    seen=f"known has no fingerprint of this node, which presents ED25519 {KEY.fingerprint}",
    fix=trust.FINGERPRINT_MISSING.fix(node="n4", file="known"),
)
REPORT = TrustReport(
    nodes=(
        *(TrustedNode(name=f"n{number}", reached=True, installed=number > 1) for number in (1, 2, 3)),
        TrustedNode(name="n4", reached=False, installed=False),
    ),
    findings=(MISSING,),
    pinned=tuple(NewHostKey(node=f"n{number}", key=KEY) for number in (2, 3)),
    created="/home/me/.ssh/id_ed25519",
    mesh=MeshReport(findings=(), created=1, changed=3, logins=8, tested=9, possible=9),
    seconds=4.25,
)


def draw(view: object) -> list[str]:
    console = Console(width=80, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(view, crop=False)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_report_says_what_changed_and_how_to_undo_it() -> None:
    """Steps first, then the findings, then one line that counts."""
    lines = draw(describe_trust(REPORT))
    assert lines[:6] == [
        "✓ pinned 2 host keys in known_hosts",
        "✓ created the key /home/me/.ssh/id_ed25519, without a passphrase",
        "✓ n[2-3]: key installed and verified",
        "✓ n1: this machine could already log in",
        "✓ mesh: created a key on 1 node",
        "✓ mesh: 8 of 9 logins between nodes work",
    ]
    assert "✗ trust-fingerprint-missing  n4" in lines
    assert lines[-2:] == ["This machine can log in to 3 of 4 nodes.  4.2 s", "To undo: aboard trust --undo"]


def test_host_keys_fit_80_columns() -> None:
    """A fingerprint is one word on one line, so that it can be compared and searched."""
    lines = draw(HostKeyTable(REPORT.pinned))
    assert lines[0] == "2 host keys not seen before:"
    assert lines[1] == f"  n2  ED25519  {KEY.fingerprint}"
    assert max(map(len, lines)) <= 80


def test_plain_lines_start_with_their_kind() -> None:
    """For grep, as from aboard check."""
    lines = list(describe_trust(REPORT).format_lines())
    assert lines[0].startswith("block trust-fingerprint-missing n4 seen: known has no fingerprint")
    assert "fine n[2-3]: key installed and verified" in lines
    assert lines[-1] == "done: this machine can log in to 3 of 4 nodes; 4.2 s"


def test_an_undo_says_what_is_restored() -> None:
    """And that there was nothing, if there was nothing."""
    undone = UndoReport(nodes=("n1", "n2"), head=True, findings=(), seconds=1)
    assert list(describe_trust(undone).format_lines()) == [
        "fine n[1-2]: restored",
        "fine this machine: restored",
        "done: 2 nodes restored; 1.0 s",
    ]
    nothing = UndoReport(nodes=(), head=False, findings=(), seconds=1)
    assert list(describe_trust(nothing).format_lines()) == ["done: nothing to undo; 1.0 s"]
