"""Programs that lend and read slots, for tests that kill them: `python -m tests.chains.wire.lender ROLE FOLDER`.

They speak by lines: what they have done on stdout, what they shall do on stdin.
"""

from __future__ import annotations

import os
import sys
import threading
import zlib
from pathlib import Path
from random import Random

from chains.wire.borrowing import Reader
from chains.wire.segments import Handle, Pool, sweep

MIB = 2**20


def say(*words: object) -> None:
    print(*words, flush=True)


def written(handle: Handle) -> str:
    return f"{handle.name} {handle.offset} {handle.length} {handle.generation}"


def parsed(line: str) -> Handle:
    name, *numbers = line.split()
    return Handle(name, *map(int, numbers))


def lend(folder: Path) -> None:
    """Lend three slots; hold them until killed, or end as a program ends at the end of its input."""
    pool = Pool(folder=folder, least=0)
    for value in (1, 2, 3):
        handle = pool.put(bytes([value]) * MIB)
        assert handle is not None
        say(written(handle))
    sys.stdin.readline()


def busy(folder: Path) -> None:
    """Lend, read and make slots anew without end."""
    pool, reader = Pool(folder=folder, least=0), Reader(folder)
    while True:
        handle = pool.put(bytes(4 * MIB))
        assert handle is not None
        reader.get(handle)
        pool.trim()
        reader.sweep()
        say("round")


def read(folder: Path) -> None:
    """Borrow each slot whose handle comes, say so, and keep it until the next line."""
    reader = Reader(folder)
    for line in sys.stdin:
        with reader.borrow(parsed(line)) as view:
            say("reading", view[0])
            sys.stdin.readline()
        say("done")


def fork(folder: Path) -> None:
    """Leave a child behind that lives until its input ends."""
    pool = Pool(folder=folder, least=0)
    assert pool.put(bytes(MIB))
    if os.fork() == 0:
        say("child", pool.put(b"x"), pool.name == "")
        pool.close()
    sys.stdin.readline()


def answer(folder: Path) -> None:
    """Read every handle with four threads; say its checksum with the line's number."""
    reader, lock, printing = Reader(folder), threading.Lock(), threading.Lock()

    def work() -> None:
        while True:
            with lock:
                line = sys.stdin.readline()
            if not line:
                return
            number, _, handle = line.partition(" ")
            if int(number) % 2:
                with reader.borrow(parsed(handle)) as view:
                    found = zlib.crc32(view)
            else:
                found = zlib.crc32(reader.get(parsed(handle)))
            with printing:
                say(number, found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def churn(folder: Path) -> None:
    """Make and close pools while others sweep: none may lose a slot that it has."""
    chance, reader = Random(), Reader(folder)
    for _ in range(60):
        pool = Pool(folder=folder, least=0)
        for _ in range(chance.randrange(3)):
            data = chance.randbytes(100)
            handle = pool.put(data)
            assert handle is not None and bytes(reader.get(handle)) == data
        sweep(folder)
        pool.close()
    say("done")


if __name__ == "__main__":
    roles = {"lend": lend, "busy": busy, "read": read, "fork": fork, "answer": answer, "churn": churn}
    roles[sys.argv[1]](Path(sys.argv[2]))
