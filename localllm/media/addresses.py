"""Which network addresses belong to nobody's private network, so that whoever names a picture cannot reach into one with it."""

from __future__ import annotations

import ipaddress

# IANA's registries of special-purpose addresses (RFC 6890 and what came after). `ipaddress` has them too, but not the same in
# every version of Python.
_REFUSED_4 = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # behind a carrier's translation; some clouds keep their metadata there
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's service for the machine itself, in a public range
        "169.254.0.0/16",  # link-local, with the metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
# All that is public lies in here: not loopback, link-local, site-local, unique local, multicast or unspecified, and neither
# what stands for an IPv4 address: mapped (::ffff:0:0/96), compatible (::/96) and NAT64 (64:ff9b::/96, 64:ff9b:1::/48).
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
_REFUSED_6 = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which stands for an IPv4 address
        "3fff::/20",  # documentation
    )
)


def is_public(address: str) -> bool:
    """Whether an IP address is one of the internet's, and not of this machine or a private network.

    A translation from IPv6 to IPv4 by a prefix of somebody's own (RFC 6052) cannot be told from its address.

    Args:
        address: as `socket.getaddrinfo` gives it.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv4Address):
        return not any(parsed in network for network in _REFUSED_4)
    return parsed.scope_id is None and parsed in _GLOBAL_6 and not any(parsed in network for network in _REFUSED_6)
