"""Which addresses are public."""

from __future__ import annotations

import ipaddress
import random

import pytest

from localllm.media.addresses import is_public

PRIVATE = """
0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1 127.1.2.3 168.63.129.16
169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.19.255.255
198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255 :: ::1 ::127.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1
::ffff:8.8.8.8 64:ff9b::7f00:1 64:ff9b::808:808 64:ff9b:1::a00:1 100::1 2001::1 2001:2::1 2001:db8::1 2002:7f00:1::1 3fff::1
fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 2606:4700::1%eth0 fec0::1 ff02::1 ff0e::1
"""
PUBLIC = """
1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.1 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.1 168.63.129.15 169.253.255.255
172.15.255.255 172.32.0.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255 2001:4860:4860::8888
2606:4700:4700::1111 2a00:1450:4001:80b::200e
"""


@pytest.mark.parametrize("address", PRIVATE.split())
def test_private_and_special_addresses_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC.split())
def test_their_neighbours_are(address):
    assert is_public(address)


@pytest.mark.parametrize("text", ["", "localhost", "127.1", "2130706433", "0x7f.0.0.1", "8.8.8.8:80", "[::1]"])
def test_what_is_no_address_is_not_public(text):
    assert not is_public(text)


def test_nothing_is_public_that_python_knows_as_special():
    chance = random.Random(0)
    tried = [ipaddress.IPv4Address(chance.getrandbits(32)) for _ in range(20_000)]
    tried += [ipaddress.IPv6Address(chance.getrandbits(128)) for _ in range(2_000)]
    for address in tried:
        if not address.is_global or address.is_multicast or address.is_reserved or address.is_link_local:
            assert not is_public(str(address)), address
