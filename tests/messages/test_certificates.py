"""Certificates of callbacks in files of PEM."""

from pathlib import Path

import pytest

from muster_server import _engines
from muster_server.systems.messages.certificates import CertificateError, certificates, key
from tests.certificates import certificates as make


def test_files_are_read_and_taken_by_the_thread_of_callbacks(tmp_path: Path) -> None:
    make(tmp_path, "client")
    (tmp_path / "chain.pem").write_text((tmp_path / "client.pem").read_text() + (tmp_path / "ca.pem").read_text())
    chain = certificates(str(tmp_path / "chain.pem"))
    assert len(chain) == 2
    authorities = certificates(str(tmp_path / "ca.pem"))
    identity = chain, key(str(tmp_path / "client.key"))
    _engines.FiringEngine(b"{}", authorities=authorities, identity=identity).close()
    wrong = chain, key(str(tmp_path / "ca.key"))
    with pytest.raises(OSError, match=r"nconsistent|KeyMismatch|match"):
        _engines.FiringEngine(b"{}", authorities=authorities, identity=wrong)


def test_a_file_that_is_not_what_it_is_to_be_is_told(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "bad.pem").write_text("-----BEGIN CERTIFICATE-----\n%%%\n-----END CERTIFICATE-----\n")
    for file, text in (("nosuch.pem", "cannot be read"), ("ca.key", "has no certificate"), ("bad.pem", "not base64")):
        with pytest.raises(CertificateError, match=text):
            certificates(str(tmp_path / file))
    with pytest.raises(CertificateError, match="0 private keys"):
        key(str(tmp_path / "ca.pem"))
