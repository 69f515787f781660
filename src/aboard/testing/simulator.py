"""Runs any number of fake agents until its stdin ends: `python -m aboard.testing.simulator SOCKET`."""

import asyncio
import json
import re
import sys
import time
from contextlib import suppress
from ipaddress import IPv4Address
from zlib import crc32

from aboard.agent import frames
from aboard.testing.fake_supervisor import FakeNodeFaults, FakeSupervisor

FILES = {
    "/proc/sys/kernel/osrelease": "6.8.0-simulated\n",
    "/proc/self/status": "Name:\tpython3\nCpus_allowed_list:\t0-63\n",
    "/proc/self/limits": "Max processes 2062000 2062000 processes\nMax open files 1048576 1048576 files\n"
    "Max locked memory unlimited unlimited bytes\n",
    "/proc/meminfo": "MemTotal:       528280060 kB\nMemFree:        1 kB\nMemAvailable:   507000000 kB\n",
    "/sys/devices/system/cpu/online": "0-63\n",
    "/sys/class/net/eth0/operstate": "up\n",
    "/sys/class/net/eth0/mtu": "9000\n",
    **{
        f"/proc/driver/nvidia/gpus/0000:{number:02x}:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\n"
        for number in range(8)
    },
}
# Output by a substring of the command line; any other command prints nothing and succeeds.
COMMAND_OUTPUTS = {
    "df -PB1 /dev/shm": "Filesystem 1-blocks Used Available Capacity Mounted on\n"
    "tmpfs 270479390720 0 270479390720 0% /dev/shm\n",
    "uname -n": "simulated\n10.0.0.1 STREAM simulated\n",
}
_MARKER = re.compile(rb"main\(b'\\n(<aboard [0-9a-f]+>)\\n'")


class FakeNodes:
    """All fake supervisors, by node and run; they outlive their bridges."""

    def __init__(self) -> None:
        self._supervisors: dict[str, dict[str, FakeSupervisor]] = {}

    def begin(self, node: str, message: frames.Message, faults: FakeNodeFaults) -> None:
        run, supervisors = str(message["run"]), self._supervisors.setdefault(node, {})
        supervisors[run] = FakeSupervisor(node, message, faults, on_gone=lambda: _forget_supervisor(supervisors, run))

    def find_supervisor(self, node: str, run: str) -> FakeSupervisor | None:
        return self._supervisors.get(node, {}).get(run)

    def is_cut_off(self, node: str) -> bool:
        return any(supervisor.cut_off for supervisor in self._supervisors.get(node, {}).values())


def _forget_supervisor(supervisors: dict[str, FakeSupervisor], run: str) -> None:
    supervisors.pop(run, None)


class FakeAgent:
    """One agent, from the bootstrap on; the first line of the connection selects its behaviour."""

    def __init__(self, nodes: FakeNodes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._nodes = nodes
        self._reader = reader
        self._writer = writer
        self._name = ""
        self._marker = b""
        self._faults = FakeNodeFaults()
        self._supervisor: FakeSupervisor | None = None

    async def act(self) -> None:
        behaviours = {
            "answer": self._answer,
            "silent": self._stay_silent,
            "garbage": self._send_garbage,
            "flood": self._flood,
            "other-version": self._send_other_version,
        }
        # A connection that closes midway, or our own shutdown, needs no traceback.
        with suppress(ConnectionError, asyncio.IncompleteReadError, json.JSONDecodeError, asyncio.CancelledError):
            preface = json.loads(await self._reader.readline())
            for _part in ("the importer", "its modules"):
                await self._reader.readexactly(int(await self._reader.readline()))
            self._name, self._faults = preface["node"], FakeNodeFaults(**preface["faults"])
            found = _MARKER.search(await self._reader.readline())
            if found is not None:
                self._marker = b"\n" + found[1] + b"\n"
                silent = self._nodes.is_cut_off(self._name)
                await behaviours["silent" if silent else preface["behaviour"]]()
        if self._supervisor is not None:
            self._supervisor.lose(self)
        self._writer.close()

    def send(self, message: frames.Message) -> None:
        self._writer.write(frames.pack(message))

    @property
    def unsent(self) -> int:
        return self._writer.transport.get_write_buffer_size()

    async def _answer(self) -> None:
        self._writer.write(self._marker + frames.pack(self._hello()))
        splitter = frames.FrameSplitter()
        while data := await self._reader.read(65536):
            for body in splitter.feed(data):
                self._take(frames.unpack_any(body))
            await self._writer.drain()

    def _take(self, message: frames.Message) -> None:
        if message["op"] == "hold":
            self._nodes.begin(self._name, message, self._faults)
        if message["op"] in ("hold", "attach"):
            self._supervisor = self._nodes.find_supervisor(self._name, str(message["run"]))
            if self._supervisor is None:
                self.send({"re": message["id"], "error": f"no supervisor for run {message['run']} on this node"})
            else:
                self._supervisor.admit(self, message)
        elif self._supervisor is not None and message["op"] != "ping":
            self._supervisor.handle(self, message)
        else:
            self.send(_build_reply(message, self._name))

    async def _stay_silent(self) -> None:
        """Reads everything and sends nothing, until the head gives up."""
        while await self._reader.read(65536):
            pass

    async def _send_garbage(self) -> None:
        self._writer.write(self._marker + b"\x00\x00\x00\x05hello and more that is no frame")
        await self._writer.drain()

    async def _flood(self) -> None:
        """A line without an end, until the head gives up."""
        while True:
            self._writer.write(b"x" * 65536)
            await self._writer.drain()

    async def _send_other_version(self) -> None:
        self._writer.write(self._marker + frames.pack({**self._hello(), "hello": frames.VERSION + 1}))
        await self._writer.drain()

    def _hello(self) -> frames.Message:
        return {
            "hello": frames.VERSION,
            "hostname": self._name,
            "python": "3.11.0",
            "executable": "/usr/bin/python3",
            "user": "simulated",
            "address": "",
            "pid": 1,
            "wall": time.time(),
        }


def _build_reply(message: frames.Message, name: str) -> frames.Message:
    reply: frames.Message = {"re": message.get("id")}
    if message["op"] == "ping":
        reply["wall"] = time.time()
    elif message["op"] == "read":
        reply["files"] = FILES
    elif message["op"] == "run":
        argv = " ".join(message["argv"])
        stdout = "".join(text for words, text in COMMAND_OUTPUTS.items() if words in argv)
        reply |= {"code": 0, "stdout": stdout, "stderr": ""}
    elif message["op"] == "listen":
        # As the agent's PeerListener replies: its ports and addresses.
        ports = [{"port": port or 40000} for port in message["ports"]]
        reply |= {"ports": ports, "addresses": [["eth0", _derive_address(name), 8]]}
    elif message["op"] == "connect":
        hosts = {str(host) for host, _port, _size in message["targets"]}
        results = [
            ["ok", 0.001, _derive_address(name), _derive_address(str(host)), ""]
            for host, _port, _size in message["targets"]
        ]
        reply |= {"results": results, "resolved": {host: [_derive_address(host)] for host in hosts}, "hostname": name}
    elif message["op"] == "environment":
        program = {"exists": True, "path": str(message.get("script") or message.get("program")), "digest": "the same"}
        reply |= {"search_path": "/usr/bin", "python": {"exists": True}, "workdir": True, "program": program}
    elif message["op"] == "leftovers":
        reply |= {"runs": {}, "places": [], "strays": [], "intruder": None}
    else:
        reply["error"] = f"a simulated agent does not support {message['op']}"
    return reply


def _derive_address(name: str) -> str:
    """The same address for a name on every node, as from a working name service."""
    return str(IPv4Address((10 << 24) + 1 + crc32(name.encode()) % ((1 << 24) - 2)))


async def serve_agents(path: str) -> None:
    nodes = FakeNodes()
    server = await asyncio.start_unix_server(lambda *ends: FakeAgent(nodes, *ends).act(), path, backlog=4096)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    async with server:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve_agents(sys.argv[1]))
