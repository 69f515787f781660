"""Each way not to answer, in words: how it shows, what it means, what mends it."""

from aboard.diagnoses import Diagnosis, Severity
from aboard.diagnoses.reason import Reason
from aboard.lazy import dataclass


@dataclass(frozen=True, kw_only=True)
class Words:
    """`fix` is lines to type, with what they are for behind a `#`; `more` is what a person should know besides."""

    title: str
    shows: tuple[str, ...]
    why: str
    fix: str
    more: str


_LET_SSH_IN = (
    "sudo iptables -I INPUT -p tcp --dport {port} -j ACCEPT    # on {node}; lets ssh in until it boots again\n"
    "# for good: sudo ufw allow {port}/tcp, or sudo firewall-cmd --permanent --add-port={port}/tcp && sudo firewall-cmd"
    " --reload"
)
_TAKE_KEY = (
    "ssh {ssh} -o StrictHostKeyChecking=accept-new true    # here; takes the key that it shows\n"
    "ssh-keygen -lF {known}    # here; must be what `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` says there"
)

WORDS: dict[Reason, Words] = {
    Reason.REFUSED: Words(
        title="nothing listens on the ssh port",
        shows=("ssh: connect to host n2 port 22: Connection refused",),
        why="The machine is up, but no ssh server listens on that port.",
        fix="sudo systemctl start ssh    # on {node}; if its sshd has another port, set `port:` in aboard.yaml",
        more="`sudo ss -ltnp | grep sshd` on the node tells its port. On Red Hat the service is called sshd. A firewall"
        " that rejects with a TCP reset looks the same.",
    ),
    Reason.TIMED_OUT: Words(
        title="nothing comes back from the node",
        shows=("ssh: connect to host n2 port 22: Connection timed out",),
        why="Nothing came back at all: the machine is down, or a firewall drops the packets.",
        fix="ping -c 3 {target}    # here; is it up? If not, power it on\n" + _LET_SSH_IN,
        more="In a cloud, look at the security group first. If ping works and ssh doesn't, it is a firewall.",
    ),
    Reason.NO_ROUTE: Words(
        title="there is no way to the node",
        shows=("ssh: connect to host n2 port 22: No route to host", "Network is unreachable"),
        why="The network says that there is no way to it: it is off, in another network, or a firewall rejects us.",
        fix="ping -c 3 {target}    # here; who says that there is no way?\n" + _LET_SSH_IN,
        more="If it is on: `sudo iptables -S INPUT` there shows a REJECT that stands before port 22 is accepted."
        " `ip neigh` with FAILED beside the address means that nobody answers for it on the local network.",
    ),
    Reason.UNRESOLVED: Words(
        title="the node's name means nothing here",
        shows=("ssh: Could not resolve hostname n2: Name or service not known", "Temporary failure in name resolution"),
        why="The name means nothing to this machine, so nobody was even dialled.",
        fix="echo '{address} {target}' | sudo tee -a /etc/hosts    # here; or set `address:` of {node} in aboard.yaml",
        more="A `Host` block with a `HostName` in ~/.ssh/config does as well, for ssh alone; peers need the name too.",
    ),
    Reason.KEY_REFUSED: Words(
        title="the node accepts none of our keys",
        shows=("Permission denied (publickey).", "Too many authentication failures"),
        why="The node does not accept any key that this machine offers for this user.",
        fix="chmod go-w ~ ~/.ssh ~/.ssh/authorized_keys    # on {node}; sshd ignores a key that others may write\n"
        "ssh-copy-id {ssh}    # here; it asks for your password there",
        more="sshd ignores a key whose file, or a directory above it, others may write (StrictModes): its log says"
        " `Authentication refused: bad ownership or modes`; see `sudo journalctl -u ssh -n 20` on the node. Also check"
        " the user name (`user:` in aboard.yaml) and that `ssh-add -l` lists your key.",
    ),
    Reason.HOST_KEY_CHANGED: Words(
        title="the node shows another host key than before",
        shows=("WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!", "Host key verification failed."),
        why="The node shows another host key than before: it was reinstalled, or someone is in between.",
        fix="ssh-keygen -R {known}    # here; only if you know that it was reinstalled\n" + _TAKE_KEY,
        more="On the node's own console `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` shows the right"
        " fingerprint.",
    ),
    Reason.HOST_KEY_UNKNOWN: Words(
        title="the node's host key was never seen here",
        shows=(
            "Host key verification failed.",
            "No ED25519 host key is known for n2 and you have requested strict checking.",
        ),
        why="The node's host key has never been seen here, and is not trusted blindly.",
        fix=_TAKE_KEY,
        more="Keys are checked whatever ssh_config says: a run sends code and tokens to whoever answers.",
    ),
    Reason.DROPPED: Words(
        title="sshd drops logins",
        shows=(
            "kex_exchange_identification: Connection closed by remote host",
            "ssh_exchange_identification: read: Connection reset by peer",
        ),
        why="sshd closed connections before the key exchange: more logins are under way there than it lets in.",
        fix="echo 'MaxStartups 100:30:200' | sudo tee /etc/ssh/sshd_config.d/00-startups.conf    # on {node}\n"
        "sudo systemctl reload ssh    # on {node}",
        more="sshd drops at random above MaxStartups (10:30:100 by default). A dropped login was tried again six times."
        " Strangers who knock at an open port 22 fill the places too; fail2ban may have banned this machine.",
    ),
    Reason.NO_PYTHON: Words(
        title="the shell that ranks get finds no Python",
        shows=("bash: line 1: python3: command not found", "torchrun: command not found"),
        why="The login works, but the shell that ranks will get finds no such Python.",
        fix="ssh {ssh} \"bash -lc 'command -v {python}'\"    # here; if a login finds it, `python:` must be that path\n"
        "sudo apt-get install -y python3    # on {node}; if there is none at all",
        more="That shell is no login shell: ~/.profile and `conda activate` in ~/.bashrc don't count there. The full"
        " path of the environment's interpreter always works: `python: /opt/venv/bin/python`.",
    ),
    Reason.OLD_PYTHON: Words(
        title="the node's Python is too old",
        shows=("aboard: python 3.6.8",),
        why="The agent needs Python 3.9 or later on the node.",
        fix="ssh {ssh} 'ls /usr/bin/python3* /opt/conda/bin/python'    # here; set `python:` of {node} to a newer one",
        more="The system's python3 may be old while the environment that you train in is not: name that one.",
    ),
    Reason.SHELL_NOISE: Words(
        title="the login shell prints without end",
        shows=("a login that prints menus or a banner in a loop",),
        why="The login shell there prints without end instead of running what it is given.",
        fix="sed -i '1i [[ $- == *i* ]] || return' ~/.bashrc    # on {node}; ends it early where nobody looks\n"
        "ssh {ssh} true    # here; must print nothing",
        more="A start-up file that waits for an answer, or restarts itself, does this.",
    ),
    Reason.GARBAGE: Words(
        title="what answers is not our agent",
        shows=("exec: a shell or a Python that isn't one",),
        why="What came back is not our agent: the login shell or the Python there is not what it seems.",
        fix="ssh {ssh} '{python} --version'    # must print a version and nothing else",
        more="A forced command in authorized_keys, a restricted shell, or a wrapper script called python3 do this.",
    ),
    Reason.WRONG_VERSION: Words(
        title="another version of Aboard answers",
        shows=("speaks version 2 of the protocol",),
        why="Another version of Aboard answers there; the two don't understand each other.",
        fix="pip install --upgrade aboard    # on the machine where you type aboard",
        more="It can only be a run that an older or newer Aboard started and still keeps.",
    ),
    Reason.SILENT: Words(
        title="the node was reached, and then said nothing",
        shows=("Connection timed out during banner exchange", "ssh hangs after `debug1: pledge: filesystem`"),
        why="It was reached, and then said nothing: a login that hangs, a dead home directory, a stopped process.",
        fix="timeout 30 ssh -v {ssh} true    # here; and look at where it stops",
        more="A home directory on a dead NFS server hangs every login; `ssh root@NODE` often still works then. A"
        " machine that swaps without end, or whose disk is broken, answers ping and nothing else.",
    ),
    Reason.NO_SSH: Words(
        title="there is no ssh program on this machine",
        shows=("ssh: command not found",),
        why="Nodes are reached with the OpenSSH client.",
        fix="sudo apt-get install openssh-client",
        more="On Red Hat the package is openssh-clients.",
    ),
    Reason.LOST: Words(
        title="the connection was made and then lost",
        shows=("client_loop: send disconnect: Broken pipe", "Connection to n2 closed by remote host."),
        why="The connection was made and then lost.",
        fix="ssh {ssh} true    # here; a few times; if it comes and goes, look at the network of {node}",
        more="Two machines with one address, a session limit of the node's (MaxSessions, systemd's TasksMax), or a"
        " network that flaps do this.",
    ),
    Reason.UNKNOWN: Words(
        title="ssh failed in a way that has no name yet",
        shows=("ssh exits with 255",),
        why="ssh failed in a way that we have no name for yet.",
        fix="timeout 30 ssh -v {ssh} true    # here; what it says last",
        more="Please open an issue with what it says: each way that we know has its own name and fix.",
    ),
}

_ANY = {
    **dict.fromkeys(("node", "target", "known"), "NODE"),
    "python": "PYTHON",
    "port": "PORT",
    "ssh": "USER@NODE",
    "address": "ADDRESS",
}
# Questions that are put as a rank would be started, after the `setup` lines: what is wrong with those is why they fail.
UNANSWERED = (
    "unknown-software",
    "unknown-storage",
    "unknown-storage-room",
    "unknown-nccl-plugins",
    "unknown-visible-gpus",
    "unknown-torch",
)
STORIES = (
    *(
        Diagnosis(
            code=f"reach-{reason.value}",
            title=words.title,
            severity=Severity.BLOCK,
            symptoms=words.shows,
            explanation=f"{words.why} A node without an agent can't run a rank, so the run can't start.",
            remedy=words.fix.format(**_ANY) + f"\n{words.more}",
            leads_to=UNANSWERED if reason is Reason.NO_PYTHON else (),
        )
        for reason, words in WORDS.items()
    ),
    Diagnosis(
        code="reach-dropped-at-first",
        title="sshd dropped logins that worked when tried again",
        severity=Severity.INFO,
        symptoms=("kex_exchange_identification: Connection closed by remote host",),
        explanation=f"{WORDS[Reason.DROPPED].why} It worked in the end, and will be worse with more nodes or slower"
        " logins.",
        remedy="Raise MaxStartups in the node's sshd_config, as in `MaxStartups 100:30:200`, and reload sshd. "
        + WORDS[Reason.DROPPED].more,
    ),
    Diagnosis(
        code="reach-noisy-shell",
        title="the login shell prints before any command",
        severity=Severity.INFO,
        symptoms=("protocol error: unexpected text", "Received message too long 1416786277"),
        explanation="A start-up file of the shell prints also when nobody looks. We skip it, but scp, rsync and git"
        " over ssh break on it.",
        remedy="`ssh NODE true` must print nothing. In ~/.bashrc put this first: `[[ $- == *i* ]] || return`.",
    ),
)
