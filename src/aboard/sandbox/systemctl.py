"""The one service of a practice host that can be managed as on a machine with systemd: its ssh server.

Fixes that users are shown say `sudo systemctl restart ssh`, and a practice host has no systemd to ask. This program
stands in /usr/local/sbin, on root's path only, and does with sshd what systemd does: start, stop, restart, reload,
is-active. Of any other service or verb it says that it can't, and fails.
"""

SYSTEMCTL_PATH = "/usr/local/sbin/systemctl"

_PROGRAM = """\
#!/bin/sh
# A practice host has no systemd: this manages its ssh server, and nothing else.
file=@pid_file@
listens() { [ -s "$file" ] && read -r pid < "$file" && kill -0 "$pid" 2>/dev/null; }
await() { tries=0; until "$@"; do tries=$((tries + 1)); [ "$tries" -lt 1500 ] || exit 1; sleep 0.02; done; }
gone() { ! kill -0 "$pid" 2>/dev/null; }
start() { listens || { @sshd@ && await listens; }; }
stop() { listens && kill "$pid" && await gone; rm -f "$file"; }
case "$2" in
    ssh|sshd|ssh.service|sshd.service) ;;
    *) echo "systemctl: a practice host has no systemd; only its ssh server can be managed" >&2; exit 1 ;;
esac
case "$1" in
    start) start ;;
    stop) stop ;;
    restart) stop; start ;;
    reload) listens || exit 1; rm -f "$file"; kill -HUP "$pid"; await listens ;;
    is-active) if listens; then echo active; else echo inactive; exit 3; fi ;;
    *) echo "systemctl: a practice host has no systemd; $1 can't be done" >&2; exit 1 ;;
esac
"""


def systemctl(*, sshd: str, pid_file: str) -> str:
    """The program, told where sshd is and where it writes its number."""
    return _PROGRAM.replace("@sshd@", sshd).replace("@pid_file@", pid_file)
