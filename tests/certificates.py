"""A private authority and certificates of it, made by the program openssl."""

import subprocess
from pathlib import Path

from tests.waiting import PATIENT_S


def certificates(folder: Path, *names: str) -> None:
    """`ca.pem`, `server.pem` for 127.0.0.1, and a certificate for each name; each key is `NAME.key` (PKCS #8)."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=folder, timeout=PATIENT_S)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    (folder / "none").write_text("basicConstraints=CA:FALSE\n")
    for name in ("server", *names):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        more = ("-extfile", "san" if name == "server" else "none")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed, *more)
