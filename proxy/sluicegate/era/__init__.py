"""Wire dialects to the middle's vocabulary and back: sync, pure, no I/O, no anyio.

`revisions` is the table of the five dated revisions. Four edge adapters, each named by the peer at the other
end of the wire: `modern_client`, `legacy_client` (they call us), `modern_server`, `legacy_server` (we call them).
"""
