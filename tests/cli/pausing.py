"""`python pausing.py MODULE:FUNCTION VERB ARGUMENTS...`: a `regimen` command that stops for good where it calls the
function, after saying `reached`, and has no grace to get to a signal. So the signal meets it at a known place, however
fast or slow the machine is."""

import importlib
import sys
import threading


def pause(*args, **kwargs):
    print("reached", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    owner = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    getattr(owner, last)  # it exists, or the pause would never come
    setattr(owner, last, pause)

    from regimen.cli.main import main
    from regimen.engines import signals

    signals.GRACE_SECONDS = 1e6
    raise SystemExit(main(sys.argv[2:]))
