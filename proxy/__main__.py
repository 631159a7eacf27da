"""`python -m proxy` and the installed command `sluice`."""

from proxy.cli import main

if __name__ == "__main__":
    main()
