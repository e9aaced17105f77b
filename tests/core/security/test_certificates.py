"""What is read from certificates, and which users they stand for."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.core.security.certificates import certificates, distinguished_name, validity
from krappy.core.security.name_rules import LONGEST, NameRules
from tests.security.authority import Authority


@pytest.mark.parametrize("seconds", [3600, 86_400 * 365 * 5, 86_400 * 365 * 60])  # two ways to write a year
def test_until_when_a_certificate_is_valid(tmp_path: Path, seconds: int) -> None:
    authority = Authority(tmp_path)
    begin, end = validity(Path(authority.issue("a.example", seconds=seconds)).read_bytes())
    assert abs(end - time.time() - seconds) < 60
    assert abs(begin - time.time() + 86_400) < 60


@given(st.binary(max_size=300))
def test_what_is_no_certificate(data: bytes) -> None:
    from base64 import b64encode

    wrapped = b"-----BEGIN CERTIFICATE-----\n" + b64encode(data) + b"\n-----END CERTIFICATE-----\n"
    for pem in (data, wrapped):
        with pytest.raises(ValueError, match="certificate"):
            validity(pem)
        certificates(pem)  # no error is raised


@pytest.mark.parametrize(("label", "behind"), [("", b""), ("TRUSTED ", b"\x30\x00"), ("X509 ", b"")])
def test_each_kind_of_pem_that_openssl_takes(tmp_path: Path, label: str, behind: bytes) -> None:
    plain = Path(Authority(tmp_path).ca).read_text()
    der = ssl.PEM_cert_to_DER_cert(plain)
    pem = ssl.DER_cert_to_PEM_cert(der + behind).replace(" CERTIFICATE-", f" {label}CERTIFICATE-").encode()
    assert certificates(pem + plain.encode()) == [der, der]
    assert validity(pem) == validity(plain.encode())


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ([[("countryName", "DE")], [("organizationName", "Acme")], [("commonName", "ada")]], "CN=ada,O=Acme,C=DE"),
        ([[("commonName", "a,b+c")]], "CN=a\\,b\\+c"),
        ([[("commonName", "#x ")]], "CN=\\#x\\ "),
        ([[("commonName", 'x"\\<>;')]], 'CN=x\\"\\\\\\<\\>\\;'),
        ([[("commonName", "a"), ("userId", "1")]], "CN=a+UID=1"),
        ([[("emailAddress", "a@b")]], "emailAddress=a@b"),
        ([], ""),
    ],
)
def test_names_of_rfc_2253(subject: list[list[tuple[str, str]]], name: str) -> None:
    assert distinguished_name(subject) == name


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", "CN=ada,O=x", "CN=ada,O=x"),
        # Kafka's own examples (SslPrincipalMapperTest)
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=Duke,OU=ServiceUsers,O=Org,C=US", "Duke"),
        ("RULE:^CN=(.*?), OU=(.*?), O=(.*?)$/$1@$2/", "CN=Duke, OU=SME, O=mycp", "Duke@SME"),
        ("RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U", "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("RULE:^CN=(.*?)$/$1/L,DEFAULT", "CN=ADA", "ada"),
        ("RULE:^CN=x$/y/, DEFAULT", "CN=z", "CN=z"),
        ("RULE:^CN=x$/y/", "CN=z", None),
        ("RULE:^CN=a\\/(.*)$/$1/", "CN=a/b", "b"),
        ("RULE:CN=x/y/", "CN=x,O=z", None),  # the whole name has to match
        ("DEFAULT", "x" * (LONGEST + 1), None),
        # What takes the pattern's place, as Java reads it
        (r"RULE:^CN=(.*)$/team\/$1/", "CN=x", "team/x"),
        (r"RULE:^CN=(.*)$/\$1\\$1/", "CN=x", "$1\\x"),
        ("RULE:^CN=(.*)$/$0/", "CN=x", "CN=x"),
        ("RULE:^CN=(.*)$/$1$12$01$09/", "CN=x", "xx2xCN=x9"),
        ("RULE:" + "(.)" * 12 + "/$12$1/", "abcdefghijkl", "la"),
        ("RULE:^CN=(?<user>.*)$/${user}@pay/", "CN=x", "x@pay"),
        ("RULE:^CN=(a)?(.*)$/$1$2/", "CN=x", "x"),
    ],
)
def test_which_user_a_subject_stands_for(rules: str, subject: str, name: str | None) -> None:
    assert NameRules(rules).name_of(subject) == name


@pytest.mark.parametrize(
    "rules",
    [
        *("", "X", "RULE:a/b", "RULE:(/x/", "RULE:a/$1/", "DEFAULT,,", "RULE:a/b/X", "DEFAULT X", "RULE:(?=a)a/b/"),
        *(
            "RULE:CN=[a-z&&[^b]]+/x/",
            "RULE:(a)/$2/",
            "RULE:(a)/${b}/",
            "RULE:(a)/$b/",
            "RULE:(a)/b$/",
            "RULE:(a)/$\u0661/",
        ),
    ],
)
def test_invalid_rules(rules: str) -> None:
    with pytest.raises(ValueError, match=r"is not DEFAULT|is no pattern|does not have|names no group"):
        NameRules(rules)


def test_a_name_that_no_rule_matches_is_found_so_at_once() -> None:
    """Kafka's documents have this rule. With backtracking, it takes a minute."""
    rules = NameRules(r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L")
    assert rules.name_of("CN=Ada,OU=Pay,O=Acme,L=X,ST=Y,C=Z") == "ada@pay"
    subject = "CN=x" + ",OU=a" * 50 + ",O=a" * 50 + ",L=a" * 50 + ",ST=a" * 50
    began = time.process_time()
    assert rules.name_of(subject) is None
    assert time.process_time() - began < 2
