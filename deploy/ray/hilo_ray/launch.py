"""Becomes the server, after asking the kernel to end it together with the Ray worker that starts it.

```console
$ python launch.py PARENT_PID EXECUTABLE [FLAG ...]
```

A program of its own, because code between fork and exec is unsafe in a worker with many threads. The kernel's signal
survives exec. It is SIGTERM, because the launcher then removes its sockets and ends its children.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, executable = int(sys.argv[1]), sys.argv[2]
    if sys.platform == "linux":
        _end_with_parent()
    # The parent may have ended before the kernel was asked.
    if os.getppid() != parent:
        sys.exit(f"the process {parent} that started this one has ended")
    os.execv(executable, sys.argv[2:])


def _end_with_parent() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
        print(f"this server will outlive a killed Ray worker: {os.strerror(ctypes.get_errno())}", file=sys.stderr)


if __name__ == "__main__":
    main()
