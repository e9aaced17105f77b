"""What ACLs allow: cases in the words of Kafka's own tests (StandardAuthorizerTest, AclAuthorizerTest), and any ACLs
compared with a fold that reads them one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.core.cluster import znodes
from krappy.core.cluster.document import Document
from krappy.core.security.acl import ANY, MATCH, OPERATIONS, Acl, AclFilter, AclSet, Pattern, Permission
from krappy.core.security.operations import Op, Resource
from krappy.core.security.principal import Principal
from krappy.errors import InvalidRequest

ADA, BOB = Principal(name="ada", host="10.0.0.1"), Principal(name="bob", host="10.0.0.2")
OPS = Principal(name="eve", groups=("ops", "dev"), host="10.0.0.3")


def acl(text: str) -> Acl:
    """The ACL "allow|deny PRINCIPAL OP TYPE NAME [HOST]"; a name that ends with .. is a prefix."""
    permission, principal, op, resource, name, *host = text.split()
    pattern = Pattern.PREFIXED if name.endswith("..") else Pattern.LITERAL
    return Acl(
        Resource[resource.upper()],
        pattern,
        name.removesuffix(".."),
        principal,
        host[0] if host else "*",
        Op[op.upper()],
        Permission[permission.upper()],
    )


def acls(*texts: str) -> AclSet:
    return AclSet(map(acl, texts))


def may(found: AclSet, who: Principal, op: str, name: str, resource: str = "topic", **more: Any) -> bool:
    return found.decide(who, Resource[resource.upper()], name, Op[op.upper()], **more)


def test_without_an_acl_nothing_is_allowed_unless_the_setting_says_so() -> None:
    assert not may(acls(), ADA, "read", "t")
    assert may(acls(), ADA, "read", "t", otherwise=True)


def test_an_acl_of_anybody_ends_what_the_setting_allows() -> None:
    found = acls("allow User:bob read topic t")
    assert not may(found, ADA, "read", "t", otherwise=True)
    assert may(found, ADA, "read", "other", otherwise=True)
    assert may(found, ADA, "read", "t", "group", otherwise=True)


def test_an_acl_of_a_prefix_or_of_all_concerns_a_resource_too() -> None:
    assert not may(acls("allow User:bob read topic t.."), ADA, "read", "tea", otherwise=True)
    assert not may(acls("deny User:bob read topic *"), ADA, "read", "tea", otherwise=True)


def test_a_literal_a_prefix_and_all() -> None:
    for name in ("tea", "te..", "*"):
        found = acls(f"allow User:ada read topic {name}")
        assert may(found, ADA, "read", "tea")
        assert not may(found, BOB, "read", "tea")
        assert not may(found, ADA, "write", "tea")
        assert not may(found, ADA, "read", "tea", "group")
        assert may(found, ADA, "read", "t") == (name == "*")


def test_deny_wins_whatever_its_order_and_its_pattern() -> None:
    for name in ("tea", "t..", "*"):
        found = acls("allow User:ada all topic tea", f"deny User:ada read topic {name}")
        assert not may(found, ADA, "read", "tea")
        assert may(found, ADA, "write", "tea")


def test_deny_of_everybody_concerns_each() -> None:
    found = acls("allow User:ada read topic tea", "deny User:* read topic tea")
    assert not may(found, ADA, "read", "tea")


def test_everybody_and_groups() -> None:
    found = acls("allow User:* read topic tea", "allow Group:ops write topic tea")
    assert may(found, BOB, "read", "tea")
    assert may(found, OPS, "write", "tea")
    assert not may(found, BOB, "write", "tea")


def test_a_user_is_no_group_of_its_name() -> None:
    assert not may(acls("allow Group:ada read topic tea"), ADA, "read", "tea")


@pytest.mark.parametrize("op", ["read", "write", "delete", "alter"])
def test_what_is_allowed_with_it(op: str) -> None:
    found = acls(f"allow User:ada {op} topic t")
    assert may(found, ADA, "describe", "t")
    assert not may(found, ADA, "describe_configs", "t")


def test_settings_that_may_be_altered_may_be_described() -> None:
    found = acls("allow User:ada alter_configs topic t")
    assert may(found, ADA, "describe_configs", "t")
    assert not may(found, ADA, "describe", "t")


def test_what_is_denied_denies_nothing_with_it() -> None:
    found = acls("allow User:ada describe topic t", "deny User:ada read topic t")
    assert may(found, ADA, "describe", "t")


def test_all_allows_and_denies_everything() -> None:
    for op in OPERATIONS[Resource.TOPIC]:
        assert may(acls("allow User:ada all topic t"), ADA, op.name, "t")
        assert not may(acls(f"allow User:ada {op.name} topic t", "deny User:ada all topic t"), ADA, op.name, "t")


def test_hosts() -> None:
    found = acls(
        "allow User:ada read topic t 10.0.0.1", "deny User:ada write topic t 10.0.0.9", "allow User:ada write topic t"
    )
    assert may(found, ADA, "read", "t")
    assert not may(found, Principal(name="ada", host="10.0.0.9"), "read", "t")
    assert may(found, ADA, "write", "t")
    assert not may(found, Principal(name="ada", host="10.0.0.9"), "write", "t")


def test_an_address_has_many_forms() -> None:
    """Java writes IPv6 addresses with all their zeros."""
    found = acls("allow User:ada read topic t 0:0:0:0:0:0:0:1")
    assert may(found, Principal(name="ada", host="::1"), "read", "t")
    assert not may(found, Principal(name="ada", host="::2"), "read", "t")


def test_an_address_of_a_link_is_meant_in_each_zone_unless_it_names_one() -> None:
    def denied(rule: str, host: str) -> bool:
        everybody = Acl(Resource.TOPIC, Pattern.LITERAL, "t", "User:*", "*", Op.READ, Permission.ALLOW)
        found = AclSet([everybody, everybody._replace(host=rule, permission=Permission.DENY)])
        return not found.decide(Principal(name="ada", host=host), Resource.TOPIC, "t", Op.READ)

    assert denied("fe80::1", "fe80::1%eth0")
    assert denied("FE80:0:0::1", "fe80::1%eth0")
    assert denied("fe80::1%eth0", "fe80::1%eth0")
    assert not denied("fe80::1%eth1", "fe80::1%eth0")
    assert not denied("fe80::2", "fe80::1%eth0")


def test_the_empty_prefix_and_names_that_are_prefixes_of_prefixes() -> None:
    found = acls("allow User:ada read topic te..", "deny User:ada read topic team..")
    assert may(found, ADA, "read", "te")
    assert may(found, ADA, "read", "tea")
    assert not may(found, ADA, "read", "team")
    assert not may(found, ADA, "read", "t")


# --- any resource of a type (KIP-679; AuthorizerInterfaceDefaultTest)


def anything(found: AclSet, who: Principal) -> bool:
    return found.decide_for_any(who, Resource.TOPIC, Op.WRITE)


@pytest.mark.parametrize(
    ("texts", "allowed"),
    [
        ((), False),
        (("allow User:ada write topic t",), True),
        (("allow User:ada read topic t",), False),
        (("allow User:bob write topic t",), False),
        (("allow User:ada read group t",), False),
        (("allow User:ada all topic t",), True),
        (("allow User:* write topic t",), True),
        (("allow User:ada write topic t 10.9.9.9",), False),
        (("allow User:ada write topic *", "deny User:ada write topic t"), True),
        (("allow User:ada write topic t", "deny User:ada write topic t"), False),
        (("allow User:ada write topic t", "deny User:ada write topic t.."), False),
        (("allow User:ada write topic tea..", "deny User:ada write topic te.."), False),
        (("allow User:ada write topic te..", "deny User:ada write topic tea.."), True),
        (("allow User:ada write topic te..", "deny User:ada write topic te"), True),
        (("allow User:ada write topic *", "deny User:* write topic *"), False),
        (("allow User:ada write topic t", "deny User:bob write topic *"), True),
    ],
)
def test_some_resource_of_a_type(texts: tuple[str, ...], allowed: bool) -> None:
    assert anything(acls(*texts), ADA) == allowed


# --- filters


EACH = (
    "allow User:ada read topic tea",
    "allow User:bob read topic te..",
    "deny User:ada write topic *",
    "allow User:ada read group tea",
)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (AclFilter(), EACH),
        (AclFilter(Resource.GROUP), EACH[3:]),
        (AclFilter(Resource.TOPIC, ANY, "tea"), EACH[:1]),
        (AclFilter(Resource.TOPIC, MATCH, "tea"), EACH[:3]),
        (AclFilter(None, MATCH, "tea"), EACH),
        (AclFilter(Resource.TOPIC, Pattern.PREFIXED, "te"), EACH[1:2]),
        (AclFilter(Resource.TOPIC, Pattern.LITERAL, "te"), ()),
        (AclFilter(principal="User:ada"), (EACH[0], EACH[2], EACH[3])),
        (AclFilter(host="10.0.0.1"), ()),
        (AclFilter(host="*", op=Op.WRITE), EACH[2:3]),
        (AclFilter(permission=Permission.DENY), EACH[2:3]),
    ],
)
def test_filters(wanted: AclFilter, found: tuple[str, ...]) -> None:
    assert acls(*EACH).find(wanted) == sorted(map(acl, found))


# --- what can be stored


def test_an_acl_is_stored_and_read_again() -> None:
    for text in EACH:
        assert znodes.acl_of(znodes.acl(acl(text))) == acl(text)


@pytest.mark.parametrize("field", ["resource_type", "operation", "permission_type", "pattern_type", "version"])
def test_one_of_a_later_version_is_not_read(field: str) -> None:
    data = znodes.acl(acl(EACH[0]))
    fields = Document.of(data)
    with pytest.raises(ValueError, match=r"."):
        znodes.acl_of(fields.with_fields({field: 2 if field == "version" else "LATER"}))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": ""}, "empty resource name"),
        ({"resource": Resource.CLUSTER, "op": Op.ALTER}, "only valid name for the CLUSTER resource is kafka-cluster"),
        ({"principal": "ada"}, "Could not parse principal"),
        ({"principal": "User:"}, "Could not parse principal"),
        ({"principal": "user:ada"}, r"'user:ada' would be nobody.*User:ada is meant"),
        ({"principal": "Role:ops"}, "'Role:ops' would be nobody: a principal is User:NAME or Group:NAME$"),
        ({"host": ""}, "empty host"),
        ({"op": Op.CLUSTER_ACTION}, "CLUSTER_ACTION is not for a resource of type TOPIC"),
        ({"name": "x" * 1001}, "at most 1000"),
    ],
)
def test_what_can_not_be_stored(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        acl(EACH[0])._replace(**change).check()


def test_the_same_acl_has_the_same_id_and_others_have_others() -> None:
    ids = [acl(text).id for text in EACH]
    assert len(set(ids)) == len(ids)
    assert acl(EACH[0]).id == ids[0]
    assert acl("allow User:ada read topic te").id != acl("allow User:ada read topic te..").id


# --- against a fold


NAMES = st.sampled_from(["a", "ab", "abc", "b", "*", ""])
PRINCIPALS = st.sampled_from(["User:ada", "User:bob", "User:*", "Group:ops"])
OPERATION = st.sampled_from([Op.ALL, Op.READ, Op.WRITE, Op.DESCRIBE, Op.ALTER_CONFIGS, Op.DESCRIBE_CONFIGS])
ACLS = st.builds(
    Acl,
    st.sampled_from([Resource.TOPIC, Resource.GROUP]),
    st.sampled_from(Pattern),
    NAMES,
    PRINCIPALS,
    st.sampled_from(["*", "10.0.0.1", "::1"]),
    OPERATION,
    st.sampled_from(Permission),
)
WHO = st.builds(
    Principal,
    name=st.sampled_from(["ada", "bob"]),
    groups=st.sampled_from([(), ("ops",)]),
    host=st.sampled_from(["10.0.0.1", "10.0.0.2", "0:0:0:0:0:0:0:1"]),
)


IMPLY = {Op.DESCRIBE: (Op.READ, Op.WRITE, Op.DELETE, Op.ALTER), Op.DESCRIBE_CONFIGS: (Op.ALTER_CONFIGS,)}


def folded(all: list[Acl], who: Principal, resource: Resource, name: str, op: Op, otherwise: bool) -> bool:
    """Reads every ACL, in order."""
    concerning = [
        each
        for each in all
        if each.resource == resource
        and (name.startswith(each.name) if each.pattern is Pattern.PREFIXED else each.name in (name, "*"))
    ]
    if not concerning:
        return otherwise
    hosts = {"0:0:0:0:0:0:0:1": "::1"}
    allows = False
    for each in concerning:
        named = each.principal in {f"User:{who.name}", "User:*", *(f"Group:{group}" for group in who.groups)}
        if not named or each.host not in ("*", hosts.get(who.host, who.host)):
            continue
        if each.permission is Permission.DENY:
            if each.op in (Op.ALL, op):
                return False
        elif each.op in (Op.ALL, op, *IMPLY.get(op, ())):
            allows = True
    return allows


@given(st.lists(ACLS, max_size=12), WHO, NAMES.filter(lambda name: name not in ("", "*")), OPERATION, st.booleans())
def test_any_acls_decide_as_the_fold(all: list[Acl], who: Principal, name: str, op: Op, otherwise: bool) -> None:
    for resource in (Resource.TOPIC, Resource.GROUP):
        wanted = folded(all, who, resource, name, op, otherwise)
        assert AclSet(all).decide(who, resource, name, op, otherwise=otherwise) == wanted
