"""`python -m minillm VERB ...`: the console script `minillm`, where the scripts' directory is not on the path."""

from minillm.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
