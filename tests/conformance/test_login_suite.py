"""The suite's scenarios for clients that log in, with Sluice as the client: between the suite's servers and login.py.

All that a revision scores, those of 2025-03-26, and those of machines, which are an extension. A warning counts as not
passed. What is not here is in the table below, with the reason; a scenario that is in neither fails the last test.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conformance.run import reasons_of, scored_names
from e2e.sluice_process import COMMAND, ROOT, clean_environment
from peers.install import CONFORMANCE, NODE

LOGIN = Path(__file__).with_name("login.py")
OF_BOTH = (
    "metadata-default", "metadata-var1", "metadata-var2", "metadata-var3", "basic-cimd", "scope-from-www-authenticate",
    "scope-from-scopes-supported", "scope-omitted-when-undefined", "scope-step-up", "scope-retry-limit",
    "token-endpoint-auth-basic", "token-endpoint-auth-post", "token-endpoint-auth-none", "pre-registration",
)  # fmt: skip
OF_NEWEST = (
    "resource-mismatch", "offline-access-scope", "offline-access-not-supported", "authorization-server-migration",
    "iss-supported", "iss-not-advertised", "iss-supported-missing", "iss-wrong-issuer", "iss-unexpected",
    "iss-normalized", "metadata-issuer-mismatch",
)  # fmt: skip
SCORED = {"2025-11-25": OF_BOTH, "2026-07-28": OF_BOTH + OF_NEWEST}
OF_OLD = ("2025-03-26-oauth-metadata-backcompat", "2025-03-26-oauth-endpoint-fallback")
EXTENSIONS = ("client-credentials-jwt", "client-credentials-basic")
SCENARIOS = [
    *((revision, name) for revision, names in SCORED.items() for name in names),
    *(("2025-03-26", name) for name in OF_OLD),
    *((None, name) for name in EXTENSIONS),
]
LEFT_OUT = {
    "enterprise-managed-authorization": "its identity provider has neither keys nor a login page, so that nobody "
    "can check or get the ID token that the suite hands over",
    "wif-jwt-bearer": "an extension that Sluice has not",
    "dpop": "an extension that Sluice has not",
    "dpop-nonce": "an extension that Sluice has not",
}


@pytest.fixture(scope="module")
def login_is_known(peers: None) -> None:
    """Until `sluice login` exists there is nothing to judge."""
    asked = [*COMMAND, "login", "--help"]
    if subprocess.run(asked, capture_output=True, cwd=ROOT, env=clean_environment(), check=False).returncode:
        pytest.skip("Sluice has no command `login` yet")


def run(name: str, folder: Path, revision: str | None) -> tuple[str, ...]:
    """Why it did not pass: nothing if it did. With a revision the suite leaves extensions out, and says nothing."""
    dated = [] if revision is None else ["--spec-version", revision]
    options = ["--scenario", f"auth/{name}", *dated, "--timeout", "120000", "--output-dir", str(folder)]
    command = [str(NODE), str(CONFORMANCE), "client", "--command", f"{sys.executable} {LOGIN}", *options]
    ours = {key: value for key, value in os.environ.items() if not key.startswith("SLUICE_")}
    ours["PYTHONPATH"] = str(ROOT / "tests")
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=ours)
    reasons = reasons_of(next((file.parent for file in folder.rglob("checks.json")), None))
    return (*reasons, *([] if done.returncode == 0 else [done.stderr[-4000:]]))


@pytest.mark.parametrize(("revision", "name"), SCENARIOS)
def test_sluice_passes_every_scenario_for_clients_that_log_in(
    login_is_known: None, revision: str | None, name: str, tmp_path: Path
) -> None:
    assert run(name, tmp_path, revision) == ()


def test_every_scenario_of_the_suite_is_run_or_left_out_for_a_reason(peers: None) -> None:
    for revision, names in SCORED.items():
        scored = {name.removeprefix("auth/") for name in scored_names(revision, "client") if name.startswith("auth/")}
        assert set(names) == scored
    listed = subprocess.run([NODE, CONFORMANCE, "list", "--client"], capture_output=True, text=True, check=True).stdout
    known = {line.split()[1][5:] for line in listed.splitlines() if line.strip().startswith("- auth/")}
    assert known == {name for _, name in SCENARIOS} | LEFT_OUT.keys()
