"""The first half of what a rank of the exercise runs: how ranks meet before torch is there, and how each tells its end.

torch's own rendezvous says the same sentence for a firewall, a dead rank and a wrong name (the catalogue's rows 21 to
23). So ranks meet on a plain socket first: rank 0 calls the roster, each says that it is here, imports torch, says that
it is ready, and all go on together. Whoever fails says so, and all others end at once, with what they were waiting for.
"""

SOURCE = r"""
import faulthandler, hmac, json, os, selectors, socket, struct, sys, tempfile, threading, time, traceback

TASK = json.loads(sys.argv[1])
# Not an argument: every user of the node can read those.
TOKEN = os.environ.get("ABOARD_CHECK_TOKEN", "")
# Above any line of a rank.
LONGEST = 65536
RANK, WORLD = TASK["rank"], TASK["world"]
NOW = time.monotonic

class Roster(threading.Thread):
    # Runs beside rank 0. Whatever goes wrong first is told to all: the rest are consequences.

    def __init__(self, listener):
        super().__init__(daemon=True)
        self.loop, self.members, self.over = selectors.DefaultSelector(), {}, threading.Event()
        self.here, self.ready, self.done, self.store = set(), set(), set(), 0
        listener.setblocking(False)
        self.loop.register(listener, selectors.EVENT_READ)
        self.began, self.gone = NOW(), False

    def run(self):
        while not self.over.is_set():
            for key, _ in self.loop.select(0.1):
                if key.data is None:
                    self.accept(key.fileobj)
                else:
                    self.read(key.fileobj, key.data)
            waited = NOW() - self.began
            if waited > TASK["meet"] and len(self.here) < WORLD:
                self.off({"phase": "meet", "absent": sorted(set(range(WORLD)) - self.here)})
            if waited > TASK["meet"] + TASK["load"] and len(self.ready) < WORLD:
                self.off({"phase": "import", "absent": sorted(set(range(WORLD)) - self.ready)})

    def accept(self, listener):
        try:
            peer = listener.accept()[0]
        except OSError:
            return
        peer.settimeout(2.0)
        self.loop.register(peer, selectors.EVENT_READ, {"text": b"", "rank": None})

    def read(self, peer, member):
        try:
            data = peer.recv(65536)
        except OSError:
            data = b""
        member["text"] += data
        *lines, member["text"] = member["text"].split(b"\n")
        try:
            for line in lines:
                self.take(peer, member, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            data = b""
        if len(member["text"]) > LONGEST:
            data = b""
        if not data:
            self.loop.unregister(peer)
            peer.close()
            rank = member["rank"]
            if self.members.pop(rank, None) is not None and rank not in self.done:
                self.off({"phase": "gone", "absent": [rank]})

    def take(self, peer, member, told):
        # Strangers may come to any port; only who has the token is heard.
        if not hmac.compare_digest(told["token"].encode(), TOKEN.encode()):
            raise ValueError("a stranger")
        rank = member["rank"] = int(told["rank"])
        self.members[rank] = peer
        if "here" in told:
            self.here.add(rank)
        if "failed" in told:
            self.off({"phase": told["failed"], "absent": [rank]})
        if "ready" in told:
            self.ready.add(rank)
            self.store = told["ready"] or self.store
            if len(self.ready) == WORLD:
                self.tell({"go": self.store})
        if "done" in told:
            self.done.add(rank)
            if len(self.done) == WORLD:
                self.tell({"end": True})
                self.over.set()

    def off(self, why):
        if not self.gone:
            self.gone = True
            self.tell({"off": why})
            self.over.set()

    def tell(self, what):
        for peer in list(self.members.values()):
            try:
                peer.sendall(json.dumps(what).encode() + b"\n")
            except OSError:
                pass

class Watch(threading.Thread):
    # Beside every rank: hears the roster, and ends a phase that takes too long, since C++ that waits can't be stopped.

    def __init__(self):
        super().__init__(daemon=True)
        self.phase, self.until, self.told = "meet", NOW() + TASK["meet"], {}
        self.ended, self.may_go, self.may_end = threading.Lock(), threading.Event(), threading.Event()
        self.roster, self.wire, self.store = None, None, 0

    def enter(self, phase, within):
        self.phase, self.until = phase, NOW() + within

    def meet(self):
        if RANK == 0:
            self.roster = Roster(listener(TASK["port"]))
            self.roster.start()
        place = ("127.0.0.1" if RANK == 0 else TASK["address"], TASK["port"])
        while True:
            try:
                # Refused is an answer: rank 0 is not there yet. Silence for so long is none.
                self.wire = socket.create_connection(place, timeout=TASK["silence"])
                break
            except ConnectionRefusedError as error:
                problem = error
            except OSError as error:
                name = "dropped" if isinstance(error, socket.timeout) else error.strerror or str(error)
                self.finish(error="no connection to %s port %d: %s" % (*place, name), blocked=[place[0]])
            if NOW() > self.until:
                self.finish(error="no connection to %s port %d: %s" % (*place, problem.strerror), blocked=[place[0]])
            time.sleep(0.1)
        self.wire.settimeout(0.1)
        self.say(here=True)
        self.start()

    def say(self, **what):
        try:
            self.wire.sendall(json.dumps(dict(what, token=TOKEN, rank=RANK)).encode() + b"\n")
        except (OSError, AttributeError):
            pass

    def run(self):
        text = b""
        while True:
            try:
                data = self.wire.recv(65536)
                if not data and not self.may_end.is_set():
                    self.finish(error="lost the connection to rank 0", told=True)
                text += data
            except socket.timeout:
                pass
            except OSError as error:
                self.finish(error="lost the connection to rank 0: %s" % error.strerror, told=True)
            *lines, text = text.split(b"\n")
            for line in lines:
                word = json.loads(line)
                if "go" in word:
                    self.store = word["go"]
                    self.may_go.set()
                if "end" in word:
                    self.may_end.set()
                if "off" in word:
                    self.finish(error="others failed", told=True, off=word["off"])
            if NOW() > self.until:
                self.finish(error="waited in vain in phase %s" % self.phase, late=True, stack=stack())

    def finish(self, **more):
        # Once, from whichever thread comes first; the other must not go on.
        self.ended.acquire()
        report = dict({"rank": RANK, "phase": self.phase, "blocked": blocked()}, **self.told)
        report.update(more)
        if self.phase != "done" and not report.get("told"):
            self.say(failed=self.phase)
        if self.roster is not None:
            self.roster.over.wait(1.0 if self.phase != "done" else 5.0)
        report["log"] = log_lines()
        sys.stdout.write("\n" + json.dumps(report) + "\n")
        sys.stdout.flush()
        os._exit(0)

def listener(port):
    # Both families where there are both: what peers were told may be of either.
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=both)

def stack():
    frames = sys._current_frames().get(threading.main_thread().ident)
    return traceback.format_stack(frames)[-8:] if frames else []

def blocked():
    # The addresses that a connection of this process can't be made to, or that don't acknowledge what they are sent.
    own, found = set(), []
    try:
        for fd in os.listdir("/proc/self/fd"):
            try:
                own.add(os.readlink("/proc/self/fd/" + fd))
            except OSError:
                pass
        for name in ("tcp", "tcp6"):
            with open("/proc/self/net/" + name) as file:
                for line in file.readlines()[1:]:
                    part = line.split()
                    stuck = part[3] == "01" and part[5].startswith("01:") and int(part[6], 16) >= 3
                    if "socket:[%s]" % part[9] in own and (part[3] == "02" or stuck):
                        found.append(address(part[2].split(":")[0]))
    except (OSError, ValueError, IndexError):
        pass
    return sorted(set(found))[:64]

def address(text):
    words = [struct.pack("=I", int(text[at:at + 8], 16)) for at in range(0, len(text), 8)]
    if len(words) == 1:
        return socket.inet_ntop(socket.AF_INET, words[0])
    return socket.inet_ntop(socket.AF_INET6, b"".join(words)).replace("::ffff:", "")
"""
