//! Where the servers are and how long to wait for them: a URL and a few durations, parsed once.
//!
//! `lanner://HOST:PORT[,HOST:PORT…][?transport=auto|tcp|shm|rdma][&rdma=auto|off|DEVICE[:PORT[:GID]]][&tenant=NAME][&token=TOKEN][&timeout=5s][&spin=200us]`

use lanner_rdma::choice::RdmaChoice;
use lanner_shared::wire::hello::MAX_TENANT_BYTES;
use lanner_shared::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The port of a server that wasn't told another.
pub const DEFAULT_PORT: u16 = 7411;

/// How a client reaches its servers.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// `HOST:PORT` of each server; at least one.
    pub servers: Vec<Box<str>>,
    /// Which transports may be used.
    pub transport: TransportChoice,
    /// Which RDMA device leads to them; by itself the one whose address is this side's address of a connection. `Off` with a choice of
    /// transports leaves RDMA out of it, and with RDMA alone is refused.
    pub rdma: RdmaChoice,
    /// The tenant whose data is meant; empty for the default tenant.
    pub tenant: Box<str>,
    /// The tenant's token; empty if it has none.
    pub token: Box<str>,
    /// How long a call may take in all, reconnecting included.
    pub timeout: Duration,
    /// How long one attempt to connect may take; at most as long as a call.
    pub connect_timeout: Duration,
    /// How long a call spins while nothing of it comes or goes, before the thread sleeps. Spinning saves two wake-ups, about 50 us.
    pub spin: Duration,
}

/// Which transports a client may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Shared memory with a server on the same host, else RDMA, else TCP.
    #[default]
    Auto,
    /// TCP only.
    Tcp,
    /// Shared memory or nothing.
    Shm,
    /// RDMA or nothing.
    Rdma,
}

impl TransportChoice {
    /// The choice's name in a URL and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TransportChoice::Auto => "auto",
            TransportChoice::Tcp => "tcp",
            TransportChoice::Shm => "shm",
            TransportChoice::Rdma => "rdma",
        }
    }
}

impl FromStr for TransportChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<TransportChoice> {
        match text {
            "auto" => Ok(TransportChoice::Auto),
            "tcp" => Ok(TransportChoice::Tcp),
            "shm" => Ok(TransportChoice::Shm),
            "rdma" => Ok(TransportChoice::Rdma),
            other => Err(invalid(format!("transport '{other}' is none of auto, tcp, shm, rdma"))),
        }
    }
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig {
            servers: vec![format!("127.0.0.1:{DEFAULT_PORT}").into()],
            transport: TransportChoice::Auto,
            rdma: RdmaChoice::Auto,
            tenant: "".into(),
            token: "".into(),
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            spin: Duration::from_micros(200),
        }
    }
}

impl fmt::Debug for ClientConfig {
    // By hand, so that a token never lands in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("servers", &self.servers)
            .field("transport", &self.transport)
            .field("rdma", &self.rdma)
            .field("tenant", &self.tenant)
            .field("token", &if self.token.is_empty() { "none" } else { "(hidden)" })
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl FromStr for ClientConfig {
    type Err = Error;

    fn from_str(url: &str) -> Result<ClientConfig> {
        let rest = url.strip_prefix("lanner://").ok_or_else(|| {
            invalid(format!("'{url}' is no Lanner URL; it starts with lanner://, as lanner://127.0.0.1:7411"))
        })?;
        let (hosts, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut config = ClientConfig {
            servers: hosts.trim_end_matches('/').split(',').map(server_address).collect::<Result<_>>()?,
            ..ClientConfig::default()
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            config.set(name, value)?;
        }
        config.check()?;
        Ok(config)
    }
}

/// In less, not even a connection is made.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);

impl ClientConfig {
    /// How long one attempt to connect may take: no longer than the call, and where it finds one of several servers frozen it must have time left
    /// for the answers of the others.
    pub(crate) fn attempt_timeout(&self) -> Duration {
        let most = if self.servers.len() > 1 { self.timeout / 2 } else { self.timeout };
        self.connect_timeout.min(most)
    }

    /// Whether its parts agree.
    pub(crate) fn check(&self) -> Result<()> {
        if self.transport == TransportChoice::Rdma && self.rdma == RdmaChoice::Off {
            let text = "transport=rdma and rdma=off contradict each other; transport=tcp does without RDMA, and so does rdma=off alone";
            return Err(invalid(text.into()));
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "transport" => self.transport = value.parse()?,
            "rdma" => self.rdma = value.parse().map_err(|error| invalid(format!("rdma: {error}")))?,
            "tenant" if value.len() <= MAX_TENANT_BYTES => self.tenant = value.into(),
            "tenant" => {
                return Err(invalid(format!("tenant '{value}' is longer than {MAX_TENANT_BYTES} bytes")));
            }
            "token" => self.token = value.into(),
            "timeout" => {
                self.timeout = humantime::parse_duration(value).map_err(|error| {
                    invalid(format!("timeout '{value}': {error}; write it as 5s or 200ms"))
                })?;
                if self.timeout < SHORTEST_TIMEOUT {
                    return Err(invalid(format!("timeout '{value}' is shorter than 1ms")));
                }
            }
            "spin" => {
                self.spin = humantime::parse_duration(value)
                    .map_err(|error| invalid(format!("spin '{value}': {error}; write it as 200us or 0s")))?;
            }
            other => {
                return Err(invalid(format!(
                    "a Lanner URL has no '{other}'; it knows transport, rdma, tenant, token, timeout, spin"
                )));
            }
        }
        Ok(())
    }
}

/// `host` with a port: `name`, `name:port`, `1.2.3.4:port`, `[::1]:port`, `[::1]`.
fn server_address(host: &str) -> Result<Box<str>> {
    let missing =
        || invalid(format!("'{host}' is no HOST:PORT; an IPv6 address stands in brackets, as [::1]:7411"));
    let (name, port) = match host.strip_prefix('[') {
        Some(bracketed) => {
            let (address, behind) = bracketed.split_once(']').ok_or_else(missing)?;
            address.parse::<std::net::Ipv6Addr>().map_err(|_| missing())?;
            (
                format!("[{address}]"),
                behind.strip_prefix(':').or(behind.is_empty().then_some("")).ok_or_else(missing)?,
            )
        }
        None => {
            let (name, port) = host.split_once(':').unwrap_or((host, ""));
            (name.to_owned(), port)
        }
    };
    if name.is_empty() || name.contains(char::is_whitespace) || (host.ends_with(':')) {
        return Err(missing());
    }
    let port = if port.is_empty() { DEFAULT_PORT } else { port.parse().map_err(|_| missing())? };
    Ok(format!("{name}:{port}").into())
}

fn invalid(text: String) -> Error {
    Error::InvalidArgument(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_people_write() {
        let servers = |url: &str| url.parse::<ClientConfig>().unwrap().servers.join(" ");
        assert_eq!(servers("lanner://127.0.0.1:7411"), "127.0.0.1:7411");
        assert_eq!(servers("lanner://a,b:1,[::1]:2,[::1]/"), "a:7411 b:1 [::1]:2 [::1]:7411");
        let config: ClientConfig =
            "lanner://h:1?transport=tcp&tenant=t&token=s&timeout=200ms".parse().unwrap();
        assert_eq!((config.transport, &*config.tenant, &*config.token), (TransportChoice::Tcp, "t", "s"));
        assert_eq!(config.timeout, Duration::from_millis(200));
        assert_eq!("lanner://h?spin=2s".parse::<ClientConfig>().unwrap().spin, Duration::from_secs(2));
        assert!(!format!("{config:?}").contains("\"s\""));
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said() {
        for (url, says) in [
            ("http://x", "starts with lanner://"),
            ("lanner://", "HOST:PORT"),
            ("lanner://h:", "HOST:PORT"),
            ("lanner://h:70000", "HOST:PORT"),
            ("lanner://::1:7411", "brackets"),
            ("lanner://[::1", "brackets"),
            ("lanner://[::1]x", "brackets"),
            ("lanner://h?transport=udp", "none of auto, tcp, shm, rdma"),
            ("lanner://h?rdma=x:0", "port '0'"),
            ("lanner://h?transport=rdma&rdma=off", "contradict"),
            ("lanner://h?rdma=off&transport=rdma", "contradict"),
            ("lanner://h?color=red", "no 'color'"),
            ("lanner://h?timeout=soon", "5s or 200ms"),
            ("lanner://h?spin=long", "200us or 0s"),
        ] {
            let error = url.parse::<ClientConfig>().unwrap_err().to_string();
            assert!(error.contains(says), "{url}: {error}");
        }
    }
}
