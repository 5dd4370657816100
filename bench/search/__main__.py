"""`python -m bench.search`: see `bench.search.scenarios`."""

from bench.search.scenarios import main

if __name__ == "__main__":
    main()
