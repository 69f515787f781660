"""Fills or empties the kernel's table of tracked connections: `fill COUNT` and `empty`, as root on a sandbox host."""

import socket
import struct
import sys

COUNT_FILE = "/proc/sys/net/netfilter/nf_conntrack_count"


def fill_table(wanted: int) -> None:
    """Sends packets to nobody, each to another port: only the first network namespace may lower the table's size."""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for number in range(wanted):
        if number % 1000 == 0 and count_connections() >= wanted:
            break
        sender.sendto(b"", ("127.77.%d.%d" % (number // 60000, number // 6000000), 1024 + number % 60000))
    if count_connections() < 0.99 * wanted:
        sys.exit("only %d connections are tracked" % count_connections())


def count_connections() -> int:
    with open(COUNT_FILE, encoding="ascii") as file:
        return int(file.read())


def empty_table() -> None:
    """Message 2 of netlink's subsystem 1 (ctnetlink) without attributes deletes all, as `conntrack -F` does."""
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
    kernel.settimeout(10)
    kernel.send(struct.pack("=IHHII", 20, (1 << 8) | 2, 5, 1, 0) + struct.pack("=BBH", 0, 0, 0))
    code = struct.unpack("=i", kernel.recv(4096)[16:20])[0]
    if code != 0:
        sys.exit("the kernel refused with %d" % code)


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        fill_table(int(sys.argv[2]))
    else:
        empty_table()
