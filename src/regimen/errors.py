"""Errors a user can act on: one line that names the field and the fix, and the exit code the command line returns."""


class RegimenError(Exception):
    """Base of every error shown as one line instead of a traceback."""

    exit_code = 1


class UsageError(RegimenError):
    """The command line cannot be read: unknown verb, flag or argument."""

    exit_code = 2


class ConfigError(RegimenError):
    """A setting is unknown, of the wrong type, out of range, or does not fit the others."""

    exit_code = 3


class ArgumentError(ConfigError, TypeError):
    """A function or method of Regimen has no argument of that name."""


class UntrustedError(ConfigError):
    """A file names code that is not installed, and nobody has said that it may run."""


class SpentError(ConfigError):
    """A run that has finished has nothing left to train: its budget is spent."""


class EnvError(RegimenError):
    """The environment cannot be made, or broke its contract while stepping."""

    exit_code = 4


class DivergedError(RegimenError):
    """Training produced a non-finite loss or parameter; the last good state is on disk."""

    exit_code = 5


class StorageError(RegimenError):
    """Disk or I/O: unwritable directory, corrupt or newer checkpoint, a run directory in use."""

    exit_code = 6


class OutOfMemoryError(RegimenError):
    """The device ran out of memory; the message says what to reduce."""

    exit_code = 7


class LostProcessError(RegimenError):
    """Another process of a run on several is gone or never came."""

    exit_code = 8


def nearest(name: str, choices) -> str:
    """`; did you mean 'x'?` for the closest choice, or the list of choices when none is close."""
    import difflib

    names = sorted(str(c) for c in choices)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if not close:  # a dotted key may be right but in another section
        tail = name.rsplit(".", 1)[-1].replace("-", "_")
        close = [n for n in names if n.rsplit(".", 1)[-1] == tail][:1]
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; choose from: {', '.join(names)}" if len(names) <= 40 else ""
