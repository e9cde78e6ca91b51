//! A whole server in this process and a real client over loopback and shared memory: every call, its answers and its errors.

mod by_hand;
mod calls;
mod chains;
mod connecting;
mod engram;
mod hostile;
mod leases;
mod lives;
mod prefixes;
mod proxy;
mod readme;
mod registered;
mod sealed;
mod support;
