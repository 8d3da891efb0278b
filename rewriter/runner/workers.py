"""Starts a command as N workers of one cluster on this machine: `python workers.py N COMMAND...`.

Like `harness.py` it runs in the user's interpreter and imports nothing but the standard library. Every worker gets its
`TF_CONFIG`, with addresses on localhost. The first one that fails ends the others, and its exit code is told.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time


def addresses(count: int) -> list[str]:
    """Free ones; all are held until the last is found."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in held]
    finally:
        for one in held:
            one.close()


def start(command: list[str], workers: list[str], index: int) -> subprocess.Popen[bytes]:
    cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
    return subprocess.Popen(command, env=dict(os.environ, TF_CONFIG=json.dumps(cluster)))


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()


def main(count: int, command: list[str]) -> int:
    workers = addresses(count)
    processes: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for index in range(count):
            processes.append(start(command, workers, index))
        while True:
            codes = [process.poll() for process in processes]
            failed = [code for code in codes if code]
            if failed:
                return failed[0] if failed[0] > 0 else 128 - failed[0]
            if None not in codes:
                return 0
            time.sleep(0.05)
    finally:
        end(processes)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
