"""What `make accept` measures: first lists, with --console the console's pages, with --packages the wheel and sdist."""

import sys

import console_pages
import first_list
import packages

OTHERS = {"--console": console_pages.main, "--packages": packages.main}

if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word not in OTHERS]
    chosen = next((OTHERS[word] for word in sys.argv if word in OTHERS), None)
    sys.exit(chosen(words) if chosen else first_list.main())
