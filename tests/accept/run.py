"""What `make accept` measures: first lists, or what --console, --desktop, --fleet, --hooks, --logins, --packages,
--replicas or --start name."""

import sys

import console_pages
import desktop
import first_list
import fleet
import hooks
import logins
import packages
import replicas
import start

OTHERS = {
    "--console": console_pages.main,
    "--desktop": desktop.main,
    "--fleet": fleet.main,
    "--hooks": hooks.main,
    "--logins": logins.main,
    "--packages": packages.main,
    "--replicas": replicas.main,
    "--start": start.main,
}

if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word not in OTHERS]
    chosen = next((OTHERS[word] for word in sys.argv if word in OTHERS), None)
    sys.exit(chosen(words) if chosen else first_list.main())
