"""`muster fleet heal`: undoes the effects of a clock that was ahead."""

from collections.abc import Sequence

from muster_server.control.errors import FAILURE
from muster_server.control.terminal.common import counted, print_json
from muster_server.control.terminal.words import say, tell
from muster_server.systems.fleet.asking import Asking
from muster_server.systems.fleet.questions import Heal, Healed, Readmit


async def heal(asking: Asking, names: Sequence[str], as_json: bool) -> int:
    """Let tasks run by the clock again, or let these clients begin with any epoch; returns 1 if one of them is unknown."""
    if not names:
        healed = await asking.lead(Heal(), Healed)
        if as_json:
            print_json(healed)
        elif healed.minutes:
            print(f"tasks run by the clock again; it was {counted(healed.minutes, 'minute')} ahead")
        else:
            print("the clock is not behind the runs that were handed out; nothing to heal")
        return 0
    known = {name: any(await asking.all_index(Readmit(name), bool)) for name in names}
    if as_json:
        print_json(known)
    else:
        for name, there in known.items():
            if there:
                tell(f"{name} may begin with any epoch")
            else:
                say(f"muster: unknown client {name}; it may connect with any epoch")
    return 0 if all(known.values()) else FAILURE
