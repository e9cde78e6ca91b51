//! How the value of a setting is written: each type reads itself from the text that a flag or the file gives, prints itself back,
//! and can't hold what can't be meant.

use std::fmt::{self, Display};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use lanner_shared::wire::hello::MAX_SOCKET_PATH_BYTES;

use crate::eviction::PolicyKind;
use crate::eviction::adaptive::Ranking;
use crate::shard::Watermarks;

/// Addresses to listen on, and how they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressList {
    text: String,
    /// At least one, all different.
    pub addresses: Vec<SocketAddr>,
}

impl FromStr for AddressList {
    type Err = String;

    /// Reads `HOST:PORT[,HOST:PORT…]`, where a host is a name, an IPv4 address or an IPv6 address in brackets.
    fn from_str(text: &str) -> Result<AddressList, String> {
        let mut addresses = Vec::new();
        for entry in text.split(',').map(str::trim) {
            for address in addresses_of(entry)? {
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        Ok(AddressList { text: text.to_owned(), addresses })
    }
}

impl Display for AddressList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// The addresses that `HOST:PORT` means here.
fn addresses_of(entry: &str) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = entry.parse() {
        return Ok(vec![address]);
    }
    let (host, port) = entry
        .rsplit_once(':')
        .filter(|(host, _)| !host.is_empty() && (!host.contains(':') || host.starts_with('[')))
        .ok_or(format!("'{entry}' is no address: write HOST:PORT, as in 127.0.0.1:7411 or [::1]:7411"))?;
    let port: u16 =
        port.parse().map_err(|_| format!("'{port}' in '{entry}' is no port: write a number up to 65535"))?;
    let resolved: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|error| {
            format!("host '{host}' has no address here ({error}): write one that has, or an IP address")
        })?
        .collect();
    // `localhost` also has an IPv6 address on hosts that have no IPv6: what the host lacks is left out, unless it lacks all.
    let is_had = |address: &SocketAddr| match TcpListener::bind((address.ip(), 0)) {
        Ok(_) => true,
        Err(error) => {
            error.kind() != io::ErrorKind::AddrNotAvailable && is_family_known(address.ip(), &error)
        }
    };
    let had: Vec<SocketAddr> = resolved.iter().copied().filter(is_had).collect();
    Ok(if had.is_empty() { resolved } else { had })
}

/// Whether a failed bind has another reason than a kernel without this family of addresses.
fn is_family_known(address: IpAddr, error: &io::Error) -> bool {
    address.is_ipv4() || error.raw_os_error() != Some(libc::EAFNOSUPPORT)
}

/// Where the admin endpoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminChoice {
    /// There is none.
    Off,
    /// At this address.
    At(SocketAddr),
}

impl FromStr for AdminChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<AdminChoice, String> {
        if text == "off" {
            return Ok(AdminChoice::Off);
        }
        let addresses = addresses_of(text).map_err(|problem| format!("{problem}; or `off`"))?;
        addresses.first().copied().map(AdminChoice::At).ok_or(format!("'{text}' has no address"))
    }
}

impl Display for AdminChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdminChoice::Off => formatter.write_str("off"),
            AdminChoice::At(address) => address.fmt(formatter),
        }
    }
}

/// CPUs, in the order of the shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreList(pub Vec<usize>);

/// No kernel numbers CPUs as far as this.
const MAX_CPU: usize = 1 << 16;

impl FromStr for CoreList {
    type Err = String;

    /// Reads `0-3,8`, as kernels write it.
    fn from_str(text: &str) -> Result<CoreList, String> {
        let wrong = || format!("'{text}' is no list of CPUs: write numbers and ranges, as in 0-3,8");
        let mut cores = Vec::new();
        for entry in text.split(',').map(str::trim) {
            let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
            let first: usize = first.parse().map_err(|_| wrong())?;
            let last: usize = last.parse().map_err(|_| wrong())?;
            if first > last || last > MAX_CPU {
                return Err(wrong());
            }
            for core in first..=last {
                if cores.contains(&core) {
                    return Err(format!(
                        "CPU {core} stands twice in '{text}': a shard has a core of its own"
                    ));
                }
                cores.push(core);
            }
        }
        Ok(CoreList(cores))
    }
}

impl Display for CoreList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, core) in self.0.iter().enumerate() {
            write!(formatter, "{}{core}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Whether and where the server hands out shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShmChoice {
    /// At a path of its own choice, in [`super::machine::socket_folder`] under its port.
    Auto,
    /// Not at all.
    Off,
    /// At this path; a server that can't have it doesn't start.
    Path(PathBuf),
}

impl FromStr for ShmChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<ShmChoice, String> {
        match text {
            "auto" => Ok(ShmChoice::Auto),
            "off" => Ok(ShmChoice::Off),
            path if !path.contains('/') => {
                Err(format!("'{path}' is none of auto, off and the path of a socket (which has a slash)"))
            }
            path if path.len() > MAX_SOCKET_PATH_BYTES => Err(format!(
                "the path has {} bytes, and a socket's may have {MAX_SOCKET_PATH_BYTES}: choose a shorter one",
                path.len()
            )),
            path => Ok(ShmChoice::Path(PathBuf::from(path))),
        }
    }
}

impl Display for ShmChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShmChoice::Auto => formatter.write_str("auto"),
            ShmChoice::Off => formatter.write_str("off"),
            ShmChoice::Path(path) => path.display().fmt(formatter),
        }
    }
}

/// An enum that is written as one of a few words.
macro_rules! words {
    ($type:ty { $($word:literal => $value:path),+ $(,)? }, $list:literal) => {
        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<$type, String> {
                match text {
                    $($word => Ok($value),)+
                    other => Err(format!("'{other}' is none of {}", $list)),
                }
            }
        }

        impl Display for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(match self {
                    $($value => $word,)+
                })
            }
        }
    };
}

/// Whether segments are backed by huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// Where the administrator has reserved enough.
    Auto,
    /// A server that can't have them doesn't start.
    On,
    /// Never.
    Off,
}

words!(HugePages { "auto" => HugePages::Auto, "on" => HugePages::On, "off" => HugePages::Off }, "auto, on, off");

/// What a shard without work does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollMode {
    /// Spins for a while, then sleeps until something comes.
    Adaptive,
    /// Spins for ever: its core is always busy.
    Busy,
}

words!(PollMode { "adaptive" => PollMode::Adaptive, "busy" => PollMode::Busy }, "adaptive, busy");

/// Whether leases stay as long as they are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseLength {
    /// They become shorter while that makes room for puts.
    Adaptive,
    /// They do.
    Fixed,
}

words!(LeaseLength { "adaptive" => LeaseLength::Adaptive, "fixed" => LeaseLength::Fixed }, "adaptive, fixed");

/// When objects are evicted ahead of demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatermarkChoice {
    /// As the shard sees fit.
    Adaptive,
    /// As written.
    Fixed(Watermarks),
}

impl WatermarkChoice {
    /// The watermarks that a shard begins with.
    #[must_use]
    pub fn at_first(self) -> Watermarks {
        match self {
            WatermarkChoice::Adaptive => Watermarks::default(),
            WatermarkChoice::Fixed(watermarks) => watermarks,
        }
    }
}

impl FromStr for WatermarkChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<WatermarkChoice, String> {
        if text == "adaptive" {
            return Ok(WatermarkChoice::Adaptive);
        }
        let fixed = text.split_once('-').and_then(|(begin, end)| {
            let (begin_below_per_mille, end_at_per_mille) = (begin.parse().ok()?, end.parse().ok()?);
            (begin_below_per_mille <= end_at_per_mille && end_at_per_mille <= 500)
                .then_some(Watermarks { begin_below_per_mille, end_at_per_mille })
        });
        fixed.map(WatermarkChoice::Fixed).ok_or_else(|| {
            format!(
                "'{text}' is neither adaptive nor two thousandths of the memory, the smaller first and at most 500, as in 10-20"
            )
        })
    }
}

impl Display for WatermarkChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WatermarkChoice::Adaptive => formatter.write_str("adaptive"),
            WatermarkChoice::Fixed(Watermarks { begin_below_per_mille, end_at_per_mille }) => {
                write!(formatter, "{begin_below_per_mille}-{end_at_per_mille}")
            }
        }
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(text: &str) -> Result<PolicyKind, String> {
        match text {
            "adaptive" => Ok(PolicyKind::Adaptive),
            "s3-fifo" => Ok(PolicyKind::S3Fifo),
            "lru" => Ok(PolicyKind::Lru),
            other => {
                let named = |ranking: &Ranking| other.strip_prefix("adaptive:") == Some(ranking.name());
                let ranking = Ranking::ALL.into_iter().find(named).map(PolicyKind::Ranked);
                ranking.ok_or_else(|| {
                    let rankings =
                        Ranking::ALL.map(|ranking| format!("adaptive:{}", ranking.name())).join(", ");
                    format!("'{other}' is none of adaptive, s3-fifo, lru, {rankings}")
                })
            }
        }
    }
}

impl Display for PolicyKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            PolicyKind::Ranked(ranking) => return write!(formatter, "adaptive:{}", ranking.name()),
            PolicyKind::Adaptive => "adaptive",
            PolicyKind::S3Fifo => "s3-fifo",
            PolicyKind::Lru => "lru",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem<T: FromStr<Err = String> + fmt::Debug>(text: &str) -> String {
        text.parse::<T>().expect_err(text)
    }

    /// Shows each way to write an address, and that what is no address is named.
    #[test]
    fn addresses_are_read() {
        let read = |text: &str| text.parse::<AddressList>().expect(text).addresses;
        let address = |text: &str| text.parse::<SocketAddr>().expect(text);
        assert_eq!(read("127.0.0.1:7411"), [address("127.0.0.1:7411")]);
        assert_eq!(read("[::1]:0"), [address("[::1]:0")]);
        assert_eq!(read("127.0.0.1:1, 127.0.0.2:1,127.0.0.1:1"), ["127.0.0.1:1", "127.0.0.2:1"].map(address));
        assert!(
            read("localhost:7411").iter().all(|address| address.ip().is_loopback() && address.port() == 7411)
        );
        for (text, wanted) in [
            ("", "write HOST:PORT"),
            ("7411", "write HOST:PORT"),
            (":7411", "write HOST:PORT"),
            ("::1:7411x", "write HOST:PORT"),
            ("127.0.0.1:99999", "no port"),
            ("localhost:", "no port"),
            ("no.such.host.invalid:1", "has no address here"),
        ] {
            assert!(
                problem::<AddressList>(text).contains(wanted),
                "{text}: {}",
                problem::<AddressList>(text)
            );
        }
    }

    /// Shows lists of CPUs, and that a core isn't given to two shards.
    #[test]
    fn cores_are_read() {
        assert_eq!("0-2, 8".parse::<CoreList>().expect("a list").0, [0, 1, 2, 8]);
        assert_eq!("3,1".parse::<CoreList>().expect("a list").to_string(), "3,1");
        for text in ["", "a", "3-1", "1-", "-1", "0-999999999"] {
            assert!(problem::<CoreList>(text).contains("no list of CPUs"), "{text}");
        }
        assert!(problem::<CoreList>("0-3,2").contains("CPU 2 stands twice"));
    }

    /// Shows that what this version lacks is refused by name, and that other words are answered by those that there are.
    #[test]
    fn words_are_read() {
        assert!(problem::<PolicyKind>("fifo").contains("none of adaptive, s3-fifo, lru"));
        assert!(problem::<HugePages>("yes").contains("auto, on, off"));
        assert!(problem::<PollMode>("").contains("adaptive, busy"));
        assert!(problem::<LeaseLength>("5s").contains("adaptive, fixed"));
        for wrong in ["10", "20-10", "10-501", "-1-5", "a-b"] {
            assert!(problem::<WatermarkChoice>(wrong).contains("as in 10-20"), "{wrong}");
        }
        assert!(problem::<ShmChoice>("socket").contains("has a slash"));
        assert!(problem::<ShmChoice>(&format!("/{}", "x".repeat(107))).contains("shorter"));
        assert!(problem::<AdminChoice>("on").contains("or `off`"));
    }

    /// Shows that each value prints as it is read.
    #[test]
    fn values_print_as_they_are_read() {
        fn check<T: FromStr<Err = String> + Display>(texts: &[&str]) {
            for text in texts {
                assert_eq!(
                    text.parse::<T>().unwrap_or_else(|problem| panic!("{problem}")).to_string(),
                    *text
                );
            }
        }
        check::<AddressList>(&["127.0.0.1:7411", "[::1]:0, localhost:1"]);
        check::<AdminChoice>(&["off", "127.0.0.1:7412"]);
        check::<ShmChoice>(&["auto", "off", "/run/lanner.sock"]);
        check::<HugePages>(&["auto", "on", "off"]);
        check::<PollMode>(&["adaptive", "busy"]);
        check::<LeaseLength>(&["adaptive", "fixed"]);
        check::<WatermarkChoice>(&["adaptive", "0-0", "10-20", "100-500"]);
        check::<PolicyKind>(&["adaptive", "adaptive:density", "adaptive:recency", "s3-fifo", "lru"]);
    }
}
