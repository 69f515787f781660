"""Diagnoses of containers that do not start because of their image: absent, damaged, for another machine."""

from aboard.diagnoses.diagnosis import RunFailure
from aboard.diagnoses.failure_class import Circumstance, FailureClass
from aboard.diagnoses.output_patterns import last_words, refusal

_SCHEMA = "in aboard.yaml"
# What a check can't find out without the container.
_UNKNOWN = ("unknown-software", "unknown-torch")

IMAGE_MISSING = RunFailure(
    code="container-image-missing",
    restart=Circumstance.BY_EXTENT,
    precedence=300,
    leads_to=_UNKNOWN,
    title="a node does not have the container's image",
    symptoms=(
        "FATAL:   While checking container encryption: could not open image /data/train.sif: failed to retrieve path",
        "Error: initializing source docker://localhost/train:latest: pinging container registry localhost",
        "Unable to find image 'train:latest' locally",
    ),
    explanation="The image is not at this path or under this name on the node, and could not be pulled.",
    remedy="An image file must exist at the same path on every node. Docker keeps images per node, and rootless Podman"
    " also per user: load or pull the image on every node.",
    fixes={
        "file": "aboard sync --data {image}    # here; copies the image to the nodes that lack it, if this machine"
        " has it",
        "copy": 'for node in {nodes:words}; do scp -3 {peer}:{image} "$node":{image}; done'
        "    # here; copies the image if {peer} has it",
        "store": 'for node in {nodes:words}; do {runtime} save {image} | ssh "$node" {runtime} load; done'
        "    # here; copies the image if this machine has it\n"
        "{runtime} pull {image}    # on {node}; if a registry has it",
        "transfer": 'for node in {nodes:words}; do ssh {peer} {runtime} save {image} | ssh "$node" {runtime} load; done'
        "    # here; copies the image if {peer} has it\n"
        "{runtime} pull {image}    # on {node}; if a registry has it",
        "registry": "{runtime} pull {image}    # on {node}; shows why it can't be pulled",
        "log-file": "ls -l {image}    # on {node}; is the image there? it must be on every node",
        "log-store": "podman images; docker images    # on {node}; is the image there? load or pull it on every node",
    },
    patterns=(
        refusal(
            r"could not open image (?P<image>\S+): failed to retrieve path for .*: no such file or directory"
            r"|FATAL: +image file (?P<image2>\S+) does not exist",
            fix="log-file",
        ),
        refusal(
            r"FATAL: +Unable to handle (?P<image>\S+) uri: |FATAL: +While making image from oci registry",
            "The image is pulled from a registry at each start, and the node could not reach the registry or may not"
            " read from it.",
            fix="log-store",
        ),
        refusal(
            r"initializing source docker://(?P<image>\S+?): |short-name \"(?P<image2>[^\"]+)\" did not resolve"
            r"|Unable to find image '(?P<image3>[^']+)' locally"
            r"|(?:pull access denied|manifest) for (?P<image4>[\w./:-]+)(?:, repository| not found)",
            fix="log-store",
        ),
    ),
)

IMAGE_PERMISSION = RunFailure(
    code="container-image-permission",
    restart=Circumstance.BY_EXTENT,
    precedence=310,
    leads_to=_UNKNOWN,
    title="this user may not read the container's image",
    symptoms=("could not open image /data/train.sif: /data/train.sif is not readable by the current user",),
    explanation="The user that runs the ranks has no permission to read the image file, or a directory above it.",
    fixes="namei -l {image}    # on {node}; shows which part of the path lacks r (file) or x (directory)",
    patterns=refusal(
        r"could not open image (?P<image>\S+): .*(?:is not readable by the current user|permission denied)"
    ),
)

IMAGE_INVALID = RunFailure(
    code="container-image-invalid",
    restart=FailureClass.PROGRAM,
    precedence=320,
    leads_to=_UNKNOWN,
    title="the container's image is damaged or not an image",
    symptoms=(
        "could not open image /data/train.sif: image format not recognized",
        "FATAL ERROR: File system corruption detected",
    ),
    explanation="The file is not a complete container image: usually a copy was interrupted, or it is another kind of"
    " file.",
    fixes={
        "": "ls -l {image}; sha256sum {image}    # on {node}; compare with another node, and copy it again",
        "name": "{runtime} images    # on {node}; `container.image` must be one of these names, not a file",
    },
    patterns=(
        refusal(
            r"could not open image (?P<image>\S+): (?:image format not recognized|.*\bEOF|.*bad magic)"
            r"|while extracting (?P<image2>\S+): .*(?:[Ff]ile system corruption|not a squashfs)"
            r"|FATAL ERROR: File system corruption detected|failed to open elf binary /bin/sh: (?:EOF|open /bin/sh)"
        ),
        refusal(r"Error: invalid reference format|docker: invalid reference format", fix="name"),
    ),
)

ARCHITECTURE = RunFailure(
    code="container-architecture",
    restart=FailureClass.PROGRAM,
    precedence=330,
    leads_to=_UNKNOWN,
    title="the container's image is for another CPU architecture",
    symptoms=(
        "the image's architecture (arm64) could not run on the host's (amd64)",
        "exec container process `/usr/bin/python3`: Exec format error",
    ),
    explanation="The programs in the image were built for another CPU architecture than this node's.",
    fixes="uname -m    # on {node}; build or pull the image for this architecture",
    patterns=refusal(
        r"the image's architecture \((?P<built>\w+)\) could not run on the host's|image targets '?(?P<built2>\w+)'?,"
        r" cannot run on|(?:exec container process|exec user process|failed to exec pid1|Failed to execv).*[Ee]xec"
        r" format error|exec /\S+: exec format error"
    ),
)

NO_SPACE = RunFailure(
    code="container-no-space",
    restart=FailureClass.NODE,
    precedence=340,
    leads_to=_UNKNOWN,
    title="there is no space to unpack the container's image",
    symptoms=(
        "Write on output file failed because No space left on device",
        "Error: writing blob: storing blob to file: no space left on device",
    ),
    explanation="The disk that an image is unpacked to is full. Apptainer unpacks to its temporary directory, Podman to"
    " ~/.local/share/containers, Docker to /var/lib/docker.",
    fixes={
        "unpack": (
            "df -h /tmp    # on {node}; free space, or unpack elsewhere: `APPTAINER_TMPDIR: /scratch` under `env:` "
            + _SCHEMA
        ),
        "store": "df -h ~/.local/share/containers; podman system df    # on {node}; free space there",
    },
    patterns=(
        refusal(
            r"Write on output file failed because No space left on device"
            r"|(?:while extracting|packer failed to pack|unpackSIF failed).*[Nn]o space left on device",
            fix="unpack",
        ),
        refusal(
            r"(?:Error: |docker: ).{0,300}(?:writing blob|storing blob|creating container|layer|storage|mounting)"
            r".*no space left on device",
            fix="store",
        ),
    ),
)

NO_PROGRAM = RunFailure(
    code="container-program-missing",
    restart=Circumstance.BY_EXTENT,
    precedence=350,
    leads_to=_UNKNOWN,
    title="the container's image does not have the ranks' program",
    symptoms=(
        'FATAL:   "python3": executable file not found in $PATH',
        "Error: crun: executable file `python3` not found in $PATH",
        "ERROR (catatonit:2): failed to exec pid1: No such file or directory",
    ),
    explanation="The image has no such program on its own PATH. Ranks run its `python3`, unless"
    " `container.python` names another interpreter.",
    fixes={
        "": (
            "{enter:shell apptainer exec IMAGE} sh -c 'command -v python3 python'    # on {node};"
            " set `container.python` to its interpreter " + _SCHEMA
        ),
        "log": "apptainer exec IMAGE sh -c 'command -v python3 python'    # on {node}; podman run --rm IMAGE sh -c …",
    },
    patterns=(
        refusal(
            r"FATAL: +\"(?P<program>[^\"]+)\": executable file not found in \$PATH"
            r"|FATAL: +stat (?P<program2>\S+): no such file or directory"
            r"|executable file `(?P<program3>[^`]+)` not found in \$PATH"
            r"|exec: \"(?P<program4>[^\"]+)\": executable file not found in \$PATH"
            r"|catatonit.*failed to exec pid1: No such file"
        ),
        last_words(r"\b(?:ba)?sh: (?:line )?\d+: exec: (?P<program>[^:]+): not found", precedence=400),
    ),
)
