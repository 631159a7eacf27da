"""End to end means with foreign programs at both ends."""

from peers.fleet import peers as peers
