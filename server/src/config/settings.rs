//! Every setting, once: the fields are flags of `lanner-server` and keys of its file at the same time, under the same names and
//! read by the same types. A setting that isn't given is `None`; `resolve` knows the defaults.

use std::fmt::Display;
use std::str::FromStr;

use bytesize::ByteSize;
use clap::Args;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::tenant::TenantEntry;
use super::values::{
    AddressList, AdminChoice, CoreList, HugePages, LeaseLength, PollMode, ShmChoice, WatermarkChoice,
};
use crate::eviction::PolicyKind;
use lanner_rdma::choice::RdmaChoice;

/// What was given, by flags or in the file.
#[derive(Args, Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Settings {
    /// Addresses for clients; port 0 takes a free one [default: 127.0.0.1:7411]
    #[arg(long, value_name = "HOST:PORT,…")]
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    pub listen: Option<AddressList>,

    /// Shards, one for each core [default: as many as there are cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<u16>,

    /// CPUs of the shards, as in 0-3,8 [default: those that this process may run on]
    #[arg(long, value_name = "LIST")]
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    pub cores: Option<CoreList>,

    /// NUMA node that shards and memory are on [default: none in particular]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,

    /// Memory for objects, all shards together [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,

    /// Huge pages for objects: auto takes them where enough are reserved [default: auto]
    #[arg(long, value_name = "auto|on|off")]
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<HugePages>,

    /// Take all memory for objects at the start rather than when first used [default: true]
    #[arg(long, value_name = "true|false", action = clap::ArgAction::Set)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefault: Option<bool>,

    /// Shared memory for clients on this host: the path of its socket [default: auto]
    #[arg(long, value_name = "auto|off|PATH")]
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    pub shm: Option<ShmChoice>,

    /// RDMA for clients on other machines; auto takes the device whose address is listened on, near the shards [default: auto]
    #[arg(long, value_name = "auto|off|DEVICE[:PORT[:GID]]")]
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaChoice>,

    /// Address for metrics and health [default: 127.0.0.1, the port above that of --listen: 7412]
    #[arg(long, value_name = "HOST:PORT|off")]
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    pub admin: Option<AdminChoice>,

    /// How long a read stays protected from eviction and removal, 10ms to 60s [default: 5s]
    #[arg(long, value_name = "TIME")]
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    pub lease_ttl: Option<humantime::Duration>,

    /// Whether leases become shorter while puts find no room because of them, down to an eighth, or stay as they are [default: adaptive]
    #[arg(long, value_name = "adaptive|fixed")]
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    pub lease_length: Option<LeaseLength>,

    /// Thousandths of the memory below which objects are evicted ahead of demand, and up to which, as in 10-20; adaptive begins with
    /// these two and raises them, up to fourfold, while puts have to wait for evictions [default: adaptive]
    #[arg(long, value_name = "adaptive|BEGIN-END")]
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    pub watermarks: Option<WatermarkChoice>,

    /// What a shard without work does: sleep after a while, or keep its core busy [default: adaptive]
    #[arg(long, value_name = "adaptive|busy")]
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    pub poll: Option<PollMode>,

    /// Which objects leave first when memory is full; with adaptive:density, adaptive:recency or adaptive:segmented what the adaptive one
    /// would choose from is chosen for good [default: adaptive]
    #[arg(long, value_name = "adaptive|s3-fifo|lru")]
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyKind>,

    /// Keep a checksum of each value; a put takes a pass over the value longer [default: false]
    #[arg(long, value_name = "true|false", action = clap::ArgAction::Set)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_checksums: Option<bool>,

    /// Keep the keys in order too, for prefixes and for lists in order; takes up to 48 bytes an object [default: true]
    #[arg(long, value_name = "true|false", action = clap::ArgAction::Set)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_index: Option<bool>,

    /// Connections of a shard at a time; further ones are refused [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,

    /// How long a server that was asked to end waits for its clients [default: 10s]
    #[arg(long, value_name = "TIME")]
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<humantime::Duration>,

    /// Messages on standard error: error, warn, info, debug, trace, or filters for parts [default: info]
    #[arg(long, value_name = "FILTER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,

    /// Tenants, in the file only.
    #[arg(skip)]
    #[serde(rename = "tenant", skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<TenantEntry>,
}

impl Settings {
    /// These settings, and those of `other` where these say nothing.
    #[must_use]
    pub fn or(self, other: Settings) -> Settings {
        Settings {
            listen: self.listen.or(other.listen),
            shards: self.shards.or(other.shards),
            cores: self.cores.or(other.cores),
            numa_node: self.numa_node.or(other.numa_node),
            memory: self.memory.or(other.memory),
            huge_pages: self.huge_pages.or(other.huge_pages),
            prefault: self.prefault.or(other.prefault),
            shm: self.shm.or(other.shm),
            rdma: self.rdma.or(other.rdma),
            admin: self.admin.or(other.admin),
            lease_ttl: self.lease_ttl.or(other.lease_ttl),
            lease_length: self.lease_length.or(other.lease_length),
            watermarks: self.watermarks.or(other.watermarks),
            poll: self.poll.or(other.poll),
            policy: self.policy.or(other.policy),
            value_checksums: self.value_checksums.or(other.value_checksums),
            prefix_index: self.prefix_index.or(other.prefix_index),
            max_connections: self.max_connections.or(other.max_connections),
            drain_timeout: self.drain_timeout.or(other.drain_timeout),
            log: self.log.or(other.log),
            tenants: if self.tenants.is_empty() { other.tenants } else { self.tenants },
        }
    }
}

/// Values of the file that are written as the flag's are: in quotation marks.
mod text {
    use super::*;

    pub fn serialize<T: Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Some).map_err(D::Error::custom)
    }
}
