"""A node that was reached but breaks the frame protocol or fails a request."""

from aboard.diagnoses.diagnosis import Diagnosis

WIRE_PROTOCOL = Diagnosis(
    code="wire-protocol",
    title="a node sent an invalid protocol frame",
    symptoms=("ProtocolError",),
    explanation="Either something on the connection altered the bytes, or a program other than Aboard's agent replied.",
    fixes="aboard check --only reach    # shows whether the agent replies",
)

AGENT_ASK = Diagnosis(
    code="agent-ask",
    title="Aboard's agent on a node could not execute a request",
    symptoms=("AskError",),
    explanation="The node was reached, but its operating system did not do what the agent asked for, for example"
    " because a file is missing or a permission is denied.",
    fixes={"": "aboard check", "named": "aboard check {words:words}"},
)
