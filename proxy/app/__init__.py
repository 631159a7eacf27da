"""The composition root: a Config becomes every object and the tasks that keep them alive.

The only room that knows all others. `slices` cuts the config, `core` wires what every way in shares, `judging` and
`auditing` two parts of that, `http` and `stdio` are the two ways in, and
`seat` says which of several processes runs the firewall. `law` makes of a config what decides, and `reload`
notices that it changed.
"""

from proxy.app.http import Running, running, serve
from proxy.app.stdio import serve_stdio

__all__ = ["Running", "running", "serve", "serve_stdio"]
