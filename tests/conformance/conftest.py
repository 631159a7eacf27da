"""The official suite and its fixture server are foreign programs."""

from peers.fleet import peers as peers
