"""The users' credentials for SCRAM, as kafka-configs.sh changes and shows them (KIP-554): DescribeUserScramCredentials
(50) and AlterUserScramCredentials (51). A tool sends the salted password, never the password."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from krappy.core.security import needs
from krappy.core.security.operations import Op
from krappy.core.security.scram import LEAST, ScramCredential
from krappy.errors import KrappyError
from krappy.handlers.kafka.refusals import DONE, SHOWN, denied_on_cluster
from krappy.handlers.kafka.registry import Message, serves
from krappy.ports import KafkaSessionPort
from krappy.ports.users import Credentials
from krappy.wire.kafka import ApiKey, Code

NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}  # of Kafka's ScramMechanism
NAMES = {number: name for name, number in NUMBERS.items()}
MOST = 16_384  # iterations, as in Kafka
TWICE = "A user credential cannot be altered twice in the same request"


@serves(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, needs=needs.cluster(Op.DESCRIBE))
def describe_credentials(session: KafkaSessionPort, request: Message, version: int) -> Message:
    if (denied := denied_on_cluster(session, Op.DESCRIBE)) is not None:
        return {**denied, "results": []}
    users = session.access.cluster(Op.DESCRIBE).users.all
    asked = Counter(each["name"] for each in request["users"] or ())
    return {**DONE, "results": [_described(name, users, asked[name]) for name in asked or sorted(users)]}


def _described(name: str, users: Mapping[str, Credentials], times: int) -> Message:
    found = users.get(name)
    if times > 1:
        code, text = (
            Code.DUPLICATE_RESOURCE,
            f"Cannot describe SCRAM credentials for the same user twice: {name:.{SHOWN}}",
        )
    elif not found:
        code, text = (
            Code.RESOURCE_NOT_FOUND,
            f"Attempt to describe a user credential that does not exist: {name:.{SHOWN}}",
        )
    else:
        infos = [
            {"mechanism": NUMBERS[each], "iterations": credential.iterations} for each, credential in found.items()
        ]
        return {"user": name, **DONE, "credential_infos": infos}
    return {"user": name, "error_code": code, "error_message": text, "credential_infos": []}


@serves(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, needs=needs.cluster(Op.ALTER))
async def alter_credentials(session: KafkaSessionPort, request: Message, version: int) -> Message:
    """Either all changes of a user are done or none, whatever becomes of the changes of other users."""
    if (denied := denied_on_cluster(session, Op.ALTER)) is not None:
        names = dict.fromkeys(each["name"] for each in [*request["deletions"], *request["upsertions"]])
        return {"results": [{"user": name, **denied} for name in names]}
    users = session.access.cluster(Op.ALTER).users
    refused: dict[str, tuple[int, str]] = {}
    wanted: dict[str, dict[str, ScramCredential | None]] = {}
    for each in [*request["deletions"], *request["upsertions"]]:
        name, mechanism = each["name"], NAMES.get(each["mechanism"])
        changes = wanted.setdefault(name, {})
        if not name:
            refused[name] = Code.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
        elif mechanism is None:
            refused[name] = Code.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
        elif mechanism in changes:
            refused[name] = Code.DUPLICATE_RESOURCE, TWICE
        elif "salt" not in each:
            changes[mechanism] = None
        elif not LEAST <= each["iterations"] <= MOST:
            few = each["iterations"] < LEAST
            refused[name] = Code.UNACCEPTABLE_CREDENTIAL, "Too few iterations" if few else "Too many iterations"
        else:
            salted, salt = bytes(each["salted_password"]), bytes(each["salt"])
            changes[mechanism] = ScramCredential.of_salted(mechanism, salted, salt, each["iterations"])
    results = []
    for name, changes in wanted.items():
        code, text = refused.get(name, (int(Code.NONE), None))
        if code == Code.NONE:
            try:
                await users.alter(name, changes)
            except KrappyError as error:
                code, text = error.code, error.text
        results.append({"user": name, "error_code": code, "error_message": text})
    return {"results": results}
