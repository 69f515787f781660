"""A node that was reached, and talks nonsense or can't do what it is asked."""

from aboard.diagnoses.diagnosis import Diagnosis

WIRE_PROTOCOL = Diagnosis(
    code="wire-protocol",
    title="what a node sent is no frame of ours",
    symptoms=("ProtocolError",),
    explanation="Something on the way changed the bytes, or another program answers.",
    fixes="aboard check --only reach    # tells which",
)

AGENT_ASK = Diagnosis(
    code="agent-ask",
    title="a node could not do what it was asked",
    symptoms=("AskError",),
    explanation="The message has the system's own words.",
    fixes="aboard check",
)
