"""What stops `aboard trust`: host keys that nobody confirmed, nodes that let nobody in, files that can't be edited."""

from aboard.diagnoses.diagnosis import Diagnosis, Mistake, remark, warning
from aboard.diagnoses.fixes import Advice

CONFIRM = Mistake(
    code="trust-confirm", fixes="{typed:shell aboard trust} --fingerprints FILE    # its lines: n1 SHA256:…"
)

DECLINED = Mistake(
    code="trust-declined",
    fixes="ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub    # on each node's console; compare, then: aboard trust",
)

FINGERPRINTS = Mistake(
    code="trust-fingerprints",
    fixes="ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub    # on each node's console; write lines: NODE SHA256:…",
)

FINGERPRINT_MISSING = Diagnosis(
    code="trust-fingerprint-missing",
    title="the file with fingerprints does not list the node",
    symptoms=("has no fingerprint of this node",),
    explanation="Aboard trusts only host keys whose fingerprint is in the file. It has not logged in to this node.",
    fixes="ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub    # on the console of {node}; if it matches, add it to"
    " {file}",
)

FINGERPRINT_DIFFERS = Diagnosis(
    code="trust-fingerprint-differs",
    title="the node has another host key than expected",
    symptoms=("but the node presents",),
    explanation="Either the file is out of date, or another machine answers under the node's address. Aboard has not"
    " logged in to it.",
    fixes="ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub    # on the console of {node}; if it matches the new one,"
    " correct {file}",
)

NO_KNOWN_HOSTS = Diagnosis(
    code="trust-no-known-hosts",
    title="ssh is configured to remember no host keys",
    symptoms=("UserKnownHostsFile /dev/null",),
    explanation="Aboard verifies the host key at every connection, so ssh must have a file to keep it in.",
    fixes="grep -rn UserKnownHostsFile ~/.ssh/config /etc/ssh/ssh_config*    # here; remove it for {node}",
)

NO_ACCESS = Diagnosis(
    code="trust-no-access",
    title="there is no way to log in to the node",
    symptoms=("Permission denied (publickey).",),
    explanation="To install or remove your key, Aboard needs to log in: with the key that the cloud gave you, a key in"
    " your ssh agent, or a password that you type.",
    fixes={
        "": "{typed:shell aboard trust} --identity FILE    # the key that the cloud gave you",
        "identity": "ssh -i {file} {ssh:shell} true    # here; is it the node's key, and is `user:` right in"
        " aboard.yaml?\n"
        "chmod go-w ~ ~/.ssh ~/.ssh/authorized_keys    # on {node}; sshd ignores keys in files that others can"
        " write to",
    },
)

IDENTITY = Mistake(code="trust-identity", fixes={"missing": "ls -l {file}", "mode": "chmod 600 {file}"})

KEY_LOCKED = Diagnosis(
    code="trust-key-locked",
    title="your ssh key has a passphrase, and no agent holds it",
    symptoms=("incorrect passphrase supplied to decrypt private key",),
    explanation="Aboard opens many connections at once and can't ask for a passphrase in each.",
    fixes='eval "$(ssh-agent)" && ssh-add {file}    # here, in the shell in which you run aboard',
)

KEY_MAKE = Diagnosis(
    code="trust-key-make",
    title="ssh-keygen can't create a key",
    symptoms=("Saving key failed: No space left on device",),
    explanation="The machine has no ssh key of yours, and ssh-keygen failed to create one.",
    fixes="ssh-keygen -t ed25519    # on {node}; shows the reason",
)

MESH_KEY_LOCKED = Diagnosis(
    code="trust-mesh-key-locked",
    title="the node's own ssh key has a passphrase",
    symptoms=("has a passphrase",),
    explanation="The node can't log in to other nodes with this key unless somebody types the passphrase. Aboard does"
    " not replace keys.",
    fixes="ssh-keygen -p -f {path}    # on {node}; removes the passphrase, or move the key away",
)

MESH_KNOWN = Diagnosis(
    code="trust-mesh-known",
    title="a node knows another host key of one of its peers",
    symptoms=("has another key for",),
    explanation="The node's known_hosts lists a different key than the one that this machine has verified. Usually the"
    " peer was reinstalled.",
    fixes="ssh-keygen -R {peer}    # on {node}; then run aboard trust --mesh again",
)

MESH_LOGIN = Diagnosis(
    code="trust-mesh-login",
    title="a node can't log in to another node",
    symptoms=("can't log in to",),
    explanation="pdsh, MPI and DeepSpeed's own launcher start ranks by ssh between nodes. `aboard launch` doesn't need"
    " it.",
    fixes="ssh {peer} true    # on {node}; shows the reason",
)

NOT_ACCEPTED = Diagnosis(
    code="trust-not-accepted",
    title="the node still refuses the key that was installed",
    symptoms=("the key is in ~/.ssh/authorized_keys, but",),
    explanation="sshd ignores authorized_keys if others can write to the file or to a directory above it, or is"
    " configured to read another file.",
    fixes="chmod go-w ~ ~/.ssh ~/.ssh/authorized_keys    # on {node}\n"
    "sudo sshd -T | grep -iE 'authorizedkeys|pubkey|allowusers'    # on {node}; if it is still refused",
)

FILE = Diagnosis(
    code="trust-file",
    title="a file in ~/.ssh can't be changed",
    symptoms=("No space left on device", "Permission denied", "Read-only file system"),
    explanation="The file is unchanged. Possible causes: the disk is full, the file belongs to another user, or it is"
    " not a regular file.",
    fixes="ls -ld ~/.ssh ~/.ssh/*; df -h ~    # on {node}",
)

NODE_FAILED = Diagnosis(
    code="trust-shell",
    title="the node's shell did not do what it was asked",
    symptoms=("did not reply within",),
    explanation="The login works, but the shell hangs or replies with something else: usually a forced command in"
    " authorized_keys, or a start-up file that waits for input.",
    fixes="ssh {ssh:shell} 'echo ok'    # here; must print ok",
)

RECORD = Diagnosis(
    code="trust-record",
    title="the record of changes can't be used",
    symptoms=("the record can't be written",),
    explanation="Aboard records each change before it makes it, so that `aboard trust --undo` can take it back. Without"
    " a record it changes nothing.",
    fixes="ls -ld {path}",
)

BUSY = Diagnosis(
    code="trust-busy",
    title="another `aboard trust` is running",
    symptoms=("another aboard trust is running",),
    explanation="Two of them would edit the same files. The other one may be waiting for a password or an answer.",
    fixes="fuser -v {path}    # shows its pid",
)

NO_NODES = Mistake(code="trust-no-nodes", fixes=Advice("name the nodes: aboard trust gpu[01-16]"))

SLURM_NODES = Mistake(
    code="trust-slurm", fixes="env -u SLURM_JOB_ID aboard trust {nodes}    # to set up ssh to them anyway"
)

UNDO_WAITS = warning(
    code="trust-undo-waits",
    title="this machine's own files are unchanged until every node is undone",
    symptoms=("changes on these nodes are still recorded",),
    explanation="Without its key and its pinned host keys, this machine could no longer reach the nodes that are left.",
    fixes="aboard trust --undo    # here; once they can be reached\n# if they are gone for good: rm {records:words}",
)

UNDO_LEFT = remark(
    code="trust-undo-left",
    title="something was left in place",
    symptoms=("is not the key that Aboard created",),
    explanation="It was changed after Aboard created it, so it may be in use.",
    fixes="ls -l {path}    # on {node}; remove it if nobody needs it",
)

OPTIONS = Mistake(code="trust-options", fixes="aboard trust --undo")
