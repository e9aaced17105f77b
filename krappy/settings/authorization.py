"""The settings of who may do what."""

from __future__ import annotations

from dataclasses import dataclass

from krappy.settings.spec import setting

# Kafka's names of these settings.
AUTHORIZATION_NAMES = {
    "allow.everyone.if.no.acl.found": "allow_everyone_if_no_acl_found",
    "authorizer.class.name": "authorizer",
    "super.users": "super_users",
}
# Kafka's authorizers whose rules are those of `acl`.
_CLASSES = {
    "": "none",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer": "acl",
    "kafka.security.authorizer.AclAuthorizer": "acl",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationSettings:
    """The part of a broker's settings that concerns who may do what."""

    authorizer: str = setting(
        "auto",
        "what decides who may do what: acl (the ACLs of the cluster), none (everybody may do everything), or auto: acl "
        "if a listener asks its clients who they are",
        choices=("auto", "acl", "none"),
    )
    super_users: str = setting("", "principals that may do everything, with ; between them: User:NAME;Group:NAME")
    allow_everyone_if_no_acl_found: bool = setting(False, "whether everybody may do everything where no ACL applies")

    @property
    def authenticates(self) -> bool:
        """Whether a listener asks its clients who they are."""
        raise NotImplementedError

    @property
    def authorizes(self) -> bool:
        return self.authorizer == "acl" or (self.authorizer == "auto" and self.authenticates)

    @property
    def super_user_names(self) -> list[str]:
        """Raises ValueError."""
        return read_super_users(self.super_users)


def read_authorizer(value: str) -> str:
    """Takes Kafka's names of classes, too."""
    return _CLASSES.get(value, value)


def read_super_users(text: str) -> list[str]:
    """The principals of "User:a;User:b". Raises ValueError."""
    found = [each for each in map(str.strip, text.split(";")) if each]
    for each in found:
        kind, _, name = each.partition(":")
        if kind not in ("User", "Group") or not name:  # no principal has such a name, so the entry would have no effect
            raise ValueError(f"'{each:.80}' is not User:NAME or Group:NAME, such as User:ada")
    return found
