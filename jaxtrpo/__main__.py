"""`python -m jaxtrpo`."""

from jaxtrpo.cli.main import command

if __name__ == "__main__":
    command()
