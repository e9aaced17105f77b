"""Messages about the broker, and those that every connection may use."""

from __future__ import annotations

from typing import Any

from krappy.wire.schema import U32, Answer, Bulk, Names, Offset, Positive, RangeList, Request


class Ping(Request, kind=22):
    """Asks for a sign of life and the broker's version. Send it first on a connection, and when nothing has come for a
    while. Before the client has logged in, the answer tells only how it may do that.
    """

    # whether the client is a broker of the cluster, which asks for its own clients. If it may do CLUSTER_ACTION, no
    # quota counts what it does on this connection from then on
    broker: bool = False


class Pong(Answer, kind=22):
    version: str  # of the broker
    cluster: str  # its id
    time: int  # timestamp: the broker's clock
    max_frame: int  # the largest frame that the broker takes, in bytes
    console: str | None = None  # host:port where it listens for HTTP; null: it has no console
    brokers: int = 1  # how many the cluster has. Ask for Metadata when there are several
    mechanisms: list[str] | None = None  # of SASL, by which clients log in; null: nobody logs in at this listener
    principal: str | None = None  # who the client is; null: it has to log in
    throttled: int = 0  # ms for which nothing was read from this connection so far, because of quotas


class Authenticate(Request, kind=64):
    """Logs in, by a mechanism of SASL: SCRAM-SHA-512, SCRAM-SHA-256 (RFC 5802), PLAIN (RFC 4616) or OAUTHBEARER (RFC
    7628). The first message of a client begins the mechanism; each further one has what the client says to the broker's
    last `data`, until the answer is `done`. Where clients log in, only Ping is answered before that. Other requests,
    and a wrong password or token, end the connection with the error SASL_AUTHENTICATION_FAILED.
    """

    mechanism: str
    data: bytes

    def __repr__(self) -> str:
        """Without what is nobody else's to know."""
        return f"<Authenticate by {self.mechanism}>"


class Authenticated(Answer, kind=64):
    data: bytes  # for the client's half of the mechanism
    done: bool  # whether it has logged in
    lifetime: int = 0  # ms after which it has to log in again, on this connection; 0: never


class AlterUser(Request, kind=65):
    """Sets or removes credentials of a user. A password is never sent: the client makes the credential from it (RFC
    5802, section 3), with a random salt and at least 4,096 iterations.
    """

    user: str
    # by mechanism: "salt=…,stored_key=…,server_key=…,iterations=8192", the first three in base64; nil: it is removed
    credentials: dict[str, str | None]

    def __repr__(self) -> str:
        """Without what is nobody else's to know."""
        return f"<AlterUser {self.user!r}>"


class UserAltered(Answer, kind=65):
    pass


class Users(Request, kind=66):
    """Asks who may log in with a password."""


class UsersFound(Answer, kind=66):
    """A user is a map of `user` and `credentials`. These are a map from the mechanism to its number of iterations."""

    users: list[dict[str, Any]]


class Metadata(Request, kind=61):
    """Asks which brokers the cluster has, and who leads the partitions of topics. Any broker answers. Requests about a
    partition go to its leader; another broker refuses them with NOT_LEADER_OR_FOLLOWER. Ask again after that error, and
    when the connection to a broker is lost: an answer is what the asked broker knows, which may be out of date.
    """

    topics: Names | None = None  # nil: all


class MetadataFound(Answer, kind=61):
    """A broker is a map of `id`, `rack` (nil: none), and as HOST:PORT `native`, `http` (nil: it has no such listener)
    and `kafka`, which is a map by the listener's name.

    A topic is a map of `name`, `id` (nil: there is no such topic; with `denied`: it may not be described), `scattered`
    (whether it may have strays, as far as the asked broker knows), `unsure` (in a cluster: whether that may change
    soon, because the broker still looks for strays, and the topic is not marked as one that has some), and
    `partitions`. These are maps, from partition 0 on: `leader` (a broker's id; -1: nobody now), `leader_epoch`, which
    rises with every election, and the ids `replicas` and `isr`: the replicas that have all acknowledged events.
    """

    cluster: str  # its id
    broker: int  # the id of the one that answers
    controller: int  # a broker's id; -1: there is none now
    brokers: list[dict[str, Any]]  # those that are registered
    topics: list[dict[str, Any]]


class Unregister(Request, kind=23):
    """Ends the registration of a `handle`, or the scan of a `cursor`. A member's leases go to others at once; a watch
    sends its last answer; waiting polls end at once, with the error UNKNOWN_HANDLE. Closing a connection ends all its
    registrations likewise.

    A member says which events it has not looked at. Their delivery does not count; otherwise events could go to the
    dead-letter topic because of members that polled them ahead and left.
    """

    handle: U32  # of a producer, a consumer, a watch, or a scan's cursor
    unseen: RangeList | None = None  # members: leased events that it has not looked at
    # members: how many answers with events it has received. Events of later answers count as unseen, too
    polls: U32 | None = None


class Unregistered(Answer, kind=23):
    pass


class BeginBackup(Request, kind=75):
    """Begins the backup of a cluster, at one of its brokers. From now on this broker creates and deletes no topic,
    removes nothing from a log, and decides no transaction and no staged job: until HoldBackup, Unregister, the end of
    the connection, or 10 seconds are over.
    """


class BackupBegun(Answer, kind=75):
    handle: U32 | None  # for NoteEnds and HoldBackup; nil: the broker is alone, and HoldBackup is enough
    broker: U32  # its id
    # [[id, epoch], …]: those that are registered, as this one knows; the epoch rises each time that one registers
    brokers: list[tuple[U32, Offset]]


class NoteEnds(Request, kind=76):
    """Asks how far the partitions that the broker leads are committed, for a backup that was begun."""

    handle: U32  # of BeginBackup
    topics: Names | None = None  # nil: all


class EndsNoted(Answer, kind=76):
    """Partitions for which the broker can't tell that now are left out."""

    # [[topic, partition, leader epoch, offset], …]: all events before the offset are committed
    ends: list[tuple[str, U32, U32, Offset]]
    brokers: list[tuple[U32, Offset]]  # [[id, epoch], …]: as in BackupBegun


class HoldBackup(Request, kind=60):
    """Links the broker's files, as of now, into a folder on the broker's machine. There a program copies them (`krappy
    backup`), or ReadBackup reads them. The folder stays until Unregister of the handle, or the end of the connection.
    The connection ends, too, once nothing has come on it for 90 seconds (a Ping is enough). `manifest.json` in that
    folder lists as `files` the name of each file and how many of its bytes belong to the backup: a file that is still
    being written may have more.
    """

    # of BeginBackup: only the logs' files are linked, and what was begun is over. nil: all of this broker's files
    begun: U32 | None = None
    tree: bool = False  # with `begun`: adds what the cluster's tree has: topics, settings, users, ACLs


class BackupHeld(Answer, kind=60):
    handle: U32  # for Unregister and ReadBackup
    folder: str  # where the files are
    files: U32  # how many
    size: Offset  # how many of their bytes belong to the backup


class ReadBackup(Request, kind=77):
    """Reads a file that HoldBackup has linked, or its `manifest.json`."""

    handle: U32  # of HoldBackup
    name: str  # of the file, as the manifest has it
    offset: Offset
    size: Positive  # how many bytes at most; the broker may give fewer


class BackupRead(Answer, kind=77):
    data: Bulk  # empty behind the file's end
