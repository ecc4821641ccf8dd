"""The assignment of partitions to nodes. No I/O and no clock: all nodes with the same knowledge get the same result.

Every node has as many partitions as any other, or one more. A partition stays where it is, unless its node has too
many, or leaves.
"""

from collections import Counter
from collections.abc import Collection, Sequence


def planned(owners: Sequence[str], staying: Collection[str]) -> list[str]:
    """The node that should own each partition; `owners` are the present ones, "" for none.

    If no node stays, nothing changes.
    """
    if not staying:
        return list(owners)
    has = Counter(owner for owner in owners if owner in staying)
    order = sorted(staying, key=lambda name: (-has[name], name))  # the nodes with more partitions keep the extra one
    each, more = divmod(len(owners), len(order))
    room = {name: each + (place < more) for place, name in enumerate(order)}
    wanted: list[str] = []
    for owner in owners:
        stays = room.get(owner, 0) > 0
        if stays:
            room[owner] -= 1
        wanted.append(owner if stays else "")
    free = [name for name in order for _ in range(room[name])]
    return [name or free.pop() for name in wanted]
