//! `--print-config`: a configuration as a file that says the same, each setting with its explanation, and the memory that it takes.

use std::fmt::Write;

use bytesize::ByteSize;
use clap::CommandFactory;
use toml::Table;

use super::ServerConfig;
use super::flags::Flags;
use super::memory_plan::{MemoryPlan, When};
use super::settings::Settings;
use super::tenant::TenantEntry;
use super::values::{AddressList, AdminChoice, CoreList};

/// The text of a file that `--config` reads as this configuration. Tenants' tokens are in it.
#[must_use]
pub fn as_toml(config: &ServerConfig) -> String {
    let mut text =
        "# lanner-server --config FILE reads this file. Flags of the same names win over it.\n".to_owned();
    let mut settings = as_settings(config);
    let tenants = std::mem::take(&mut settings.tenants);
    // Both serialisations are of plain structs of texts and numbers, which TOML holds.
    let values = Table::try_from(&settings).unwrap_or_default();
    for argument in Flags::command().get_arguments() {
        let Some(key) = argument.get_long() else { continue };
        let Some(help) = argument.get_help().filter(|_| key != "config" && key != "print-config") else {
            continue;
        };
        match values.get(key) {
            Some(value) => {
                let _ = write!(text, "\n# {help}\n{key} = {value}\n");
            }
            None => {
                let _ = write!(text, "\n# {help}\n#{key} =\n");
            }
        }
    }
    for tenant in tenants {
        let table = toml::to_string(&tenant).unwrap_or_default();
        let _ = write!(text, "\n[[tenant]]\n{table}");
    }
    write_plan(&config.memory_plan(), &mut text);
    text
}

fn write_plan(plan: &MemoryPlan, text: &mut String) {
    let _ = write!(text, "\n# Memory of this server:\n");
    for line in plan.lines() {
        let size = ByteSize(line.bytes).display().iec().to_string();
        let bound = if line.when == When::AtMost { "up to" } else { "" };
        let _ = writeln!(text, "#   {:<20} {bound:>5} {size:>10}   {}", line.name, line.why);
    }
    let [start, most] =
        [plan.bytes_at_start(), plan.bytes_at_most()].map(|bytes| ByteSize(bytes).display().iec());
    let _ = writeln!(text, "#   {start} from the start on, {most} if everything comes together");
}

/// The settings that amount to this configuration. The shards are as many as the cores, so their number isn't said again.
fn as_settings(config: &ServerConfig) -> Settings {
    let listen = config.listen.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let has_default_tenant_only =
        matches!(config.tenants.as_slice(), [only] if only.name.is_empty() && only.token.is_none());
    let tenants = config.tenants.iter().map(|tenant| TenantEntry {
        name: tenant.name.clone(),
        token: tenant.token.clone(),
        memory_share: Some(tenant.share.fraction()),
    });
    Settings {
        listen: listen.parse::<AddressList>().ok(),
        shards: Some(config.shards()),
        cores: Some(CoreList(config.cores.clone())),
        numa_node: config.numa_node,
        memory: Some(ByteSize(config.memory_bytes)),
        huge_pages: Some(config.huge_pages),
        prefault: Some(config.prefault),
        shm: Some(config.shm.clone()),
        rdma: Some(config.rdma.clone()),
        admin: Some(config.admin.map_or(AdminChoice::Off, AdminChoice::At)),
        lease_ttl: Some(config.lease_ttl.into()),
        lease_length: Some(config.lease_length),
        watermarks: Some(config.watermarks),
        poll: Some(config.poll),
        policy: Some(config.policy),
        value_checksums: Some(config.value_checksums),
        prefix_index: Some(config.prefix_index),
        max_connections: Some(config.max_connections),
        drain_timeout: Some(config.drain_timeout.into()),
        log: Some(config.log.clone()),
        tenants: if has_default_tenant_only { Vec::new() } else { tenants.collect() },
    }
}
