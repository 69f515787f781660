"""A finding as plain lines, for grep and logs: each line is self-contained."""

from collections.abc import Iterator

from aboard.diagnoses import Finding


def format_finding_lines(finding: Finding) -> Iterator[str]:
    head = f"{_format_head(finding)} "
    for field, text in (("seen", finding.seen), ("why", finding.why), ("fix", finding.fix)):
        for line in text.splitlines():
            yield f"{head}{field}: {line}".rstrip()
    for consequence in finding.consequences:
        yield f"{head}then: {_format_head(consequence)}: {' '.join(consequence.seen.split())}"


def _format_head(finding: Finding) -> str:
    return f"{finding.severity.word} {finding.code} {','.join(finding.nodes) or 'all'}"
