"""What an address stands for, in every form that brings a connection there; and who may go where."""

import pytest

from sluicegate.http.addresses import AddressKind, counted_as, is_literal, kind_of
from sluicegate.http.egress import TELL_EVERY, AddressRefused, Blocked, Egress

FORBIDDEN = [
    "169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "ff02::1%lo", "::ffff:169.254.169.254",
    "::ffff:0:169.254.169.254", "::169.254.169.254", "2002:a9fe:a9fe::1", "64:ff9b::169.254.169.254",
    "64:ff9b:1::169.254.169.254", "2001:0:a9fe:a9fe::1", "2600::5efe:169.254.169.254", "2600::200:5efe:a9fe:a9fe",
    "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "::ffff:168.63.129.16",
]  # fmt: skip
PRIVATE = [
    "127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "0.0.0.0", "198.18.0.1",
    "192.0.2.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "fd00::1", "fec0::1", "ff02::1",
    "2001:db8::1", "100::1", "::ffff:10.0.0.1", "::127.0.0.1", "2002:7f00:1::1", "2002:808:808::1", "64:ff9b::10.0.0.1",
    "2001:0:808:808::1",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]


@pytest.mark.parametrize(
    ("address", "kind"),
    [(one, kind)
     for kind, all_ in (
         (AddressKind.FORBIDDEN, FORBIDDEN), (AddressKind.PRIVATE, PRIVATE), (AddressKind.PUBLIC, PUBLIC)
     )
     for one in all_],
)  # fmt: skip
def test_an_address_is_what_it_stands_for(address: str, kind: AddressKind) -> None:
    assert kind_of(address) is kind


@pytest.mark.parametrize(
    ("address", "as_"),
    [("192.0.2.1", "192.0.2.1"), ("::ffff:192.0.2.1", "192.0.2.1"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
     ("2001:db8:1:2::", "2001:db8:1:2::"), ("2001:db8:1:3::1", "2001:db8:1:3::"), ("fe80::1%eth0", "fe80::"),
     ("", ""), ("unknown", "unknown")],
)  # fmt: skip
def test_whoever_has_an_address_of_ipv6_has_its_network(address: str, as_: str) -> None:
    assert counted_as(address) == as_


def test_only_the_usual_spelling_is_a_literal() -> None:
    assert is_literal("10.0.0.1") is is_literal("::1") is True
    assert not any(map(is_literal, ("2130706433", "0x7f.1", "0177.0.0.1", "127.1", "localhost", "10.0.0.1.")))


@pytest.mark.parametrize("address", FORBIDDEN)
def test_what_is_forbidden_is_so_for_every_name_and_can_only_be_written_down(address: str) -> None:
    egress = Egress(["169.254.0.0/16", "fe80::/10", "metadata", "fd00::/8"])
    for host in ("metadata", "2852039166", "0xa9fea9fe"):
        with pytest.raises(Blocked):
            egress.permit("x", host, [address])
        with pytest.raises(Blocked):
            egress.permit("x", host, [address], is_named=True)
    if "%" not in address:
        assert egress.permit("x", address, [address]) == [address]
    with pytest.raises(Blocked):
        egress.permit("x", address, [address], is_named=True)


@pytest.mark.parametrize("address", PRIVATE)
def test_a_private_address_is_for_the_operator_to_name(address: str) -> None:
    egress = Egress()
    assert egress.permit("x", "db.internal", [address]) == [address]
    with pytest.raises(Blocked):
        egress.permit("x", "db.internal", [address], is_named=True)


def test_the_operator_allows_networks_addresses_and_hosts() -> None:
    egress = Egress(["10.1.0.0/16", "192.168.7.7", "Keys.Internal."])
    assert egress.permit("x", "a", ["10.1.2.3"], is_named=True) == ["10.1.2.3"]
    assert egress.permit("x", "a", ["::ffff:10.1.2.3"], is_named=True) == ["::ffff:10.1.2.3"]
    assert egress.permit("x", "a", ["192.168.7.7"], is_named=True) == ["192.168.7.7"]
    assert egress.permit("x", "keys.internal", ["10.9.9.9"], is_named=True) == ["10.9.9.9"]
    for host, address in (("a", "10.2.0.1"), ("a", "192.168.7.8"), ("keys.internal.evil.com", "10.9.9.9")):
        with pytest.raises(Blocked):
            egress.permit("x", host, [address], is_named=True)


def test_of_many_addresses_the_good_ones_are_left() -> None:
    assert Egress().permit("x", "a", ["127.0.0.1", "8.8.8.8", "::1"], is_named=True) == ["8.8.8.8"]


def test_who_is_refused_again_and_again_is_told_once_a_minute() -> None:
    told: list[AddressRefused] = []
    now = [0.0]
    egress = Egress(on_refused=told.append, clock=lambda: now[0])
    for _ in range(5):
        with pytest.raises(Blocked, match=r"evil\.test is 169\.254\.169\.254"):
            egress.permit("server a", "evil.test", ["169.254.169.254"])
    assert told == [AddressRefused("server a", "evil.test", "169.254.169.254", told[0].why)]
    now[0] = TELL_EVERY
    with pytest.raises(Blocked):
        egress.permit("server a", "evil.test", ["169.254.169.254"])
    assert len(told) == 2
