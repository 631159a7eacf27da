"""Tests of the test bed itself need the foreign programs."""

from peers.fleet import peers as peers
