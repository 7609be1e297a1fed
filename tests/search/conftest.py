"""A PostgreSQL for the tests of shared sweeps: a socket in a temporary folder, no port, an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def _program(name: str) -> str:
    """Debian keeps servers out of PATH, one folder per version; the newest is taken."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda p: int(p.parts[-3]))
    found = str(debian[-1]) if debian else shutil.which(name)
    if found is None:
        pytest.skip("no PostgreSQL server: install Debian's package postgresql")
    return found


def _owner() -> str | None:
    """PostgreSQL refuses to run as root. None: we are not."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of an empty database, without fsync: it is thrown away."""
    initdb, server, owner = _program("initdb"), _program("postgres"), _owner()
    # the folder's path ends up in the socket's address, which may have 107 characters; pytest's own is too long
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        if owner:
            shutil.chown(folder, owner)
        data = f"{folder}/data"
        command = [initdb, "--no-sync", "--auth=trust", "--username=trimtab", "--encoding=UTF8", "--locale=C", data]
        done = subprocess.run(command, user=owner, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        run = [server, "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(run, user=owner, cwd=folder, stdout=log, stderr=log)
        try:
            _until_ready(process, Path(folder))
            yield f"postgresql://trimtab@/postgres?host={folder}"
        finally:
            process.send_signal(signal.SIGINT)  # SIGTERM would wait for clients
            process.wait(20)


def _until_ready(process: subprocess.Popen[bytes], folder: Path) -> None:
    """The last line of postmaster.pid tells the server's state."""
    deadline = time.monotonic() + 30
    pid_file = folder / "data" / "postmaster.pid"
    while not (pid_file.exists() and pid_file.read_text().rstrip().endswith("ready")):
        assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.05)
