"""A wire connects one container to its node: a veth pair that the shim makes itself.

The engine makes the container without a network, which saves half of a start. There is no bridge:
each container has one address of 32 bits and the node routes to it, so containers share no
Ethernet and there is nothing for forged ARP to reach. One table of nftables (`rules`) keeps runs
apart and translates addresses; `wiring` has the requests that make a wire, in
the words of `rtnetlink`, and `wires` sends them to the kernel (`netlink`).
"""
