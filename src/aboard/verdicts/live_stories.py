"""The story of each code that a run which lives can have: it is stuck, or slow, or learns nothing."""

from aboard.diagnoses import Diagnosis, Severity

_LOOK = " `aboard why RUN -v` asks the nodes again and tells what was ruled out."

STUCK = (
    Diagnosis(
        code="why-failed",
        title="the look at a run failed",
        severity=Severity.WARN,
        symptoms=("the look at this run failed: TypeError",),
        explanation="A mistake of Aboard, not of your run: what was seen on the nodes could not be judged.",
        remedy="The run goes on and is looked at again. `aboard logs RUN` has what ranks said; `aboard bundle RUN`"
        " packs its record without secrets, with which we can mend this.",
    ),
    Diagnosis(
        code="hang-traced",
        title="a debugger holds a rank",
        severity=Severity.WARN,
        symptoms=("State:\tt (tracing stop)",),
        explanation="gdb, strace or py-spy without --nonblocking holds the process; all others wait for it.",
        remedy="Let it go on in the debugger. `grep TracerPid /proc/PID/status` tells who holds it.",
    ),
    Diagnosis(
        code="hang-mount",
        title="a rank waits for a file system that does not answer",
        severity=Severity.BLOCK,
        symptoms=(
            "State:\tD (disk sleep)",
            "nfs: server not responding",
            "rpc_wait_bit_killable",
            "blocked for more than 120 seconds",
        ),
        explanation="The rank is in the kernel, in a read or a write that never comes back: the server of the mount is"
        " down, or the network to it is. Signals don't reach it there, and torch sees a rank that does not come.",
        remedy="`timeout 5 ls MOUNT` on the node tells whether it answers. Bring the server back, or `sudo umount -f -l"
        " MOUNT`, which lets ranks go with an error, and mount it again; then launch again. `aboard check --only"
        " storage` compares all nodes.",
    ),
    Diagnosis(
        code="hang-uneven",
        title="some ranks have finished, the others wait for them",
        severity=Severity.BLOCK,
        symptoms=("Timed out waiting 1800000ms for recv operation to complete", "last steps hang"),
        explanation="Ranks had different numbers of batches, so those with more call a collective that the others"
        " never call.",
        remedy="`DataLoader(drop_last=True)` with a DistributedSampler gives all the same number; or put"
        " `torch.distributed.algorithms.join.Join` around the loop.",
    ),
    Diagnosis(
        code="hang-mismatch",
        title="ranks are in different collectives",
        severity=Severity.BLOCK,
        symptoms=(
            "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?",
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=",
            "Detected mismatch between collectives on ranks",
        ),
        explanation="With the same number, ranks call different collectives, or with different sizes: a branch that"
        " depends on the"
        " rank or on its data, other code or another configuration on one node.",
        remedy="The line of each side is named. `aboard check --only software` compares code and packages of the nodes;"
        " TORCH_DISTRIBUTED_DEBUG=DETAIL makes torch check each call.",
    ),
    Diagnosis(
        code="hang-order",
        title="two process groups wait for each other",
        severity=Severity.BLOCK,
        symptoms=("it hangs with tensor and data parallel groups together",),
        explanation="Some ranks use two groups in another order than the rest: each group waits for ranks that wait in"
        " the other.",
        remedy="Use groups in the same order on all ranks; the lines of both are named.",
    ),
    Diagnosis(
        code="hang-absent",
        title="a rank never came to the collective",
        severity=Severity.BLOCK,
        symptoms=(
            "Timed out waiting 1800000ms for recv operation to complete",
            "Watchdog caught collective operation timeout",
        ),
        explanation="All others wait in a collective, and this rank is somewhere else and does nothing.",
        remedy="The line at which it is is named: look there." + _LOOK,
    ),
    Diagnosis(
        code="hang-busy",
        title="ranks wait for one that works",
        severity=Severity.BLOCK,
        symptoms=("the others wait for rank 0 to save",),
        explanation="One rank writes a checkpoint, evaluates, compiles or computes while the others wait in a"
        " collective. That is"
        " part of the work, and only told in passing; after minutes it is told as a stall.",
        remedy="If it takes too long: write checkpoints from all ranks (torch.distributed.checkpoint) and in the"
        " background.",
    ),
    Diagnosis(
        code="hang-loop",
        title="a rank computes while all others wait",
        severity=Severity.BLOCK,
        symptoms=("no heartbeat", "ProcessGroupNCCL's watchdog got stuck"),
        explanation="It is in a loop that does not end, in code that holds Python's lock, or has much more to do than"
        " the others.",
        remedy="`py-spy dump --pid PID` on the node shows where, now and a little later. The line is named.",
    ),
    Diagnosis(
        code="hang-data",
        title="a rank waits for data",
        severity=Severity.BLOCK,
        symptoms=("DataLoader worker (pid(s) …) exited unexpectedly", "RuntimeError: DataLoader timed out"),
        explanation="Its loader gives nothing: a worker that hangs or was killed, a file or a store that does not"
        " answer.",
        remedy="`aboard check NODE --only storage` for the files. `DataLoader(timeout=60)` raises instead of hanging.",
    ),
    Diagnosis(
        code="hang-lock",
        title="a rank waits for a lock",
        severity=Severity.BLOCK,
        symptoms=("futex_wait_queue", "deadlock after fork"),
        explanation="Two threads wait for each other, or a lock was held by a thread when the process forked.",
        remedy="`py-spy dump --pid PID` shows all threads. Start workers with"
        " `multiprocessing.set_start_method('spawn')`.",
    ),
    Diagnosis(
        code="hang-outside",
        title="a rank waits for a service outside of the run",
        severity=Severity.BLOCK,
        symptoms=("wandb: Network error", "HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out"),
        explanation="A tracker, a hub or a data base does not answer, and the rank waits for it while all others wait"
        " for the rank.",
        remedy="Try the address from the node with curl. WANDB_MODE=offline and HF_HUB_OFFLINE=1 take two usual ones"
        " away.",
    ),
    Diagnosis(
        code="hang-link-cut",
        title="connections between ranks carry nothing any more",
        severity=Severity.BLOCK,
        symptoms=("Timed out waiting 5000ms for recv operation to complete", "NET/Socket : peer … unreachable"),
        explanation="What a rank sends is not acknowledged, again and again: packets are lost between the nodes since"
        " some moment.",
        remedy="A firewall that was changed: the lines that let the peers through until it boots again are told, and"
        " the run goes on once they are typed. Else `aboard check --only network` tells which way is cut: a switch"
        " port, a route.",
    ),
    Diagnosis(
        code="hang-link-down",
        title="the network card of a node is down",
        severity=Severity.BLOCK,
        symptoms=("NIC Link is Down", "Link is Down"),
        explanation="The card that ranks use has lost its carrier; TCP keeps trying for minutes.",
        remedy="`sudo ip link set dev CARD up` on the node, if somebody switched it off; else reseat the cable, look at"
        " the switch's port.",
    ),
    Diagnosis(
        code="hang-big-packets",
        title="large packets are lost, small ones pass",
        severity=Severity.BLOCK,
        symptoms=("init works and the first big all-reduce hangs",),
        explanation="A card's MTU is larger than the network carries, and nobody tells: an MTU black hole.",
        remedy="`ping -M do -s 8972 PEER` finds the size that passes. `sudo ip link set dev CARD mtu 1400` on all nodes"
        " lets even the same run go on; then set the same MTU on all nodes and switches.",
    ),
    Diagnosis(
        code="hang-unknown",
        title="nothing moves, and no rule knows why",
        severity=Severity.WARN,
        symptoms=("it just hangs",),
        explanation="None of what could be seen explains it. What is known is told: where the ranks are in their code.",
        remedy="Look at the rank that differs from the others." + _LOOK,
    ),
)

INIT = (
    Diagnosis(
        code="run-node-silent",
        title="nothing comes from a node",
        severity=Severity.WARN,
        symptoms=("no beat came over the wire",),
        explanation="Its power, its network or its ssh is gone. Its ranks may live, and the run goes on if it is back"
        " in time.",
        remedy="`aboard check NODE`. The run is ended when the lease is over: `--lease SECONDS`.",
    ),
    Diagnosis(
        code="init-node-late",
        title="a node is not there yet",
        severity=Severity.WARN,
        symptoms=("Timed out after 601 seconds waiting for clients. 1/2 clients joined.",),
        explanation="No agent could be started on it: its login takes long, or does not answer.",
        remedy="`aboard check NODE --only reach` tells how far a login comes.",
    ),
    Diagnosis(
        code="init-world",
        title="a script asks for another number of ranks",
        severity=Severity.BLOCK,
        symptoms=(
            "wait timeout after 300000ms, keys: /default_pg/0//cpu//0/2",
            "Timed out after 601 seconds waiting for clients.",
        ),
        explanation="init_process_group was given a world_size that is not the number of ranks: the store waits for"
        " the rest.",
        remedy="Leave world_size and rank out: WORLD_SIZE and RANK are set for each rank.",
    ),
    Diagnosis(
        code="init-name",
        title="a node can't resolve where rank 0 is",
        severity=Severity.BLOCK,
        symptoms=(
            "The IPv6 network addresses of (…, 29500) cannot be retrieved (gai error: -2 - Name or service not known)",
            "The client socket has timed out after 600000ms while trying to connect to",
        ),
        explanation="MASTER_ADDR is a name that this node does not know.",
        remedy="A line in /etc/hosts of each node: the same run goes on then. Or `--master-address` with an address.",
    ),
    Diagnosis(
        code="init-store-dropped",
        title="the store of rank 0 does not answer",
        severity=Severity.BLOCK,
        symptoms=("The client socket has timed out after 600000ms while trying to connect to",),
        explanation="Packets to MASTER_ADDR:MASTER_PORT are swallowed by a firewall. torch says the same sentence for"
        " this, for a"
        " refused connection and for an unknown name.",
        remedy="`sudo iptables -I INPUT -p tcp -s NETWORK --dport 1024:65535 -j ACCEPT` on rank 0's node, with the"
        " network of the nodes: ranks try again, and the same run goes on. `aboard check --only network` tells which"
        " node can't reach which.",
    ),
    Diagnosis(
        code="init-store-rejected",
        title="a firewall rejects connections to the store",
        severity=Severity.BLOCK,
        symptoms=("No route to host", "The client socket has timed out after 600000ms while trying to connect to"),
        explanation="A firewall answers connections to MASTER_ADDR:MASTER_PORT with a no.",
        remedy="Open the port on rank 0's node; `aboard check --only network` tells for whom it is closed.",
    ),
    Diagnosis(
        code="init-store-no-route",
        title="a node has no route to rank 0",
        severity=Severity.BLOCK,
        symptoms=("Network is unreachable",),
        explanation="No network of the node leads to the address of rank 0.",
        remedy="`ip route get ADDRESS` on the node; `--master-address` with one that all nodes reach.",
    ),
    Diagnosis(
        code="init-store-refused",
        title="nobody listens where the store should be",
        severity=Severity.BLOCK,
        symptoms=("Connection refused", "The client socket has timed out after 600000ms while trying to connect to"),
        explanation="Rank 0 hosts no store at MASTER_ADDR:MASTER_PORT: its script asks for another one, or for none.",
        remedy="Leave MASTER_ADDR, MASTER_PORT and TORCHELASTIC_USE_AGENT_STORE as they are set.",
    ),
    Diagnosis(
        code="init-elsewhere",
        title="ranks look for the store at different places",
        severity=Severity.BLOCK,
        symptoms=(
            "os.environ['MASTER_PORT'] = '12355'",
            "The client socket has timed out after 600000ms while trying to connect to",
        ),
        explanation="The script sets MASTER_ADDR, MASTER_PORT or init_method by itself, and not to the same on all"
        " ranks.",
        remedy="Take the assignment out: every rank has the right ones in its environment.",
    ),
    Diagnosis(
        code="init-peer-dropped",
        title="ranks can't connect to each other",
        severity=Severity.BLOCK,
        symptoms=(
            "Connect timeout [none]",
            "connect to 10.0.0.2<43211> returned Connection timed out, retrying (1/34)",
        ),
        explanation="The store's port is open, and the ports at which ranks listen for each other are not: a firewall"
        " between the"
        " nodes. Gloo waits five times its time-out, and names nobody.",
        remedy="Open all ports between the nodes, in and out: the lines are told. `aboard check --only network` tries"
        " ports that the kernel chooses.",
    ),
    Diagnosis(
        code="init-rank-twice",
        title="two processes join as the same rank",
        severity=Severity.BLOCK,
        symptoms=("it just hangs at init_process_group", "Duplicate GPU detected : rank 0 and rank 1"),
        explanation="One of them takes the place of a rank that then never comes, and all others wait for that. A"
        " script that works out its rank by itself, or sets RANK, does this.",
        remedy="Take `rank=` out of init_process_group and leave RANK, LOCAL_RANK and WORLD_SIZE as they are set.",
    ),
    Diagnosis(
        code="init-peer-refused",
        title="ranks are refused by each other",
        severity=Severity.BLOCK,
        symptoms=("Gloo connectFullMesh failed with … SO_ERROR: Connection refused, remote=[10.0.0.2]:28048",),
        explanation="The store's port is open, and a firewall says no at the ports at which ranks listen for each"
        " other. The ranks that give up are not the cause; the node that they name is.",
        remedy="Open all ports between the nodes; `aboard check --only network` tries ports that the kernel chooses.",
    ),
    Diagnosis(
        code="init-loopback",
        title="a node tells its peers to connect to 127.0.0.1",
        severity=Severity.BLOCK,
        symptoms=("connectFullMesh failed", "remote=[127.0.0.1]:41896: Connection refused"),
        explanation="Its own name stands for a loopback address in /etc/hosts, and Gloo takes the address of the name.",
        remedy="Set GLOO_SOCKET_IFNAME, or give the name its real address in /etc/hosts.",
    ),
    Diagnosis(
        code="init-rank-late",
        title="a rank has not come to init_process_group",
        severity=Severity.BLOCK,
        symptoms=("it just hangs at init_process_group", "Waiting for clients"),
        explanation="The others wait for it in the store. What it does instead is named, with its line.",
        remedy="Do what takes long after init_process_group, or on all ranks." + _LOOK,
    ),
    Diagnosis(
        code="init-import-slow",
        title="a rank takes long to import its modules",
        severity=Severity.WARN,
        symptoms=("import torch takes minutes",),
        explanation="A file system that is slow for thousands of small files, or a node that is busy.",
        remedy="Put the environment on a local disk; `aboard check --only storage` measures it.",
    ),
)

SLOW = (
    Diagnosis(
        code="slow-rank",
        title="one rank keeps all others waiting",
        severity=Severity.WARN,
        symptoms=("straggler",),
        explanation="It comes last to nearly every collective, and all others wait for it each time.",
        remedy="`py-spy dump --pid PID` on its node, a few times, shows where its time goes; compare the node by"
        " `aboard check`.",
    ),
    Diagnosis(
        code="slow-throttled",
        title="a node's control group is throttled",
        severity=Severity.WARN,
        symptoms=("nr_throttled", "throttled_usec"),
        explanation="The job may use less time of the cores than it sees cores: a quota of Slurm, Kubernetes or"
        " Docker.",
        remedy="Raise the quota where it is set: the file is told, `max` in cpu.max or -1 in cpu.cfs_quota_us is no"
        " quota. For good, ask for more CPUs, or start fewer threads.",
    ),
    Diagnosis(
        code="slow-neighbour",
        title="another process takes a rank's cores",
        severity=Severity.WARN,
        symptoms=("load average",),
        explanation="The rank's threads could run and had no core; the process that took them is named.",
        remedy="Move the other process, or give the run cores of its own: `aboard launch --bind`.",
    ),
    Diagnosis(
        code="slow-disk",
        title="a rank waits for its disk",
        severity=Severity.WARN,
        symptoms=("%iowait",),
        explanation="It is in the kernel for a disk or a mount most of the time.",
        remedy="`iostat -x 1` on the node; put the data on a faster disk.",
    ),
    Diagnosis(
        code="slow-data",
        title="a rank waits for its data",
        severity=Severity.WARN,
        symptoms=("GPU utilization drops to 0",),
        explanation="Its batches come later than those of the others.",
        remedy="More workers and prefetching in its DataLoader, or data that is closer by.",
    ),
    Diagnosis(
        code="slow-link",
        title="a link between nodes is slow or loses packets",
        severity=Severity.WARN,
        symptoms=("TCP retransmissions", "busbw is much lower than expected"),
        explanation="Bytes stand in a queue before it, or are sent again: every collective waits for the slowest link.",
        remedy="`aboard check --only network` and `--only collective` measure each link; look at the card, the cable,"
        " the switch.",
    ),
    Diagnosis(
        code="loss-no-number",
        title="the loss is nan or inf",
        severity=Severity.WARN,
        symptoms=("loss: nan", "'loss': 0.0, 'grad_norm': nan"),
        explanation="A learning rate that is too high, a bad batch, fp16 without a loss scale; on one node only, broken"
        " hardware.",
        remedy="Go on from the last checkpoint with a lower learning rate, in bf16, and look at the batch of that"
        " step.",
    ),
)

DEATHS = (
    Diagnosis(
        code="run-out-of-memory",
        title="the kernel killed a rank for want of memory",
        severity=Severity.BLOCK,
        symptoms=("Signal 9 (SIGKILL) received by PID", "exitcode  : -9", "Out of memory: Killed process"),
        explanation="The memory of the node or of the job's control group was used up; the kernel's own counter shows"
        " it.",
        remedy="Fewer DataLoader workers, a smaller batch, `--mem` of Slurm. `aboard check --only host` shows the"
        " limits.",
    ),
    Diagnosis(
        code="run-shm-full",
        title="shared memory is full",
        severity=Severity.BLOCK,
        symptoms=("Bus error (core dumped)", "Error: failed to extend /dev/shm/nccl-"),
        explanation="Workers and NCCL share memory there; containers have 64 MiB of it unless told otherwise.",
        remedy="`--shm-size=8g` or `--ipc=host` for a container; `mount -o remount,size=50% /dev/shm` on a host.",
    ),
    Diagnosis(
        code="run-disk-full",
        title="a disk is full",
        severity=Severity.BLOCK,
        symptoms=("OSError: [Errno 28] No space left on device",),
        explanation="What the rank wrote did not fit; the others then wait for it.",
        remedy="`df -h` on the node; keep fewer checkpoints.",
    ),
)

LIVE = (*STUCK, *INIT, *SLOW, *DEATHS)
