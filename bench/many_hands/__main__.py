"""`python -m bench.many_hands`: see `bench.many_hands.killed`."""

from bench.many_hands.killed import main

if __name__ == "__main__":
    main()
