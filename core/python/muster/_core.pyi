from collections.abc import Sequence
from typing import Any, final

from .items import Item, Stream

__all__ = [
    "PROTOCOLS",
    "ClientEngine",
    "Message",
    "Position",
    "encode_headers",
    "room_name_error",
    "version",
]

PROTOCOLS: tuple[int, int]  # the lowest and the highest version of the protocol that this build speaks

def version() -> str: ...
def room_name_error(name: str) -> str | None: ...  # None: the name is valid
def encode_headers(named: dict[str, str]) -> bytes: ...  # Raises `ValueError`

# Direction, peer (None: every client), loss, duplicate, corrupt, reorder, then hold, delay and jitter in ms; the
# mean length of a burst.
_Fault = (
    tuple[str, tuple[str, int] | None, float, float, float, float, int, int, int]
    | tuple[str, tuple[str, int] | None, float, float, float, float, int, int, int, float]
)

# The place of one message in its room's stream. Immutable; `<` and `>` only within one stream.
@final
class Position:
    def __new__(cls, stream: tuple[int, int, int], offset: int) -> Position: ...
    @classmethod
    def from_bytes(cls, data: bytes) -> Position: ...  # Raises `ValueError`
    @property
    def stream(self) -> Stream: ...
    @property
    def offset(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __lt__(self, other: Position, /) -> bool: ...
    def __le__(self, other: Position, /) -> bool: ...
    def __gt__(self, other: Position, /) -> bool: ...
    def __ge__(self, other: Position, /) -> bool: ...

# A published message of `room`. `sender` is the user that the servers authenticated.
@final
class Message:
    __match_args__ = ("room", "position", "sender", "data")
    def __new__(
        cls,
        room: str,
        stream: tuple[int, int, int],
        offset: int,
        sender: int,
        data: bytes,
        age: float | None = None,
        headers: dict[str, str] | None = None,  # Raises `ValueError`
    ) -> Message: ...
    @property
    def room(self) -> str: ...
    @property
    def position(self) -> Position: ...
    @property
    def sender(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def age(self) -> float | None: ...  # seconds; None: not known
    @property
    def headers(self) -> dict[str, str]: ...
    def json(self) -> Any: ...  # Raises `ValueError`
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class ClientEngine:
    def __new__(
        cls,
        *,
        gateways: list[tuple[str, int, bytes]],
        proxies: list[tuple[str, int, bytes]],
        credential: bytes,
        seed: int,
        learns: Sequence[bool] = ...,  # whether to use gateways, and proxies, that servers name
        recv_buffer: int = 0,
        send_buffer: int = 0,
        payload_bytes: int = 1200,
        inbox_bytes: int = ...,
        ages: bool = False,
        faults: Sequence[_Fault] | None = None,
    ) -> ClientEngine: ...
    def fd(self) -> int: ...
    def turn(self) -> int: ...  # bit 0: more work waits, call again soon; bit 1: events wait
    # ("leased", side, left_ms)
    # ("ready", side, user) ("down", side, reason, retry, wait_ms)
    # ("joined", room, gaps) ("refused", room, is_publication, code)
    # ("readable", room) ("writable", publication) ("vacant",) ("published", tickets, the position of each)
    # ("commanded", number, "delivered" | "no_member" | "expired" | code, members, retry_ms,
    #  page: (users, more, hops: [(node, microseconds)]) | None)
    # ("sent", number, code | None, [(device | None, "delivered" | "not_online" | "expired")]) ("received",)
    def events(self) -> list[tuple[Any, ...]]: ...
    def open(self, side: int) -> None: ...  # 0 gateway, 1 proxy
    def redirect(
        self, gateways: list[tuple[str, int, bytes]], proxies: list[tuple[str, int, bytes]], credential: bytes
    ) -> None: ...
    def speak(self, lowest: int, highest: int) -> None: ...  # these versions of the protocol: as another release does
    def version(self, side: int) -> int | None: ...  # of the protocol, in a session's use
    def is_ready(self, side: int) -> bool: ...
    # `equal`: for a filtered join, wanted values by name of a header; `one_in`: of the messages, one of as many;
    # `at_most_per_s`: of these, the latest at this rate.
    def join(
        self,
        name: str,
        positions: bytes | None = None,
        policy: int = 0,
        history: int = 0,
        equal: list[tuple[str, list[str]]] | None = None,
        one_in: int = 1,
        at_most_per_s: int | None = None,
    ) -> int: ...
    # Whether the last join resumed without a loss (None: not known yet); messages of history, and whether they are whole.
    def joined(self, room: int) -> tuple[bool | None, int, bool] | None: ...
    def leave(self, room: int) -> None: ...
    # The positions before them, as of `positions`, and the items of the room `name`.
    def read(self, room: int, name: str, limit: int) -> tuple[bytes | None, list[Item]]: ...
    def positions(self, room: int) -> bytes | None: ...
    def publication(self, name: str) -> tuple[int, int | None] | None: ...  # its number, and the number of a closed one
    def publish(
        self, publication: int, data: bytes, ticket: int, headers: bytes | None = None
    ) -> int: ...  # 0 taken, 1 no credit, 2 too long, 3 refused; make a turn soon
    def command(self, name: str, data: bytes, lifetime_us: int) -> int | None: ...  # None: too many are under way
    def members(self, name: str, lifetime_us: int, first: int | None = None) -> int | None: ...  # None: the same
    def end_member(self, name: str, user: int, lifetime_us: int) -> int | None: ...  # None: the same
    # `number` is random. False: too many are open. Raises `ValueError`: a wrong device, or too long.
    def send(self, number: int, user: int, device: str | None, data: bytes, lifetime_us: int) -> bool: ...
    def end(self, number: int, user: int, device: str | None, lifetime_us: int) -> bool: ...  # as `send`
    def forget(self, number: int) -> None: ...  # its outcome is waited for no more
    def received(self, limit: int) -> list[tuple[int, int, bytes]]: ...  # sender, its number, data
    # Messages count as delivered: 0 once they are here, 1 never, as nobody reads, 2 once `confirm` names them
    def set_reading(self, reading: int) -> None: ...
    def confirm(self, sender: int, number: int) -> None: ...  # of a message that came
    def unacknowledged(self, publication: int) -> tuple[int, int]: ...  # the sequence of the first, and their number
    def put_off(self, publication: int) -> tuple[str, float] | None: ...  # the code, and seconds to the next try
    def counters(self) -> list[tuple[str, str, int]]: ...
    def room_stats(self, room: int) -> dict[str, int] | None: ...
    def rtt_us(self, side: int) -> int | None: ...
    def address(self) -> tuple[str, int]: ...
    def buffer(self) -> tuple[int, int]: ...  # asked for, effective
    def close(self) -> None: ...
