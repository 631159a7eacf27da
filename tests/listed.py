"""What the product makes in pieces, made in one step."""

from typing import Any

from sluicegate.catalog.names import Naming, publish_in_pieces
from sluicegate.catalog.snapshot import ListSection, listing_in_pieces
from sluicegate.protocol.pieces import in_one_step


def publish(*names: Any) -> Naming:
    return in_one_step(publish_in_pieces(*names))


def listing(*lists: Any) -> ListSection:
    return in_one_step(listing_in_pieces(*lists))
