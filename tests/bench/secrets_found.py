"""How many secrets of CredData the detector finds, how many findings are wrong, and the same of Sluice's own masking.

python tests/bench/secrets_found.py CREDDATA REPOSITORIES

CREDDATA is a clone of Samsung/CredData. REPOSITORIES holds clones of what it labels, each a git directory named
OWNER+NAME, or OWNER+NAME/repo; those that are not there are left out. Each labelled file of up to 64 KiB is one text
of a tool's result. A label of people says of a line, or of several, whether a secret is on it. A finding on no such
line counts as wrong, also where nobody labelled the line. Nothing of the corpus is printed.

The table in docs/how-to/hooks.md is of these repositories, most of those with many labels that are not too large:
CTFd/CTFd, PyGithub/PyGithub, cloudfoundry/credhub, cloudskiff/driftctl, danger/danger, docker/docker-py,
elastic/elasticsearch-js, git-ecosystem/git-credential-manager, github/gh-ost, go-acme/lego, huginn/huginn,
juice-shop/juice-shop, nats-io/nats-server, nats-io/nats.docs, open-falcon/falcon-plus, panva/jose, paramiko/paramiko,
postmanlabs/postman-collection-transformer, request/request, requests/requests-oauthlib,
swisskyrepo/PayloadsAllTheThings, timdorr/tesla-api, twilio/twilio-ruby, xo/usql
"""

import binascii
import csv
import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sluicegate.audit.redact import Redactor
from sluicegate.detector.secrets import Scanner

MAX_FILE = 64 * 1024  # of a longer text Sluice masks the beginning alone
NO_SECRETS = {"UUID", "AWS S3 Bucket", "Firebase Domain", "Nonce", "Salt"}
"""Categories of labels that name what is no credential."""
GROUPS = {
    "PEM": "private keys", "JSON Web Token": "JSON Web Tokens", "URL Credentials": "passwords in URLs",
    "AWS": "ids of AWS keys", "": "passwords, tokens and others",
}  # fmt: skip
"""What a category contains, and how it is called here; the first that fits."""
MARK = re.compile(r"\[redacted:[0-9a-f]{16}\]")
Span = tuple[int, int]
"""First and last line, from 1."""
Finder = Callable[[str], list[Span]]


@dataclass
class Score:
    found: Counter[str] = field(default_factory=Counter)
    findings: int = 0
    right: int = 0

    def count(self, secrets: dict[Span, str], spans: set[Span]) -> None:
        self.findings += len(spans)
        self.right += sum(any(meet(span, secret) for secret in secrets) for span in spans)
        self.found.update(group for secret, group in secrets.items() if any(meet(span, secret) for span in spans))


def meet(one: Span, other: Span) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def git(place: Path, *words: str) -> bytes:
    """Nothing where git fails: a snapshot may lack its largest files."""
    return subprocess.run(["git", "-C", str(place), *words], capture_output=True).stdout


def clones(creddata: Path, folder: Path) -> Iterator[tuple[Path, str, list[dict[str, str]]]]:
    """Each repository that is there, the commit that was labelled, and the labels."""
    for key, url in json.loads(git(creddata, "show", "HEAD:snapshot.json")).items():
        place = folder / "+".join(url.rstrip("/").split("/")[-2:])
        place = place / "repo" if (place / "repo").is_dir() else place
        if place.is_dir():
            name = f"{binascii.crc32(binascii.unhexlify(key)):08x}"
            rows = git(creddata, "show", f"HEAD:meta/{name}.csv").decode().splitlines()
            yield place, key[:40], list(csv.DictReader(rows))


def files(place: Path, commit: str, rows: list[dict[str, str]]) -> Iterator[tuple[str, dict[Span, str]]]:
    """Texts, and the group of each secret in them. Labels name a file by the beginning of the SHA-256 of its path."""
    tree = git(place, "ls-tree", "-r", "-z", "--name-only", commit).decode("utf-8", "replace").split("\0")
    paths = {hashlib.sha256(path.encode()).hexdigest()[:8]: path for path in tree}
    for id in sorted({row["FileID"] for row in rows} & paths.keys()):
        data = git(place, "show", f"{commit}:{paths[id]}")
        if not 0 < len(data) <= MAX_FILE:
            continue
        secrets = dict[Span, str]()
        for row in rows:
            if row["FileID"] == id and row["GroundTruth"] == "T" and row["Category"] not in NO_SECRETS:
                group = next(said for part, said in GROUPS.items() if part in row["Category"])
                secrets[int(row["LineStart"]), int(row["LineEnd"])] = group
        yield data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n"), secrets


def by_detector(scanner: Scanner) -> Finder:
    def find(text: str) -> list[Span]:
        data = text.encode()
        return [lines(data, one.start, one.end) for one in scanner.found(data)]

    return find


def by_masking(redactor: Redactor) -> Finder:
    """What lies between the parts that the masking left as they are."""

    def find(text: str) -> list[Span]:
        value = {"content": [{"type": "text", "text": text}]}
        masked = redactor.masked(value, "", MAX_FILE, 20_000, 256 * 1024)[0]["content"][0]["text"]
        data, at, spans, parts = text.encode(), 0, list[Span](), [part.encode() for part in MARK.split(masked)]
        for number, part in enumerate(parts):
            begin = data.find(part, at) if part else (len(data) if number == len(parts) - 1 else at)
            if number and begin > at:
                spans.append(lines(data, at, begin))
            at = max(begin, at) + len(part)
        return spans

    return find


def lines(data: bytes, start: int, end: int) -> Span:
    first = data.count(b"\n", 0, start) + 1
    return first, first + data.count(b"\n", start, max(start, end - 1))


def main(creddata: Path, folder: Path) -> None:
    finders = {"detector": by_detector(Scanner()), "masking": by_masking(Redactor(b"k" * 32))}
    scores = {name: Score() for name in finders}
    secrets, repositories, texts = Counter[str](), 0, 0
    for place, commit, rows in clones(creddata, folder):
        repositories += 1
        for text, labelled in files(place, commit, rows):
            texts += 1
            secrets.update(labelled.values())
            for name, find in finders.items():
                scores[name].count(labelled, set(find(text)))
    head = git(creddata, "rev-parse", "HEAD").decode().strip()
    print(f"CredData {head}: {texts:,} files of {repositories} repositories\n")
    print("| | " + " | ".join(scores) + " |\n|---|" + "---|" * len(scores))
    precise = [f"{score.right / score.findings:.2f} of {score.findings:,} findings" for score in scores.values()]
    print(f"| precision | {' | '.join(precise)} |")
    for group in ["all", *GROUPS.values()]:
        of = secrets.total() if group == "all" else secrets[group]
        found = [score.found.total() if group == "all" else score.found[group] for score in scores.values()]
        print(f"| recall: {group}, {of:,} | " + " | ".join(f"{one / of:.2f}" for one in found) + " |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
