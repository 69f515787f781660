"""The reader of scripts against bash itself: it starts the same programs with the same words and variables."""

import subprocess

import pytest

from aboard.core.launchers.shell.captured_output import JobNodes
from aboard.core.launchers.shell.evaluation import ScriptReader
from aboard.core.launchers.shell.syntax import UnreadableScriptError
from aboard.core.launchers.shell.variables import Variables, find_unknown

NODES = ("n1", "n2", "n3")
ENVIRON = {"HOME": "/home/me", "SLURM_JOB_NODELIST": "n[1-3]", "GPUS": "4,5,6", "EMPTY": "", "TWO": "a b"}
# Stands for srun and scontrol, which a test has not.
STUBS = """
srun() { printf '%s\\035' "$(printf '%s\\036' "$@" "E=$E")"; }
scontrol() { printf 'n1\\nn2\\nn3\\n'; }
"""
SCRIPTS = {
    "words": 'srun a \'b c\' "d $TWO" $TWO "$EMPTY" $EMPTY e\\ f "\\$x\\"" g\'h\'"i"',
    "continued": "srun a \\\n  b \\\n  c # comment\nsrun 'not # one'",
    "parameters": "srun ${TWO} ${NONE:-x} ${EMPTY:-y} ${EMPTY-z} ${NONE-z} ${TWO:+set} ${NONE:+s} ${NONE:-$TWO} ${#A}",
    "default assigned": ": ${LR:=1e-4}\nsrun $LR",
    "patterns": "p=/a/b.c.d\nsrun ${p##*/} ${p#*/} ${p%.*} ${p%%.*} ${p/b/x} ${p//./_} ${p:1:3} ${p:3}",
    "arrays": 'a=(x "y z" $TWO)\na+=(w)\nsrun ${#a[@]} "${a[@]}" ${a[1]} "${a[-1]}" "${a[*]}" $a',
    "nodes": "srun $(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1) `scontrol show hostnames | wc -l`",
    "line of nodes": 'for ((i=0; i<3; i++)); do srun "$(scontrol show hostnames | sed -n "$((i+1))p")" $i & done\nwait',
    "joined nodes": "srun $(scontrol show hostnames | tr '\\n' ',') $(scontrol show hostnames | tail -n +2)",
    "read": 'IFS=\',\' read -ra g <<< "$GPUS"\nsrun ${#g[@]} ${g[2]}\nread -ra w <<< "$TWO"\nsrun ${w[1]}',
    "mapfile": 'mapfile -t g <<< "$(scontrol show hostnames)"\nsrun ${#g[@]} ${g[0]}',
    "arithmetic": "n=7\nsrun $((n * 2 + 1)) $(( $n / 2 )) $((n % 4)) $((-n / 2)) $((n > 3 && n < 9)) $((!n == 0))",
    "counting": "i=0\nwhile ((i < 3)); do srun $i; ((i++)); done\nuntil [ $i -eq 0 ]; do i=$((i-1)); done\nsrun $i",
    "for": 'for x in a "b c" $TWO; do srun "$x"; done\nfor i in $(seq 2 3); do srun $i; done',
    "break": "for x in a b c d; do if [ $x = b ]; then continue; fi; srun $x; [ $x = c ] && break; done\nsrun $x",
    "if": 'if [ -z "$NONE" ] && [[ $TWO == a* ]]; then srun yes; elif true; then srun no; else srun never; fi',
    "else": "if [ 1 -gt 2 ] || [[ x != x ]]; then srun a; elif false; then srun b; else srun c; fi",
    "test": '[[ -n "$TWO" && 1 -lt 2 ]] || srun a\n[ "$TWO" = "a b" ] && srun b\ntest -z "$EMPTY" && srun c',
    "negated": '! false && srun a\nif ! [ -z "$TWO" ]; then srun b; fi',
    "case": "case $TWO in b*) srun no;; a*|x) srun yes;; *) srun z;; esac\ncase z in (a) srun a;; *) srun b;; esac",
    "arguments": 'while [ $# -gt 0 ]; do case $1 in --a) A=$2; shift;; *) B=$1; shift;; esac; done\nsrun "$A" $B "$@"',
    "all arguments": 'srun "$@" $# "$2" ${3:-none}',
    "returns": "check() { if [ $1 = a ]; then return 0; fi; return 1; }\ncheck a && srun a\ncheck b || srun b\nsrun c",
    "functions": 'run() { srun "$1" $#; }\nrun "a b" c\nrun',
    "variables": "export E=1\nsrun a\nE=2\nsrun b\nE=3 srun c\nsrun d\nunset E\nsrun e",
    "appended": 'x=a\nx+=b\nx="$x c"\nsrun "$x"',
    "indirect command": 'CMD="srun --flag"\n$CMD a',
    "here-document": "cat > /dev/null <<END\n$TWO\nEND\nsrun a\ncat <<-'END' > /dev/null\n\tsrun no\n\tEND\nsrun b",
    "own directory": 'srun "$(cd "/usr/lib"/..; pwd)" $(cd /usr/bin && pwd) "$(cd "$(dirname /usr/bin/x.sh)" && pwd)"',
    "options": 'while [[ $# -ge 1 ]]; do\nkey="$1"\ncase ${key} in\n-a|--a)\nA="$2"\nshift\n;;\n*)\nB="${key}"\n'
    'esac\nshift\ndone\nsrun "$A" "$B"',
    "copied output": "srun a > >(tee /dev/null) 2> >(tee /dev/null >&2)\nsrun b",
    "exit": "srun a\nexit 0\nsrun b",
    "home": "srun ~/x ~ 'a~' x~",
    "timed": "time srun a | tee /dev/null",
    "group": "{ srun a; srun b; }\ntrue || { srun c; }",
    "echo": 'srun $(echo a   b) "$(printf "%s" c)" "$(printf x)" $(basename /a/b.sh) $(dirname /a/b.sh)',
}


def read(text: str, arguments: tuple[str, ...] = ()) -> list[list[str]]:
    """The words of each srun, and the variable E for it."""
    variables = Variables(ENVIRON, arguments)
    nodes = JobNodes(names=NODES, written="n[1-3]", here="n1")
    reader = ScriptReader(variables, nodes, cwd="/work", starts_program=lambda words: words[0] == "srun")
    return [[*program.words[1:], f"E={program.env.get('E', '')}"] for program in reader.read(text).programs]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_as_bash(name: str) -> None:
    """Each script starts what bash would start, word for word."""
    arguments = ("--a", "b c", "d")
    ran = subprocess.run(
        ["bash", "-c", STUBS + SCRIPTS[name], "bash", *arguments],
        env={**ENVIRON, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    started = [each.split("\x1e")[:-1] for each in ran.stdout.split("\x1d")[:-1]]
    assert sorted(read(SCRIPTS[name], arguments)) == sorted(started)
    assert started


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cp a b", "the command 'cp a b'"),
        ("srun *.py", "the pattern '*.py'"),
        ("srun {1..3}", "the pattern '{1..3}'"),
        ("x=$(date)\nif [ $x = y ]; then srun a; fi", "a test of (date)"),
        ("if [ -f x ]; then srun a; fi", "the test '-f x'"),
        ("(srun a)", "a subshell"),
        ("srun a | sh", "a pipe |"),
        ("srun <(x)", "process substitution"),
        ("srun >(tee x)", "process substitution"),
        ("srun > >(sh)", "process substitution"),
        ("while true; do srun a; done", "a loop without end"),
        ("f() { f; }\nf", "a function that calls itself"),
        ("IFS=:\nsrun a", "a change of IFS"),
        ("for x in a; do srun b", "'end of the script' where 'done' is expected"),
        ("srun 'a", "a quote is not closed"),
        ("srun $(a", "a ( is not closed"),
        ("echo x > config.json\nls > list", "'ls', which writes a file"),
        ("cat <<END", "the here-document has no closing END"),
        ("trap 'rm x' EXIT\nsrun a", "the command 'trap rm x EXIT'"),
        ("printf -v x y\nsrun $x", "the command 'printf -v x'"),
        ("scontrol requeue 7", "the command 'scontrol requeue 7'"),
        ("env A=1 cp b", "the command 'env A=1 cp'"),
        ("echo a | tee config", "a file that tee writes"),
        ("eval srun a", "the command 'eval srun a'"),
        ("srun ${!x}", "the expansion ${!x}"),
        ("srun $((1/0))", "a division by zero"),
        ("[[ a =~ b ]] && srun a", "the test 'a =~ b'"),
        ("srun $((~1))", "arithmetic"),
        ("srun $((1 < 2 < 3))", "an operator"),
        ("srun $((2 ** 99))", "an operator"),
        ("srun $((" + "(" * 300 + ")" * 300 + "))", "arithmetic expression"),
        ("x=$?\nsrun $x", "the variable $?"),
    ],
)
def test_what_is_not_followed(text: str, reason: str) -> None:
    """What the reader doesn't know, it refuses by name and line; it never guesses."""
    with pytest.raises(UnreadableScriptError) as error:
        read(text)
    assert reason in error.value.reason


def test_what_changes_nothing_for_the_run_is_passed_over() -> None:
    """A hostfile is removed before a loop writes it, and signals are Aboard's own; what removes more is refused."""
    text = "rm -f $H\ntrap 'scontrol requeue $SLURM_JOB_ID' USR1 TERM\nfor n in a b; do echo $n >> $H; done\nsrun x"
    assert read(f"H=/tmp/hosts\n{text}") == [["x", "E="]]
    for line in ("rm -rf out", "rm -f -r out", "trap 'rm x' USR1 EXIT", "trap"):
        with pytest.raises(UnreadableScriptError):
            read(f"{line}\nsrun a")


@pytest.mark.parametrize(
    "text", ["srun $(date +%s)", "srun $(srun -n1 hostname -I)", "srun $(cat x | wc -l)", "srun `nproc`"]
)
def test_output_of_other_commands_is_unknown(text: str) -> None:
    """What such a command prints is marked, never made up."""
    ((value, _),) = read(text)
    assert find_unknown(value) is not None
