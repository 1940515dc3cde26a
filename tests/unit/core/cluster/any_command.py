"""Any command at all, whether it makes sense or not: about few names, so that some do."""

from __future__ import annotations

from hypothesis import strategies as st

from everbell.core.cluster import (
    AbortJoin,
    AcceptJoin,
    Balanced,
    Command,
    Drain,
    DropDocument,
    Forget,
    FoundCluster,
    Group,
    Leave,
    Member,
    NotifyWatchers,
    PeerGc,
    Percentage,
    PrepareJoin,
    PutDocument,
    RaiseFormat,
    Release,
    Remove,
    SetStrategy,
    Undrain,
    Weighted,
)

names = st.sampled_from("abcd")
incarnations = st.builds("{}{}".format, names, st.integers(1, 2))
small = st.integers(-1, 9)
versions = st.none() | st.integers(0, 20)
members = st.builds(
    lambda incarnation, zone, capacity, gateway, form, draining: Member(
        incarnation[0], incarnation, (), zone, capacity, gateway, form, draining
    ),
    incarnations,
    st.sampled_from("xy"),
    small,
    st.booleans(),
    st.integers(0, 3),
    st.booleans(),
)
groups = st.builds(Group, names, st.integers(-1, 101), small, small, st.lists(names, max_size=2).map(tuple))
strategies = (
    st.builds(Balanced)
    | st.builds(Weighted, st.dictionaries(names, small))
    | st.builds(Percentage, st.lists(groups, max_size=2).map(tuple))
)
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(FoundCluster, st.sampled_from(["", "x"]), small, st.integers(0, 2)),
    st.builds(PeerGc, incarnations),
    st.builds(PrepareJoin, members),
    st.builds(PrepareJoin, members),
    st.builds(NotifyWatchers, incarnations),
    st.builds(AcceptJoin, incarnations),
    st.builds(AbortJoin, incarnations),
    st.builds(Leave, incarnations),
    st.builds(Remove, incarnations, incarnations),
    st.builds(Release, incarnations, st.dictionaries(small, st.integers(0, 30), max_size=4)),
    st.builds(SetStrategy, strategies),
    st.builds(Drain, names),
    st.builds(Undrain, names),
    st.builds(Forget, names),
    st.builds(PutDocument, names, st.binary(max_size=4), versions),
    st.builds(DropDocument, names, versions),
    st.builds(RaiseFormat, small),
)
