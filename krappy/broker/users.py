"""The users who log in with a password: their credentials for SCRAM, which all brokers of a cluster share.

    /config/users/<name>     {"version":1,"config":{"SCRAM-SHA-512":"salt=…,stored_key=…,server_key=…,iterations=8192"}}

as Kafka has them. Each file of `users_dir` is a user, too: the file's name is the user's name, and its content is the
password. These users are in no znode. Where a file and a znode have the same name, the file counts. A changed file is
seen within `LOOK_SECONDS`. A file that holds no password (an empty one, for example) is reported: its user stays as he
was, and the other files count.

Nobody learns whether a user exists. An unknown user gets credentials that look like those of one existing user, each
time the same, and checking a password against them is as much work. They are made for everybody who asks, also if they
are not needed, because to make them takes time. They are made of a secret that the cluster keeps
(`/security/users_secret`) and nobody else knows. They are made of nothing that changes with other users or with a
restart: otherwise a salt that changes would show that its user is unknown. The salts of users in files are made in the
same way.
"""

from __future__ import annotations

import hmac
import os
from collections import OrderedDict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from time import thread_time

import trio

from krappy.broker.overrides import OverrideStore
from krappy.broker.runtime import Runtime
from krappy.broker.tree_changes import change
from krappy.core.cluster import paths, znodes
from krappy.core.cluster.tree import Create, Operation
from krappy.core.security.sasl import LONGEST_NAME, LONGEST_PASSWORD
from krappy.core.security.scram import HASHES, ITERATIONS, KAFKAS_SALT, SALT, ScramCredential, kafkas_salt
from krappy.errors import ConfigError, ConnectionLost, InvalidRequest, StorageError, UnknownUser
from krappy.ports.users import Credentials, Took, untold
from krappy.turns import UserTurns

Texts = Mapping[str, str]  # the settings of a user's znode
KAFKAS = -1  # the kind of a salt that Kafka's tools have made; of another one it is the number of its bytes
Profile = tuple[tuple[str, int, int], ...]  # for each credential of a user: mechanism, kind of salt, iterations
USUAL: Profile = tuple((each, SALT, ITERATIONS) for each in sorted(HASHES))
LOOK_SECONDS = 10.0  # between two looks at the files of `users_dir`
KEPT = 10_000  # so many passwords that proved right are remembered, as hashes
MOST_TURNS = 1_000  # so many checks of one address may wait at a time


class Users:
    def __init__(self, runtime: Runtime, store: OverrideStore) -> None:
        self._runtime = runtime
        self._store = store
        self._folder = runtime.config.users_dir
        self._of_files: Mapping[str, Credentials] = {}
        self._seen: Mapping[str, bytes] = {}  # HMACs of the passwords in the files as they were read
        self._bad: Mapping[str, str] = {}  # by file name: why the file holds no password
        # (what the image has, what was read of it)
        self._read: tuple[Mapping[str, Texts] | None, Mapping[str, Credentials]] = (None, {})
        # (stored users, users of files, the profiles of both)
        self._seen_profiles: tuple[object, object, AbstractSet[Profile]] = (None, None, frozenset())
        self._secret = os.urandom(32)  # of this process
        self._kept = self._secret  # the cluster's, once it is known
        self._right: OrderedDict[bytes, None] = OrderedDict()  # HMACs of passwords that proved right, the oldest first
        self._turns = UserTurns(most=MOST_TURNS)  # a check takes a whole core, so addresses take turns
        self._checking = trio.CapacityLimiter(1)  # so checks take no threads of others

    @property
    def all(self) -> Mapping[str, Credentials]:
        return {**self._stored(), **self._of_files}

    def credential(self, user: str, mechanism: str) -> ScramCredential:
        unknown = self._unknown(user, mechanism)
        return self._find(user).get(mechanism, unknown)

    def _find(self, user: str) -> Credentials:
        return self._of_files.get(user) or self._stored().get(user, {})

    def _stored(self) -> Mapping[str, Credentials]:
        held = self._runtime.image.configs.get("users")
        before, read = self._read
        if before is not held:
            known = before or {}
            found = {
                name: read[name] if known.get(name) == texts else _credentials(texts)
                for name, texts in (held or {}).items()
            }
            self._read = held, found
        return self._read[1]

    def _profiles(self) -> AbstractSet[Profile]:
        """The profiles of all users. They are collected only once after each change, since anybody may cause this
        call."""
        stored, files = self._stored(), self._of_files
        if self._seen_profiles[0] is not stored or self._seen_profiles[1] is not files:
            found = {_profile(each) for each in self.all.values() if each}
            self._seen_profiles = stored, files, found
        return self._seen_profiles[2]

    def _like(self, user: str, mechanism: str = "") -> Profile:
        """What an unknown user's credentials look like: the profile of an existing user who has a credential for
        `mechanism`. The unknown name decides which profile. A new profile replaces another one for some names only."""
        found = [each for each in self._profiles() if not mechanism or mechanism in (shape[0] for shape in each)]
        return max(found or [USUAL], key=lambda profile: self._mixed(f"{profile} {user}"))

    def _unknown(self, user: str, mechanism: str) -> ScramCredential:
        [(kind, iterations)] = [shape[1:] for shape in self._like(user, mechanism) if shape[0] == mechanism]
        random = os.urandom(len(self._mixed("")))
        return ScramCredential(mechanism, self._salt(mechanism, user, kind), iterations, random, random)

    def _salt(self, mechanism: str, user: str, kind: int = SALT) -> bytes:
        """Always the same for the same arguments."""
        if kind == KAFKAS:
            return kafkas_salt(self._mixed(f"{mechanism} 0 {user}"))
        parts = (self._mixed(f"{mechanism} {part} {user}") for part in range(-(-kind // 64)))
        return b"".join(parts)[:kind]

    def _mixed(self, text: str) -> bytes:
        return hmac.digest(self._kept, text.encode(errors="replace"), "sha512")

    def stamp(self, user: str) -> bytes:
        return b"".join(each.stored_key for each in self._find(user).values())

    async def check(self, user: str, password: str, host: str, took: Took = untold) -> bool:
        if self._proved_right(self._proof(self._checked(user), password)):
            return True
        async with self._turns.one(host):
            credentials, credential = self._find(user), self._checked(user)
            proof = self._proof(credential, password)
            if self._proved_right(proof):  # meanwhile, by another connection
                return True
            right, seconds = await trio.to_thread.run_sync(_timed_check, credential, password, limiter=self._checking)
        took(seconds)
        right = right and bool(credentials) and self._find(user) == credentials  # they may have changed meanwhile
        if right:
            self._right[proof] = None
            if len(self._right) > KEPT:
                self._right.popitem(last=False)
        return right

    def _checked(self, user: str) -> ScramCredential:
        """The credential that a password of the user is checked against. If there are several, it is the one for
        SHA-256, which takes half the time."""
        unknown = self._unknown(user, min(self._like(user))[0])
        found = self._find(user)
        return found[min(found)] if found else unknown

    def _proof(self, credential: ScramCredential, password: str) -> bytes:
        return hmac.digest(self._secret, credential.stored_key + password.encode(errors="surrogateescape"), "sha256")

    def _proved_right(self, proof: bytes) -> bool:
        if proof not in self._right:
            return False
        self._right.move_to_end(proof)
        return True

    async def alter(self, user: str, changes: Mapping[str, ScramCredential | None]) -> None:
        if not is_user(user):
            raise InvalidRequest(f"'{user:.80}' can't be the name of a user")
        before = self._store.load().get(user, {})
        if user in self._of_files and (any(changes.values()) or not before):
            raise InvalidRequest(f"'{user:.80}' is a user of users_dir, whose file counts: change or delete that")
        held = dict(before)
        for mechanism, credential in changes.items():
            if credential is not None:
                held[mechanism] = credential.text()
            elif held.pop(mechanism, None) is None:
                raise UnknownUser(f"the user '{user:.80}' has no credential for {mechanism}", user=user)
        with self._runtime.audit.change("user", [user], self._shown):
            await self._store.save(user, before, held)

    def _shown(self, user: str) -> dict[str, int] | None:
        """What the audit log tells of a stored user, without secrets: the iterations of each credential."""
        return {mechanism: each.iterations for mechanism, each in self._stored().get(user, {}).items()} or None

    # --- files

    async def open(self) -> None:
        """Reads the files, and follows them from now on. Raises ConfigError."""
        if self._runtime.config.authenticates:
            await self._keep_secret()
        await self.look()
        if self._folder:
            self._runtime.spawn(self._watch)

    async def _keep_secret(self) -> None:
        """The cluster's secret is made once, by the broker that is first."""
        store = self._runtime.store

        async def made() -> list[Operation]:
            there = await store.read(paths.USERS_SECRET)
            return [] if there is not None else [Create(paths.USERS_SECRET, znodes.users_secret(self._secret))]

        try:
            await change(store, made)
            found = await store.read(paths.USERS_SECRET)
            self._kept = znodes.users_secret_of(b"" if found is None else found.data) or self._secret
        except (StorageError, ConnectionLost, ValueError) as error:  # on a full disk, for example: it uses its own
            self._runtime.report("users_secret_not_kept", error=str(error))

    async def _watch(self) -> None:
        """Follows the files of `users_dir`. Until cancelled."""
        trouble = ""
        while True:
            await trio.sleep(LOOK_SECONDS)
            before, trouble = trouble, ""
            try:
                await self.look()
            except ConfigError as error:
                trouble = error.text
                if trouble != before:
                    self._runtime.report("users_not_read", error=trouble)

    async def look(self) -> None:
        """Reads the files if they have changed. Raises ConfigError if the folder can't be read: then the users stay as
        they were."""
        if not self._folder:
            return
        folder = Path(self._folder)
        bad = await self._runtime.in_thread(partial(self._look, folder))
        for name, why in bad.items():
            if self._bad.get(name) != why:
                kept = "its user stays as he was" if name in self._of_files else "there is no such user"
                text = f"users_dir: the file {folder / name} {why}; {kept}, and other files count"
                self._runtime.report("users_not_read", error=text)
        self._bad = bad

    def _look(self, folder: Path) -> dict[str, str]:
        """Reads the files. Returns, by file name, why a file holds no password. Raises ConfigError."""
        bad: dict[str, str] = {}
        found: dict[str, str] = {}
        try:
            files = [each for each in sorted(folder.iterdir()) if not each.name.startswith(".")]
        except OSError as error:
            raise ConfigError(f"users_dir: {folder} can't be read: {error}", setting="users_dir") from None
        for file in files:
            try:
                if file.is_file():
                    found[file.name] = _password(file)
            except (OSError, ValueError) as error:
                bad[file.name] = f"can't be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        seen = {name: hmac.digest(self._secret, password.encode(), "sha256") for name, password in found.items()}
        seen |= {name: self._seen[name] for name in bad if name in self._seen}
        if seen == self._seen:
            return bad
        self._of_files = {  # a user whose password is the same keeps his credentials: sessions depend on them
            name: self._of_files[name]
            if proof == self._seen.get(name)
            else {each: ScramCredential.of(each, found[name], self._salt(each, name)) for each in HASHES}
            for name, proof in seen.items()
        }
        self._seen = seen
        return bad


def _profile(credentials: Credentials) -> Profile:
    return tuple(sorted((each.mechanism, _kind(each.salt), each.iterations) for each in credentials.values()))


def _kind(salt: bytes) -> int:
    return KAFKAS if KAFKAS_SALT.fullmatch(salt) else len(salt)


def _timed_check(credential: ScramCredential, password: str) -> tuple[bool, float]:
    began = thread_time()
    return credential.fits(password), thread_time() - began


def _password(file: Path) -> str:
    """The password in a file. Raises OSError, or ValueError that says what is wrong with the file."""
    if not is_user(file.name):
        raise ValueError("has a name that no user can have")
    with file.open("rb") as opened:
        data = opened.read(LONGEST_PASSWORD + 1)
    if len(data) > LONGEST_PASSWORD:
        raise ValueError(f"has more than {LONGEST_PASSWORD} bytes")
    try:
        password = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError("is no UTF-8") from None
    if not password:
        raise ValueError("is empty")
    return password


def is_user(name: str) -> bool:
    """Whether a user can have this name."""
    return 0 < len(name) <= LONGEST_NAME and name.isprintable()


def _credentials(texts: Mapping[str, str]) -> Credentials:
    """The credentials of a user's znode, without those that can't be read."""
    found = {}
    for mechanism in HASHES:
        try:
            found[mechanism] = ScramCredential.read(mechanism, texts[mechanism])
        except (KeyError, ValueError):
            continue
    return found
