"""`python -m bench.probe`: see `bench.probe.cost`."""

from bench.probe.cost import main

if __name__ == "__main__":
    main()
