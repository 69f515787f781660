"""The stories of files that can't be obeyed as they are."""

from aboard.core.rule import Subject
from aboard.diagnoses import configuration as given

FILES = Subject(
    name="files",
    title="aboard.yaml and other files can be obeyed",
    probes=(),
    rules=(),
    stories=(
        given.CONFIG,
        given.CONFIG_SET,
        given.CONFIG_TWICE,
        given.YAML,
        given.FILE,
        given.HOSTFILE,
        given.ENVFILE,
        given.NODESET,
        given.NODE_TWICE,
        given.CLUSTER_TWICE,
        given.HEAD_TWICE,
        given.HEAD_ADDRESS,
        given.FILTER,
    ),
    asked="aboard",
)
