import re
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from trainables.common.errors import InputError
from trainables.common.paths import check_server, redacted, scrubbed, shown

FORMS = [
    "http://me:{}@host:5000/path",
    "https://{}@host",
    "https://{}:x@host/",
    "https://me:{}@[::1]:5000/",
    "https://host/path?token={}",
    "https://host/path?a=b&{}=c&token={}#{}",
    "https://host#{}",
    "postgresql://me:{}@db/mlflow",
    "postgresql+psycopg2://me:{}@db:5432/mlflow?sslmode=require&sslpassword={}",
    "s3://{}:{}@bucket/path",
    "s3://KEY:{}@bucket/path",
    "s3://bucket/path?secret={}",
    "sqlite:///folder/mlflow.db?key={}",
    "me:{}@host",
    "http:/me:{}@host",
    "http://me:{}@host:99999",
    "http://me:{}@[::1",
    "http://me:{}",
    "simplecache::ftp://me:{}@host/x",
    "file://me:{}@host/x",
    "https://host/path?a=b;c={}",
]
SHOWN = "".join(FORMS).replace("{}", "") + "***require"
# A part of an address that is shown is no secret; what a person chose is longer than two signs.
SECRETS = st.text(min_size=3, max_size=30).filter(lambda secret: secret not in SHOWN)


@given(st.sampled_from(FORMS), SECRETS)
@example(FORMS[0], "pa/ss@wo#rd?")
@example(FORMS[0], "://me@")
@example(FORMS[1], "a@b@c")
@example(FORMS[7], "12/34@56")
def test_a_secret_is_never_shown(form, secret):
    assume(
        form != "http://me:{}" or not re.fullmatch(r"\d*(/.*)?", secret)
    )  # That would be a port.
    for spelled in (secret, quote(secret, safe="", errors="replace")):
        address = form.replace("{}", spelled)
        assert spelled not in redacted(address)
        assert repr(spelled)[1:-1] not in shown(address)


@given(st.sampled_from(FORMS), SECRETS)
@example(FORMS[0], "a b+c%25d")
def test_a_secret_is_found_in_any_spelling(form, secret):
    address = form.replace("{}", quote(secret, safe="", errors="replace"))
    try:
        check_server("it", address, "others")
    except InputError:
        return  # No library ever gets to see it.
    encoded = quote(secret, safe="")
    for spelled in (secret, encoded, encoded.lower(), quote_plus(secret), repr(secret)[1:-1]):
        assert f"<{spelled}>" not in scrubbed(f"cannot reach <{spelled}>, really", address)


@given(
    st.sampled_from(["http", "postgresql+psycopg2"]),
    st.text(max_size=8).map(lambda text: quote(text, safe="", errors="replace")),
    st.from_regex(r"[a-z0-9_.,:\[\]%-]{1,12}(:[0-9]{0,6})?", fullmatch=True),
)
@example("http", "me:secret", "[fe80::1%25eth0]:80")
@example("postgresql+psycopg2", "me", "one,two")
def test_an_accepted_address_keeps_its_host(kind, login, host):
    try:
        check_server("it", f"{kind}://{login}@{host}/path", "others")
    except InputError:
        return
    left = redacted(f"{kind}://{login}@{host}/path")
    assert left.endswith(f"{host}/path")
    check_server("it", left, "others")


@pytest.mark.parametrize(
    ("address", "left"),
    [
        ("https://me:secret@host:1/x", "https://host:1/x"),
        ("http://host:1/x?token=secret#more", "http://host:1/x"),
        ("https://token@[::1]:5000/", "https://[::1]:5000/"),
        (
            "postgresql://me:secret@db/x?sslmode=verify-full&a=b",
            "postgresql://me@db/x?sslmode=verify-full",
        ),
        (
            "postgresql+psycopg2://me:secret@db/x?sslmode=require",
            "postgresql+psycopg2://me@db/x?sslmode=require",
        ),
        ("postgresql://me@db/x", "postgresql://me@db/x"),
        ("postgresql+psycopg2://me:secret@db/x?a=b", "postgresql+psycopg2://me@db/x"),
        ("http://me@db/x?sslmode=require", "http://db/x"),
        ("s3://KEY:SECRET@bucket/x", "s3://bucket/x"),
        ("file://me:secret@host/x", "file://host/x"),
        ("sqlite:////home/me@work/#1/mlflow.db",) * 2,
        ("file:///home/me@work/runs",) * 2,
        ("folder://me:secret@host/x", "folder://host/x"),
        ("sqlite:////x/mlflow.db?key=secret", "sqlite:////x/mlflow.db"),
        ("mlruns?key=secret", "mlruns"),
        ("mlruns#secret", "mlruns"),
        ("memory://a/b",) * 2,
        ("mlruns", "mlruns"),
        ("https://me:pa/ss@host/x", "https://***"),
        ("https://host/x?mail=me@work", "https://***"),
        ("http://me:secret", "http://***"),
        ("me:secret@host", "***"),
        ("me:secret@http://host", "***"),
    ],
)
def test_redacted_addresses_can_be_redacted_again(address, left):
    assert redacted(address) == left
    assert redacted(left) == left


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        *[(mode,) * 2 for mode in ("disable", "allow", "prefer", "require", "verify-ca")],
        ("require&a=b", "require"),
        ("require#a", "require"),
        ("required", None),
    ],
)
def test_a_wish_for_encryption_is_kept_and_nothing_else_is(given, kept):
    for before in ("?", "?a=b&"):
        left = redacted(f"postgresql://me:secret@db/x{before}sslmode={given}")
        assert left == "postgresql://me@db/x" + (f"?sslmode={kept}" if kept else "")


def test_a_long_address_is_cut_for_a_message():
    address = f"http://{'a' * 113}"
    assert shown(address) == repr(address)
    assert shown(f"{address}b") == repr(f"{address}...")


@pytest.mark.parametrize(
    ("text", "address", "left"),
    [
        ("no answer from http://me:menace@host/x", "http://me:menace@host/x", "http://***@host/x"),
        ("no answer, me, menace", "postgresql://me:menace@db/x", ", me, ***"),
        ("no answer, abcd, ABC", "http://host/x?a=abc&b=abcd#abc", ", ***, ***"),
        ("no answer, x=y", "http://host?x=y", ", ***"),
        ("no answer, host", "http://host/host", ", host"),
    ],
)
def test_secrets_go_from_a_text_as_a_whole_and_nothing_else_does(text, address, left):
    assert scrubbed(text, address).endswith(left)
    assert scrubbed(text, address).startswith("no answer")


@pytest.mark.parametrize(
    ("address", "fault"),
    [
        ("http://", "has no host"),
        ("http://host:99999", "port is not 1 to 65535"),
        ("http://host:0", "port is not 1 to 65535"),
        ("http://host:abc", "port is not 1 to 65535"),
        ("http://[::1", "is not an address"),
        ("http://a..b", "is not an address"),
        (f"http://{'a' * 64}", "is not an address"),
        ("http://ho st", "a space or a control character"),
        ("http://host\x1b[31m", "a space or a control character"),
        ("http://me:pa/ss@host", "write %40 %2F %3F %23"),
        ("http://me:p@ss@host", "write %40 %2F %3F %23"),
    ],
)
def test_an_address_that_is_none_is_refused_in_one_short_line(address, fault):
    with pytest.raises(InputError) as caught:
        check_server("webhook", address, "http://HOST")
    text = str(caught.value)
    assert fault in text
    assert text.endswith("; allowed: http://HOST")
    assert "ss@host" not in text
    assert text.isprintable()
    assert len(text) < 300


@pytest.mark.parametrize(
    "address",
    [
        *("http://host", "https://me:a%40b@host:65535/x", "http://[::1]:1"),
        *("http://[fe80::1%25eth0]:80", "postgresql://me@one,two/x", "http://host:/x"),
    ],
)
def test_an_address_is_accepted(address):
    check_server("webhook", address, "http://HOST")
