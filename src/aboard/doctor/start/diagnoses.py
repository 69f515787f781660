"""Diagnoses of a rendezvous that fails: late nodes or ranks, an unreachable store or peers."""

from aboard.diagnoses.diagnosis import RunFailure, run_warning
from aboard.diagnoses.failure_class import FailureClass
from aboard.diagnoses.fixes import Advice
from aboard.diagnoses.shared_fixes import CHECK_NETWORK, OPEN, PUT_UP

_STORE = {"put-up": PUT_UP, "open": OPEN, "check": CHECK_NETWORK}
_RESOLVE = (
    "getent hosts {host}    # on {nodes:shell}; does the name resolve? if not, launch with --master-address ADDRESS"
)
_OWN_NAME = "getent hosts $(hostname)    # on {nodes:shell}; if this prints 127.0.x.x, remove that line from /etc/hosts"

NODE_LATE = run_warning(
    code="init-node-late",
    restart=FailureClass.UNKNOWN,
    title="a node has not joined yet",
    symptoms=("Timed out after 601 seconds waiting for clients. 1/2 clients joined.",),
    explanation="Aboard has not yet started its agent on this node, because the node's ssh is slow or does not"
    " respond.",
    fixes="{check:shell aboard check NODE --only reach    # shows how far a login gets}",
)

WORLD = RunFailure(
    code="init-world",
    restart=FailureClass.PROGRAM,
    title="the script expects a different number of ranks than were started",
    symptoms=(
        "wait timeout after 300000ms, keys: /default_pg/0//cpu//0/2",
        "Timed out after 601 seconds waiting for clients.",
    ),
    explanation="init_process_group got a world_size that differs from the number of ranks. The store is waiting for"
    " ranks that were never started.",
    fixes="grep -rn --include='*.py' init_process_group .    # here; remove world_size= and rank=, because the"
    " launcher sets WORLD_SIZE and RANK",
)

NAME = RunFailure(
    code="init-name",
    restart=FailureClass.TRANSIENT,
    title="a node can't resolve rank 0's hostname",
    symptoms=(
        "The IPv6 network addresses of (…, 29500) cannot be retrieved (gai error: -2 - Name or service not known)",
        "The client socket has timed out after 600000ms while trying to connect to",
    ),
    explanation="MASTER_ADDR is a name that this node can't resolve. Once the node can resolve it, this run continues.",
    fixes={
        "who": _RESOLVE,
        "entry": f"{_RESOLVE}\necho {{entry}} | sudo tee -a /etc/hosts"
        "    # on {nodes:shell}; or keep the MASTER_ADDR that Aboard sets",
    },
)

STORE_DROPPED = RunFailure(
    code="init-store-dropped",
    restart=FailureClass.TRANSIENT,
    title="rank 0's store does not respond",
    symptoms=("The client socket has timed out after 600000ms while trying to connect to",),
    explanation="A firewall on this node, on rank 0's node or between them drops packets to MASTER_ADDR:MASTER_PORT."
    " torch prints the same message for a refused connection and for an unknown name.",
    fixes=_STORE,
)

STORE_REJECTED = RunFailure(
    code="init-store-rejected",
    restart=FailureClass.TRANSIENT,
    title="a firewall or router rejects connections to rank 0's store",
    symptoms=("No route to host", "The client socket has timed out after 600000ms while trying to connect to"),
    explanation="Connections to MASTER_ADDR:MASTER_PORT fail at once with an error such as `No route to host`, so"
    " ranks on this node can't join.",
    fixes=_STORE,
)

STORE_NO_ROUTE = RunFailure(
    code="init-store-no-route",
    restart=FailureClass.TRANSIENT,
    title="a node has no route to rank 0",
    symptoms=("Network is unreachable",),
    explanation="Ranks on this node can't join, because none of its networks has a route to rank 0's address. The"
    " address may belong to a network that this node is not connected to.",
    fixes={
        **_STORE,
        "route": "ip route get {target}    # on {nodes:shell}; which network is used? if none, set --master-address",
    },
)

STORE_REFUSED = RunFailure(
    code="init-store-refused",
    restart=FailureClass.TRANSIENT,
    title="no process listens on the store's port",
    symptoms=("Connection refused", "The client socket has timed out after 600000ms while trying to connect to"),
    explanation="Nothing is listening at MASTER_ADDR:MASTER_PORT, because rank 0's script created its store at a"
    " different address, or did not create one. Scripts must not change MASTER_ADDR, MASTER_PORT or"
    " TORCHELASTIC_USE_AGENT_STORE.",
    fixes={
        **_STORE,
        "nobody": "ss -ltn    # on {node}; shows which ports are open\n"
        "aboard logs {run} --rank 0    # what rank 0 did instead",
    },
)

ELSEWHERE = RunFailure(
    code="init-elsewhere",
    restart=FailureClass.PROGRAM,
    title="ranks use different store addresses",
    symptoms=(
        "os.environ['MASTER_PORT'] = '12355'",
        "The client socket has timed out after 600000ms while trying to connect to",
    ),
    explanation="The script sets MASTER_ADDR, MASTER_PORT or init_method itself, and the values differ between ranks.",
    fixes={
        "hosts": (
            "sudo sed -i {line} /etc/hosts    # on {nodes:shell}; the first matching line wins\n" + CHECK_NETWORK
        ),
        "script": "grep -rnE --include='*.py' 'MASTER_ADDR|MASTER_PORT|init_method' .    # here; remove lines that"
        " set these",
    },
)

RANK_TWICE = RunFailure(
    code="init-rank-twice",
    restart=FailureClass.PROGRAM,
    title="two processes join as the same rank",
    symptoms=("it just hangs at init_process_group", "Duplicate GPU detected : rank 0 and rank 1"),
    explanation="The script, or a variable that it sets, gives two processes the same rank. A different rank is then"
    " missing, and all others are waiting for it.",
    fixes="grep -rnE --include='*.py' 'init_process_group|RANK' .    # here; remove rank=, and do not set"
    " RANK, because the launcher sets it for each rank",
)

LOOPBACK = RunFailure(
    code="init-loopback",
    restart=FailureClass.PROGRAM,
    title="a node advertises 127.0.0.1 to its peers",
    symptoms=("connectFullMesh failed", "remote=[127.0.0.1]:41896: Connection refused"),
    explanation="Without GLOO_SOCKET_IFNAME, Gloo uses the address of the node's own hostname, and /etc/hosts maps"
    " that name to a loopback address; or GLOO_SOCKET_IFNAME is set to the loopback interface. No other node can reach"
    " a loopback address.",
    fixes={
        "interface": Advice(
            "env: {{GLOO_SOCKET_IFNAME: {card}}}    # in aboard.yaml, under cluster:; unless the script sets it"
        ),
        "hosts": _OWN_NAME,
    },
)

RANK_LATE = RunFailure(
    code="init-rank-late",
    restart=FailureClass.PROGRAM,
    title="a rank has not reached init_process_group",
    symptoms=("it just hangs at init_process_group", "Waiting for clients"),
    explanation="The other ranks have called init_process_group and are waiting there for this rank.",
    remedy="Move slow work to after init_process_group, or do it on all ranks. `aboard why RUN -v` shows what the"
    " rank is doing.",
)

IMPORT_SLOW = run_warning(
    code="init-import-slow",
    restart=FailureClass.UNKNOWN,
    title="a rank is slow to import its modules",
    symptoms=("import torch takes minutes",),
    explanation="Imports are slow if the node is busy, or if the file system is slow for thousands of small files.",
    remedy="Put the Python environment on a local disk. `time python3 -X importtime -c 'import torch'` on the node"
    " shows which imports are slow.",
)
