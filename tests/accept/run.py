"""What `make accept` measures: first lists, or with --console the console's pages."""

import sys

import console_pages
import first_list

if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--console"]
    sys.exit(console_pages.main(words) if "--console" in sys.argv else first_list.main())
