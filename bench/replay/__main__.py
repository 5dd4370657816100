"""`python -m bench.replay`: see `bench.replay.sweeps`."""

from bench.replay.sweeps import main

if __name__ == "__main__":
    main()
