"""`python -m regimen` is the `regimen` command."""

from regimen.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
