"""Everything that is wrong or odd about a policy's rows, with file, line and column, in the order of the files."""

from collections.abc import Mapping, Sequence

from sluicegate.policy.csv_rows import Row
from sluicegate.policy.finding import PolicyFinding
from sluicegate.policy.lint_semantics import KnownNames, check_sense
from sluicegate.policy.lint_syntax import check_words
from sluicegate.policy.profiles import ApprovalProfile


def lint(
    rows: Sequence[Row], profiles: Mapping[str, ApprovalProfile], known: KnownNames | None = None
) -> list[PolicyFinding]:
    """What rows say is judged only where they use the right words: else one mistake is reported as many."""
    wrong = list(check_words(rows, profiles))
    at = {(finding.file, finding.line) for finding in wrong}
    sound = [row for row in rows if (row.file, row.line) not in at]
    odd = check_sense(sound, profiles, known or KnownNames())
    files = list(dict.fromkeys(row.file for row in rows))
    return sorted([*wrong, *odd], key=lambda finding: (files.index(finding.file), finding.line, finding.column))
