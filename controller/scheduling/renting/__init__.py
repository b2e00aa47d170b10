"""What the queue needs that no node has: machines to rent.

`demand` goes through the queue and orders. `fleet_offers` has what a provider offers a fleet for a
need; `left_out` says why an offer is left out; `machine_bins` has the room on machines that are no
nodes yet, and `machine_pool` all machines of one look. `coming_back` has what will wait because its
machine is taken back. `gang_turns` decides which gang may order. `offered_places` tells users where
a run could go, and `never_rented` what is wrong with a fleet that can rent nothing.
"""
