"""torch's store and rendezvous: how ranks find each other. Texts of torch 1.13 to 2.13."""

from aboard.verdicts.logs.symptom import Symptom, cause, echo, hint, wait

_STORE = ("log-store-unreachable",)
_PEER = r"\(?\[?(?P<peer>[\w.:-]+?)\]?[,:] ?(?P<port>\d+)\)?"

SYMPTOMS: tuple[Symptom, ...] = (
    # One sentence for a refused connection, a dropped one and an unknown name; up to 2.2 without the milliseconds.
    wait(
        "log-store-unreachable",
        r"client socket has timed out after (?P<limit>\S+) while trying to connect to " + _PEER,
        "torch says the same for three things: nobody listens there (rank 0 isn't up, or the address is not its own),"
        " a firewall drops the packets, or the name is unknown on this node.",
        "getent hosts {peer}    # on the node that waits; nothing means that the name is unknown",
        "timeout 3 bash -c '</dev/tcp/$0/$1' {peer} {port}; echo $?    # there: 0 open, 1 refused, 124 dropped",
        "ss -ltn | grep {port}    # on {peer}; does rank 0 listen?",
    ),
    wait(
        "log-store-unreachable",
        r"client socket has failed to connect to any network address of " + _PEER,
        "No address of {peer} took the connection: nobody listens there, a firewall is between, or the name"
        " is unknown.",
        "getent hosts {peer}    # on the node that waits",
        "timeout 3 bash -c '</dev/tcp/$0/$1' {peer} {port}; echo $?    # there: 0 open, 1 refused, 124 dropped",
    ),
    # Up to 1.10.
    wait(
        "log-store-unreachable",
        r"connect\(\) timed out\. Original timeout was (?P<limit>\d+) ms",
        "The store of rank 0 did not answer: nobody listens there, a firewall is between, or the name is unknown.",
        "getent hosts $MASTER_ADDR    # on the node that waits",
        "timeout 3 bash -c '</dev/tcp/ADDRESS/PORT'; echo $?    # there: 0 open, 1 refused, 124 dropped",
    ),
    wait(
        "log-store-unreachable",
        r"RendezvousConnectionError: The connection to the C10d store has failed",
        "The rendezvous endpoint did not answer: it isn't up, a firewall is between, or no node takes the name of the"
        " endpoint for its own, so that nobody hosts the store.",
        "ss -ltn | grep 29500    # on the node of --rdzv-endpoint; does torchrun listen?",
        "getent hosts ENDPOINT; hostname -I    # there: is the endpoint one of its own addresses?",
        weight=1,
    ),
    hint(
        "network-unresolved",
        r"The (?:IPv4 )?network addresses of \((?P<peer>[\w.:-]+), (?P<port>\d+)\) cannot be retrieved",
        "The name means nothing on the node that waits.",
        "getent hosts {peer}    # on {node}; then a line in /etc/hosts, or the address in place of the name",
        refines=_STORE,
    ),
    hint(
        "network-rendezvous-refused",
        r"client socket has failed to connect to \[?(?P<peer>[\w.:-]+?)\]?:(?P<port>\d+) \(errno: 111",
        "The node answers, and nothing listens on the port: rank 0 never came up, or the address isn't its own.",
        "ss -ltn | grep {port}    # on {peer}; does rank 0 listen? if not, why it died is in its own log",
        refines=_STORE,
    ),
    hint(
        "network-rendezvous-rejected",
        r"client socket has failed to connect to \[?(?P<peer>[\w.:-]+?)\]?:(?P<port>\d+) \(errno: 1(?:13|01)",
        "A firewall or a router says no: there is no way to that port.",
        "sudo iptables -S | grep -i reject    # on {peer}; then open the port to the other nodes",
        refines=_STORE,
    ),
    hint(
        "network-rendezvous-dropped",
        r"client socket has failed to connect to \[?(?P<peer>[\w.:-]+?)\]?:(?P<port>\d+) \(errno: 110",
        "Packets to the port vanish: a firewall drops them.",
        "sudo iptables -S    # on {peer}; then open port {port} to the other nodes",
        refines=_STORE,
    ),
    cause(
        "network-port-taken",
        r"server socket has failed to (?:listen|bind).*(?:EADDRINUSE|errno: 98|[Aa]ddress already in use)"
        r"|EADDRINUSE|OSError: \[Errno 98\]|port: (?P<port>\d+).*EADDRINUSE",
        "Another process has the rendezvous port: an earlier run that was not ended, or one torchrun per GPU"
        " where one"
        " per node was meant.",
        "sudo ss -ltnp | grep -w -e :29500 -e :{port}    # on {node}; who has it?",
        weight=3,
    ),
    wait(
        "log-clients-missing",
        r"Timed out after (?P<limit>\d+) seconds waiting for clients\. (?P<came>\d+)/(?P<world>\d+) clients joined",
        "{came} of {world} ranks came. The others never started, can't reach rank 0, or were given another"
        " world size;"
        " torch doesn't say which.",
        "grep -L 'Init\\|loss\\|rank' LOGS…    # which node's log is empty, or ends early? the reason is there",
        "echo $RANK $WORLD_SIZE $MASTER_ADDR    # on each node, where ranks start: all ranks once, one world size",
    ),
    wait(
        "log-clients-missing",
        r"RendezvousTimeoutError",
        "Fewer nodes joined than --nnodes asks for within the join time-out of 600 s. torchrun doesn't say which.",
        "ps -ef | grep torchrun    # on each node; does it run, with the same --rdzv-id and --rdzv-endpoint?",
        "chronyc tracking    # on each node; clocks more than 15 s apart take nodes for dead",
        weight=1,
    ),
    wait(
        "log-world-mismatch",
        r"wait timeout after (?P<limit>\d+)ms, keys: /?(?P<key>\S*//cpu//\d+/(?P<missing>\d+))",
        "Rank {missing} never wrote its address: it was not started, or RANK and WORLD_SIZE are not what the others"
        " have.",
        "echo $RANK $WORLD_SIZE    # where each rank starts: every number from 0 once, and one world size",
        "ps -ef | grep RANK    # on the node of rank {missing}; does it live, and what did it say last?",
        weight=3,
    ),
    # `retreiving` up to 2.1.
    wait(
        "log-rank0-late",
        r"retr(?:ie|ei)ving ncclUniqueId from \[(?P<missing>\d+)\] via c10d key-value store.*"
        r"got error: (?:wait timeout|Timeout waiting|Socket Timeout)",
        "Rank {missing} never came to the first collective: it died before, it still loads or tokenizes, or it is in"
        " another branch of the code.",
        "py-spy dump --pid PID    # of rank {missing}, while it hangs: where is it?",
        "grep -nF rank{missing}']' LOG | head    # what did it say first?",
    ),
    wait(
        "log-store-wait",
        r"DistStoreError: (?:wait timeout|Socket Timeout)|Timeout waiting for key: (?P<key>\S+)"
        r"|wait timeout after (?P<limit>\d+)ms, keys: (?P<keys>\S+)",
        "A rank waited for what another one should have written into the store: that one died or came late.",
        "py-spy dump --pid PID    # of a rank that said nothing, while it hangs",
        "aboard why --log LOGS…    # with the logs of all nodes: the one that died first is named",
        weight=1,
    ),
    echo(r"Failed to recv, got 0 bytes|recvValue(?:WithTimeout)? failed|sendBytes failed|Broken pipe"),
    echo(r"failed to send a keep-alive heartbeat to the rendezvous|RendezvousClosedError|RendezvousGracefulExit"),
    echo(r"failed to shutdown the rendezvous|Failed to check the \"should dump\" flag on TCPStore"),
    echo(r"store->get\('[^']*'\) got error: (?:Connection reset|Broken pipe|Connection was|Failed to recv)"),
    echo(r"DistNetworkError: (?:Connection reset|Connection was|Broken pipe|Failed to recv|failed to recv)"),
)
