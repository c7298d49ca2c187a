"""AWS for the lab: the moto server, completed where the stack needs more of EC2 than moto offers.

`server` starts it, `instances` reads from it what the lab has to boot. The rest is one module per subject. EC2:
`addresses` (subnet pools), `interfaces` (EFA, network cards), `launch` (launch templates and instances), `placement`,
`capacity` (reservations and capacity blocks), `console` (what machines wrote to theirs), `rules` (security groups),
`account` (account defaults, key pairs). Other services: `policies` (IAM), `budgets`, `zones` (Route 53). All:
`dispatch` (errors, locking), `state` (what they remember), `state_bucket` (what the account begins with).
Only the emulator's behaviour lives here: Terraform and every other client talk to it through the public API.
"""
