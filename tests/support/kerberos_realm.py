"""A Kerberos realm of its own: Debian's KDC on a free port of the loopback, with its files in one folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from tests.support.peers.real_kafka import GUARD, free_ports
from tests.support.waiting import eventually

REALM = "HEADRACE.TEST"
SECONDS_MAX = 30
_MASTER_PASSWORD = "of the test"
_KRB5_CONF = """\
[libdefaults]
    default_realm = {realm}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
    default_ccache_name = FILE:{folder}/tickets
    udp_preference_limit = 1
[realms]
    {realm} = {{
        kdc = 127.0.0.1:{port}
    }}
[domain_realm]
    localhost = {realm}
"""
_KDC_CONF = """\
[kdcdefaults]
    kdc_listen = ""
    kdc_tcp_listen = 127.0.0.1:{port}
[realms]
    {realm} = {{
        database_name = {folder}/principals
        key_stash_file = {folder}/stash
        acl_file = {folder}/acl
        supported_enctypes = aes256-cts:normal aes128-cts:normal
    }}
[logging]
    kdc = FILE:{folder}/kdc.log
"""


def missing_reason() -> str | None:
    """Return why there can be no realm here; None if there can be one."""
    tools = [name for name in ("kdb5_util", "kadmin.local", "krb5kdc", "kinit") if _tool(name) is None]
    if tools:
        return f"no {', '.join(tools)}: apt-get install krb5-kdc krb5-admin-server krb5-user"
    try:
        import_module("gssapi")
    except ImportError as error:
        return f"{error}: apt-get install libkrb5-dev, then pip install gssapi"
    return None


def _tool(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Realm:
    """A realm with a running KDC. `environment` lets a process use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (self.port,) = free_ports(1)
        self.environment = {
            "KRB5_CONFIG": str(folder / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
            "KRB5RCACHENAME": f"dfl:{folder / 'replays'}",
        }
        (folder / "krb5.conf").write_text(_KRB5_CONF.format(realm=REALM, folder=folder, port=self.port))
        (folder / "kdc.conf").write_text(_KDC_CONF.format(realm=REALM, folder=folder, port=self.port))
        self._run("kdb5_util", "-r", REALM, "create", "-s", "-P", _MASTER_PASSWORD)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the KDC."""
        kdc = subprocess.Popen(
            [*GUARD, str(_tool("krb5kdc")), "-n", "-r", REALM],
            stdin=subprocess.PIPE,
            env={**os.environ, **self.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            eventually("the KDC", self._is_responding, SECONDS_MAX)
            yield
        finally:
            kdc.kill()
            kdc.wait(SECONDS_MAX)

    def keytab(self, *principals: str) -> str:
        """Add principals with random keys, and return the path of a keytab with them."""
        path = self.folder / f"{principals[0].replace('/', '-')}.keytab"
        for principal in principals:
            self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
        self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {path} {' '.join(principals)}")
        return str(path)

    def kinit(self, principal: str, keytab: str) -> None:
        """Put a ticket into the ticket cache."""
        self._run("kinit", "-k", "-t", keytab, principal)

    def kdestroy(self) -> None:
        """Empty the ticket cache."""
        self._run("kdestroy", "-A")

    def _is_responding(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(_tool(name)), *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == 0, f"{name} {' '.join(arguments)}: {done.stdout}{done.stderr}"
