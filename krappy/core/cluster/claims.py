"""What a follower does whose leader lacks events that are committed.

By the rules of elections that happens only after an unclean election: then these events go. Else ZooKeeper was given
older data, in which a broker is still in sync that was not in the end, and that broker leads. Then a follower that has
all committed events takes the lead. It knows them in two ways:

- Events below its high watermark are committed. After a kill it may know a lower one than before.
- A broker notices at its registration that ZooKeeper's data is older (member.py). Then each event that its log has by
  then may be committed. Such logs come from one history, so they can be compared as candidates are in Raft: the one
  whose last event has the highest leader epoch has all committed events; among these the longest one.

Both make a claim: (leader epoch of the last event, the offset behind it). The state keeps the claim of who has taken
the lead last.

A follower with a claim of the first kind takes the lead if its log has all of the claim before it, and the leader has
committed less. So two replicas that each have acknowledged events which the other lacks do not lead by turns (a stale
leader may have acknowledged some, where few replicas are enough for that): one leads, and the other's log is set aside.

With a claim of the second kind it takes the lead if the claim is higher than the one before, and the leader has
committed nothing in the place of these events, nor can do so meanwhile. Otherwise its log is set aside, too; but if the
claim before is higher, these events were never committed, and go.

Such a claim ends when the leader's log agrees, and is committed as far. Until then the log is set aside for good, too,
if it is damaged, or if the leader's log begins behind it, so that they can't be compared.
"""

from __future__ import annotations

from enum import Enum

from krappy.core.cluster.state import PartitionState

Claim = tuple[int, int]


class Cut(Enum):
    """What becomes of events that a leader lacks."""

    GO = "they go"
    AHEAD = "they stay, and their broker takes the lead"
    ASIDE = "their log is set aside, and copied anew"


def judge(state: PartitionState, broker: int, cut: int, committed: Claim, claim: Claim, high_watermark: int) -> Cut:
    """For a follower whose log parts from its leader's at the offset `cut`. `broker`: its own. `committed`: (leader
    epoch of its last committed event, its high watermark). `claim`: its claim of the second kind; (-1, 0) without one.
    `high_watermark`: the leader's. If the broker takes the lead, it must demand this state."""
    if state.unclean > max(committed, claim)[0]:
        return Cut.GO
    end, known = committed[1], state.claim or (-1, 0)
    if known[1] <= cut < end > high_watermark:
        return Cut.AHEAD
    if cut < claim[1] and claim > known:
        commits_alone = broker not in state.isr and len(state.isr) >= state.min_isr > 1
        return Cut.ASIDE if high_watermark > cut or commits_alone else Cut.AHEAD
    return Cut.ASIDE if cut < end else Cut.GO
