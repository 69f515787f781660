"""A node that was reached but breaks the frame protocol or fails a request."""

from aboard.diagnoses.diagnosis import Diagnosis

WIRE_PROTOCOL = Diagnosis(
    code="wire-protocol",
    title="a node sent an invalid protocol frame",
    symptoms=("ProtocolError",),
    explanation="Something on the connection altered the bytes, or another program is replying.",
    fixes="aboard check --only reach    # shows which",
)

AGENT_ASK = Diagnosis(
    code="agent-ask",
    title="the agent on a node could not execute a request",
    symptoms=("AskError",),
    explanation="The message contains the operating system's own error.",
    fixes="aboard check",
)
