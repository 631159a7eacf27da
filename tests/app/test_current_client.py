"""Who goes on with a call that waited: the same client with the roles of now, and nobody with another key."""

from types import SimpleNamespace
from typing import Any

import pytest

from sluicegate.app.approvals import _current
from sluicegate.protocol.model import Client

ANN = Client("key:ann", ("role:dev",), "ann", credential="first")


@pytest.mark.parametrize(("credential", "goes_on"), [("first", True), ("second", False)])
def test_a_newer_key_of_the_same_name_goes_on_with_nothing(credential: str, goes_on: bool) -> None:
    now = Client("key:ann", ("role:ops",), "ann", credential=credential)
    keys = {"ann": SimpleNamespace(expires=None)}
    judges: Any = SimpleNamespace(
        config=SimpleNamespace(clients=SimpleNamespace(keys=keys)), client_of=lambda principal, roles, is_operator: now
    )
    found = _current(judges, ANN)
    assert (found is not None) is goes_on and (found is None or found.roles == ("role:ops",))
