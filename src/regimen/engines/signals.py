"""Ctrl+C and SIGTERM: finish the update, save, leave with 130 or 143; during compilation, leave at once. SIGUSR1, with
which schedulers warn: save and go on.

A signal cannot interrupt Python while the main thread is inside the compiler. A watcher thread reads the signal's byte
from a pipe instead, and ends the process itself when the main thread does not get to it in time. The watcher ends with
the context: a thread that lives when the interpreter ends, and whose garbage collection frees arrays of jax just then,
aborts the process ("FATAL: exception not rethrown").

Python drops what a handler raises inside a finaliser or a callback of a weak reference. The watcher sends such a signal
to the main thread again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Self

GRACE_SECONDS = 8.0
AGAIN_SECONDS = 0.05
AGAIN = 0x80  # in a byte for the watcher: send this signal again
INTERRUPTED = (130, 143)  # exit codes of what a signal ended: SIGINT, SIGTERM
WARNING = getattr(signal, "SIGUSR1", None)  # Windows has none


class Terminated(KeyboardInterrupt):
    """SIGTERM where no run is saved: raised as Ctrl+C is, so that whatever cleans up after one does after the other."""


def code_of(error: KeyboardInterrupt) -> int:
    """The exit code of a process that a signal ended."""
    return 143 if isinstance(error, Terminated) else 130


class Signals:
    """Note SIGINT and SIGTERM within a context. `requested` is the signal number once one has arrived, else 0.

    The session says when there is nothing to finish (`busy`: leave at once) and what to do before the process is ended
    from the watcher (`last_words`). Outside the main thread nothing is watched: Python delivers signals there only.
    """

    def __init__(self) -> None:
        self.requested = 0
        self.warned = False
        self.busy: Callable[[], bool] = lambda: True  # until there is a session there is nothing to finish
        self.last_words: Callable[[int], None] = lambda number: None
        self.done = threading.Event()
        self.active = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if not self.active:
            return self
        self.reader, self.writer = socket.socketpair()
        self.writer.setblocking(False)
        self.old = {s: signal.signal(s, self.note) for s in (signal.SIGINT, signal.SIGTERM)}
        if WARNING is not None:
            self.old[WARNING] = signal.signal(WARNING, self.warn)
        self.old_fd = signal.set_wakeup_fd(self.writer.fileno(), warn_on_full_buffer=False)
        self.old_hook = sys.unraisablehook
        sys.unraisablehook = self.take_dropped
        self.watcher = threading.Thread(target=self.watch, name="signals", daemon=True)
        self.watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.active:
            return
        self.done.set()
        sys.unraisablehook = self.old_hook
        signal.set_wakeup_fd(self.old_fd)
        for number, handler in self.old.items():
            signal.signal(number, handler)
        self.writer.close()
        self.watcher.join()

    def is_requested(self) -> bool:
        return bool(self.requested)

    def ask(self, number: int) -> None:
        """Request an end as if this process had received the signal."""
        self.requested = self.requested or number

    def note(self, number: int, frame: object) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: leave without saving
        self.requested = number

    def warn(self, number: int, frame: object) -> None:
        """Remember that the process may end soon. Unheard it would end the process now, also where no run is going."""
        self.warned = True

    def take_warning(self) -> bool:
        """Whether there was a warning since this was asked last."""
        warned, self.warned = self.warned, False
        return warned

    def take_dropped(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Have a signal sent again whose exception Python drops where the handler happened to run."""
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            self.writer.send(bytes([AGAIN | code_of(unraisable.exc_value) - 128]))
        else:
            self.old_hook(unraisable)

    def send_again(self, number: int) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, number)

    def arrivals(self) -> Iterator[int]:
        """Numbers of the signals as they arrive, until the context ends."""
        with self.reader:
            while (data := self.reader.recv(1)) and not self.done.is_set():
                if data[0] & AGAIN:
                    if not self.done.wait(AGAIN_SECONDS):  # by then the callback is over, as a rule; else once more
                        self.send_again(data[0] & ~AGAIN)
                elif data[0] in (signal.SIGINT, signal.SIGTERM):
                    yield data[0]

    def watch(self) -> None:
        for number in self.arrivals():
            if not self.busy() and self.done.wait(GRACE_SECONDS):
                return
            with contextlib.suppress(Exception):
                self.last_words(number)
            os._exit(128 + number)


class Leaving(Signals):
    """What holds for a whole command, wherever no run takes the signals for itself: SIGINT and SIGTERM raise
    KeyboardInterrupt and Terminated. If the main thread does not hear it, being inside compiled code, the process is
    ended a few seconds later."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = threading.Event()

    def __enter__(self) -> Self:
        super().__enter__()
        if WARNING is not None and self.active and self.old[WARNING] is signal.SIG_DFL:
            self.old[WARNING] = signal.SIG_IGN  # a scheduler's warning does not end a process that is leaving
        return self

    def __exit__(self, *reason: object) -> None:
        self.heard.set()
        super().__exit__(*reason)

    def note(self, number: int, frame: object) -> None:
        self.heard.set()
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    def send_again(self, number: int) -> None:
        self.heard.clear()
        super().send_again(number)

    def watch(self) -> None:
        for number in self.arrivals():
            if not self.heard.wait(GRACE_SECONDS):
                print("regimen: interrupted", file=sys.stderr, flush=True)
                os._exit(128 + number)
