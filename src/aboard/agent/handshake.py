"""The first frame of an agent: who and where it is."""

from __future__ import annotations

import os
import pwd
import sys
import time

from aboard.agent import frames


def build_hello() -> frames.Message:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return {
        "hello": frames.VERSION,
        "hostname": os.uname().nodename,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "executable": sys.executable or "",
        "user": user,
        # sshd tells which address was dialled: "client-ip client-port server-ip server-port", ssh(1).
        "address": (os.environ.get("SSH_CONNECTION", "").split() + [""] * 4)[2],
        "pid": os.getpid(),
        "wall": time.time(),
    }
