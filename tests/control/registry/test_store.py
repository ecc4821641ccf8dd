"""The tree itself against a plain model: a failed transaction leaves no trace, and all counts are right."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_server.control.registry.store import Store
from muster_server.control.registry.tree import (
    ANY,
    TREE_BYTES_MAX,
    Check,
    Create,
    Delete,
    Operation,
    Refused,
    Set,
    TreeError,
    parent,
)

PATHS = st.sampled_from(["/a", "/a/b", "/a/b/c", "/a/d", "/e", "/e/f"])
VERSIONS = st.sampled_from([ANY, 0, 1, 2])
DATA = st.binary(max_size=3)
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Create, PATHS, DATA, st.booleans(), st.just(False)),
    st.builds(Create, PATHS.map(lambda path: path + "/x"), DATA, st.booleans(), st.just(True)),
    st.builds(Set, PATHS, DATA, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Check, PATHS, VERSIONS),
)
Model = dict[str, tuple[bytes, int, int]]
"""Data, version and owner by path."""


def plain(model: Model, session: int, operation: Operation, made: str | None) -> Model | None:
    """The model after one operation, None if that is impossible. `made` is the path that a sequence got."""
    after = dict(model)
    match operation:
        case Create(path, data, ephemeral):
            path = made or path
            ancestors = [path]
            while (above := parent(ancestors[-1])) != "/":
                ancestors.append(above)
            for above in reversed(ancestors[1:]):
                if after.setdefault(above, (b"", 0, 0))[2]:
                    return None
            if path in after:
                return None
            after[path] = data, 0, session if ephemeral else 0
            return after
        case Set(path) | Delete(path) | Check(path):
            if path not in after or operation.version not in {ANY, after[path][1]}:
                return None
            if isinstance(operation, Set):
                after[path] = operation.data, after[path][1] + 1, after[path][2]
            elif isinstance(operation, Delete):
                if any(parent(below) == path for below in after):
                    return None
                del after[path]
            return after


def contents(store: Store) -> Model:
    return {path: (node.data, node.version, node.owner) for path, node in store._nodes.items() if path != "/"}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.lists(OPERATIONS, min_size=1, max_size=4)), max_size=12))
def test_the_store_does_what_plain_dictionaries_do(transactions: list[tuple[int, list[Operation]]]) -> None:
    store, model = Store(), Model()
    for session, operations in transactions:
        before = contents(store)
        try:
            results = store.apply(session, operations)
        except TreeError:
            assert contents(store) == before
            continue
        expected: Model | None = model
        for operation, result in zip(operations, results, strict=True):
            assert expected is not None
            expected = plain(expected, session, operation, result if isinstance(result, str) else None)
        assert expected == contents(store)
        model = contents(store)
        assert store._bytes == sum(len(path) + len(data) for path, (data, _, _) in model.items())
        again = Store()
        again.load(store.dump())
        assert (contents(again), again._bytes, again.dump()) == (model, store._bytes, store.dump())
    store.end(1)
    assert all(owner != 1 for _, _, owner in contents(store).values())


def test_the_tree_has_bounds() -> None:
    store = Store()
    for index in range(TREE_BYTES_MAX // 65_100):
        store.apply(1, [Create(f"/n{index}", bytes(65_000))])
    with pytest.raises(Refused, match="full"):
        store.apply(1, [Create("/more", bytes(65_000)), Create("/most", bytes(65_000))])
    assert store._bytes <= TREE_BYTES_MAX
    store.apply(1, [Delete("/n0")])
    store.apply(1, [Create("/n0", bytes(65_000))])
