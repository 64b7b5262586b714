"""`python -m vv_agent.cli`."""

from vv_agent.cli import main

if __name__ == "__main__":
    main()
