"""The files of `muster up` for clients, for an instance in this process."""

import json
import os
from pathlib import Path

import muster
from muster.instance import FILE, start_time


def record(folder: Path, address: muster.Address) -> None:
    """Write `instance.json` and the token."""
    (folder / "token").write_bytes(address.token + b"\n")
    ends = {
        name: [{"node": 3, "host": host, "port": port, "public_key": key} for host, port, key in known]
        for name, known in (("gateways", address.gateways), ("proxies", address.proxies))
    }
    pid = os.getpid()
    said = {"pid": pid, "started": start_time(pid), "token_file": str(folder / "token"), **ends}
    (folder / FILE).write_text(json.dumps(said))
