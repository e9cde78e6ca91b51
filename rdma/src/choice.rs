//! What `--rdma` and the `rdma` of a client's URL say: `auto`, `off`, or `DEVICE[:PORT[:GID]]`.

use std::fmt::{self, Display};
use std::str::FromStr;

/// Whether RDMA is wanted, and over which device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RdmaChoice {
    /// Where there is a device for it.
    #[default]
    Auto,
    /// Not at all.
    Off,
    /// This device or none.
    Device(DeviceChoice),
}

/// A device that somebody has named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChoice {
    /// As `ibv_devices` lists it: `mlx5_0`.
    pub device: Box<str>,
    /// Its port, counted from 1; `None` for the first active one.
    pub port: Option<u8>,
    /// Index in the port's table of GIDs; `None` for the one that fits best.
    pub gid_index: Option<u8>,
}

/// The longest name of a device that the kernel allows.
const MAX_NAME_BYTES: usize = 63;

impl FromStr for RdmaChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<RdmaChoice, String> {
        match text {
            "auto" => return Ok(RdmaChoice::Auto),
            "off" => return Ok(RdmaChoice::Off),
            _ => {}
        }
        let mut parts = text.split(':');
        let device = parts.next().unwrap_or_default();
        let is_name = |name: &str| {
            !name.is_empty()
                && name.len() <= MAX_NAME_BYTES
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
        };
        if !is_name(device) || device.starts_with('.') {
            return Err(format!(
                "'{text}' is none of auto, off, DEVICE[:PORT[:GID]]; 'ibv_devices' or 'lanner check' lists devices"
            ));
        }
        let port = parts.next().map(|port| number(port, "port", 1)).transpose()?;
        let gid_index = parts.next().map(|index| number(index, "GID index", 0)).transpose()?;
        if parts.next().is_some() {
            return Err(format!(
                "'{text}' has more parts than DEVICE:PORT:GID; the GID is an index in the port's table"
            ));
        }
        Ok(RdmaChoice::Device(DeviceChoice { device: device.into(), port, gid_index }))
    }
}

fn number(text: &str, what: &str, least: u8) -> Result<u8, String> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse::<u8>().ok().filter(|number| is_number && *number >= least);
    number.ok_or_else(|| format!("{what} '{text}' is no number from {least} to 255"))
}

impl Display for RdmaChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RdmaChoice::Auto => f.write_str("auto"),
            RdmaChoice::Off => f.write_str("off"),
            RdmaChoice::Device(DeviceChoice { device, port, gid_index }) => {
                f.write_str(device)?;
                // A GID can't be said without its port.
                match (port, gid_index) {
                    (None, None) => Ok(()),
                    (port, None) => write!(f, ":{}", port.unwrap_or(1)),
                    (port, Some(index)) => write!(f, ":{}:{index}", port.unwrap_or(1)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn device(device: &str, port: Option<u8>, gid_index: Option<u8>) -> RdmaChoice {
        RdmaChoice::Device(DeviceChoice { device: device.into(), port, gid_index })
    }

    #[test]
    fn what_people_write() {
        for (text, choice) in [
            ("auto", RdmaChoice::Auto),
            ("off", RdmaChoice::Off),
            ("mlx5_0", device("mlx5_0", None, None)),
            ("mlx5_0:2", device("mlx5_0", Some(2), None)),
            ("rxe0:1:3", device("rxe0", Some(1), Some(3))),
            ("rxe0:1:0", device("rxe0", Some(1), Some(0))),
        ] {
            assert_eq!(text.parse::<RdmaChoice>(), Ok(choice.clone()), "{text}");
            assert_eq!(choice.to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, says) in [
            ("", "DEVICE[:PORT[:GID]]"),
            ("../x", "DEVICE[:PORT[:GID]]"),
            ("a b", "DEVICE[:PORT[:GID]]"),
            (":1", "DEVICE[:PORT[:GID]]"),
            ("mlx5_0:", "port ''"),
            ("mlx5_0:0", "port '0'"),
            ("mlx5_0:+1", "port '+1'"),
            ("mlx5_0:256", "port '256'"),
            ("mlx5_0:1:x", "GID index 'x'"),
            ("mlx5_0:1:256", "GID index '256'"),
            ("mlx5_0:1:2:3", "more parts"),
        ] {
            let error = text.parse::<RdmaChoice>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_understood_is_written_as_it_was_read(text in "[a-z0-9_:.]{0,12}") {
            if let Ok(choice) = text.parse::<RdmaChoice>() {
                let again = choice.to_string().parse::<RdmaChoice>();
                prop_assert_eq!(again, Ok(choice));
            }
        }
    }
}
