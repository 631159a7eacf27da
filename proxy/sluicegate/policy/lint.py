"""Everything that is wrong or odd about a policy's rows, with file, line and column, in the order of the files."""

from collections.abc import Mapping, Sequence

from sluicegate.policy.finding import Finding
from sluicegate.policy.profiles import Profile
from sluicegate.policy.sense import Known, check_sense
from sluicegate.policy.table import Row
from sluicegate.policy.words import check_words


def lint(rows: Sequence[Row], profiles: Mapping[str, Profile], known: Known | None = None) -> list[Finding]:
    """What rows say is judged only where they use the right words: else one mistake is reported as many."""
    wrong = list(check_words(rows, profiles))
    at = {(finding.file, finding.line) for finding in wrong}
    sound = [row for row in rows if (row.file, row.line) not in at]
    odd = check_sense(sound, profiles, known or Known())
    files = list(dict.fromkeys(row.file for row in rows))
    return sorted([*wrong, *odd], key=lambda finding: (files.index(finding.file), finding.line, finding.column))
