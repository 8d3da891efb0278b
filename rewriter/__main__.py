"""`python -m rewriter` is `tfboost`."""

from .cli import main

if __name__ == "__main__":
    main()
