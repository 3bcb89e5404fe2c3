"""Children that are killed by SIGKILL in the middle of their work. For programs of their own, which may fork."""

import os
import signal
import sys


class Countdown:
    """Kills this process at the n-th of the calls that are counted. 0: never; then `left` is minus their number."""

    def __init__(self, calls=0):
        self.left = calls

    def tick(self, before=lambda: None):
        """One call more. before: what is still done when it is the last."""
        self.left -= 1
        if not self.left:
            before()
            os.kill(os.getpid(), signal.SIGKILL)

    def count(self, owner, *names, instead=None):
        """Count the calls of these functions of a module or a class. instead: what replaces some of them, by name."""
        for name in names:
            setattr(owner, name, self._counted((instead or {}).get(name, getattr(owner, name))))

    def _counted(self, call):
        def wrapped(*arguments, **options):
            self.tick()
            return call(*arguments, **options)

        return wrapped


def in_child(work):
    """How a forked child ends that does the work: 0, or −9 where it was killed."""
    child = os.fork()
    if not child:
        if torch := sys.modules.get("torch"):
            # It makes its pool of threads anew after a fork, and two threads that ask for it at once would find none.
            torch.set_num_threads(1)
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
