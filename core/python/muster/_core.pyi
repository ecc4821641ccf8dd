from typing import Any, type_check_only

__all__ = ["BrokerEngine", "GatewayEngine", "ProxyEngine", "RouterEngine", "public_key", "version"]

def version() -> str: ...
def public_key(private: bytes) -> bytes: ...

# What every role's engine has. One turn takes a batch, lets time pass and sends; it never blocks.
@type_check_only
class _Engine:
    def fd(self) -> int: ...
    def turn(self) -> int: ...  # bit 0: more work waits, call again soon; bit 1: events wait
    def events(self) -> list[tuple[Any, ...]]: ...
    def answer(self, question_id: int, user: int | None) -> None: ...  # None refuses
    def placement(self, epoch: int, nodes: list[tuple[int, str, str, int]]) -> None: ...  # node, role, host, link port
    def counters(self) -> list[tuple[str, str, int]]: ...  # name, help, value
    def gauges(self) -> list[tuple[str, str, float]]: ...
    def status(self) -> dict[str, Any]: ...
    def rooms(self, offset: int, limit: int) -> list[dict[str, Any]]: ...
    def room(self, name: str) -> dict[str, Any] | None: ...
    def addresses(self) -> list[tuple[str, int]]: ...  # as bound: the public socket first, where there is one
    def buffers(self) -> list[tuple[int, int]]: ...  # per socket: receive buffer asked for, effective
    def drain(self) -> None: ...  # refuse new work, finish what was taken
    def drained(self) -> bool: ...
    def close(self) -> None: ...

class GatewayEngine(_Engine):
    def __new__(
        cls,
        *,
        node: int,
        epoch: int,
        link_bind: tuple[str, int],
        cluster_key: tuple[int, bytes],
        seed: int,
        recv_buffer: int,
        send_buffer: int,
        payload_bytes: int,
        keepalive_ms: int,
        idle_timeout_ms: int,
        faults: list[tuple[Any, ...]] | None,
        name_key: bytes,
        bind: tuple[str, int],
        server_key: bytes,
        reset_secret: bytes,
        arena_bytes: int,
        paced_namespaces: list[str],
    ) -> GatewayEngine: ...

class ProxyEngine(_Engine):
    def __new__(
        cls,
        *,
        node: int,
        epoch: int,
        link_bind: tuple[str, int],
        cluster_key: tuple[int, bytes],
        seed: int,
        recv_buffer: int,
        send_buffer: int,
        payload_bytes: int,
        keepalive_ms: int,
        idle_timeout_ms: int,
        faults: list[tuple[Any, ...]] | None,
        name_key: bytes,
        bind: tuple[str, int],
        server_key: bytes,
        reset_secret: bytes,
        paced_namespaces: list[str],
    ) -> ProxyEngine: ...

class BrokerEngine(_Engine):
    def __new__(
        cls,
        *,
        node: int,
        epoch: int,
        link_bind: tuple[str, int],
        cluster_key: tuple[int, bytes],
        seed: int,
        recv_buffer: int,
        send_buffer: int,
        payload_bytes: int,
        keepalive_ms: int,
        idle_timeout_ms: int,
        faults: list[tuple[Any, ...]] | None,
        name_key: bytes,
        arena_bytes: int,
        paced_namespaces: list[str],
    ) -> BrokerEngine: ...

class RouterEngine(_Engine):
    def __new__(
        cls,
        *,
        node: int,
        epoch: int,
        link_bind: tuple[str, int],
        cluster_key: tuple[int, bytes],
        seed: int,
        recv_buffer: int,
        send_buffer: int,
        payload_bytes: int,
        keepalive_ms: int,
        idle_timeout_ms: int,
        faults: list[tuple[Any, ...]] | None,
        name_key: bytes,
    ) -> RouterEngine: ...
