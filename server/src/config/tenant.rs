//! Tenants: whose objects are kept apart from whose, who may come in, and which part of the memory each has.

use std::fmt;

use lanner_shared::wire::hello::MAX_TENANT_BYTES;
use serde::{Deserialize, Serialize};

use super::ConfigError;

/// A `[[tenant]]` of the file, as written.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TenantEntry {
    /// Its name; empty for the tenant of clients that name none.
    pub name: String,
    /// The secret that its clients have to know. Without one, whoever reaches the port may come in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// Its part of the memory, as in 0.25. Those without share what the others leave equally.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_share: Option<f64>,
}

/// One tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its name; empty for the tenant of clients that name none.
    pub name: String,
    /// The secret that its clients have to know, if there is one.
    pub token: Option<Token>,
    /// Its part of the memory.
    pub share: Share,
}

/// A secret; shown neither in logs nor in errors.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Token(String);

impl Token {
    /// The secret itself, for the handshake.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl From<&str> for Token {
    fn from(text: &str) -> Token {
        Token(text.to_owned())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(…)")
    }
}

/// A part of a whole, in millionths: more than none, at most all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u32);

impl Share {
    const WHOLE: u32 = 1_000_000;

    /// All of it.
    pub const ALL: Share = Share(Share::WHOLE);

    /// That part of `bytes`, rounded down.
    #[must_use]
    pub fn of(self, bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.0) / u128::from(Share::WHOLE)) as u64
    }

    /// As a fraction of one.
    #[must_use]
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / f64::from(Share::WHOLE)
    }

    fn of_fraction(fraction: f64) -> Option<Share> {
        // A NaN becomes 0.
        let millionths = (fraction * f64::from(Share::WHOLE)).round() as u32;
        (1..=Share::WHOLE).contains(&millionths).then_some(Share(millionths))
    }
}

/// The tenants of the file: those listed; without any, the one of clients that name none, who then has all memory.
pub(super) fn tenants(entries: &[TenantEntry]) -> Result<Vec<Tenant>, ConfigError> {
    if entries.is_empty() {
        return Ok(vec![Tenant { name: String::new(), token: None, share: Share::ALL }]);
    }
    let refused = |problem: String| ConfigError::setting("[[tenant]]", problem);
    let mut given = 0;
    for (index, TenantEntry { name, token, memory_share }) in entries.iter().enumerate() {
        if name.len() > MAX_TENANT_BYTES || name.contains('\0') {
            return Err(refused(format!(
                "name '{name}' is no name: at most {MAX_TENANT_BYTES} bytes, none of them zero"
            )));
        }
        if entries[..index].iter().any(|other| other.name == *name) {
            return Err(refused(format!("name '{name}' stands twice: give each tenant a name of its own")));
        }
        if token.as_ref().is_some_and(|token| token.as_bytes().is_empty()) {
            return Err(refused(format!("token of '{name}' is empty: write a secret, or leave it out")));
        }
        if let Some(share) = memory_share {
            given += Share::of_fraction(*share)
                .ok_or_else(|| {
                    refused(format!("memory-share {share} of '{name}' is no part: write one such as 0.25"))
                })?
                .0;
        }
    }
    let without = entries.iter().filter(|entry| entry.memory_share.is_none()).count() as u32;
    // Three thirds written as 0.333334 are one too.
    let left = (Share::WHOLE + entries.len() as u32)
        .checked_sub(given)
        .map(|left| left.min(Share::WHOLE.saturating_sub(given)));
    let rest = match (left, without) {
        (None, _) => return Err(refused("the memory-shares add up to more than 1: lower some".to_owned())),
        (Some(_), 0) => 0,
        (Some(left), without) if left / without > 0 => left / without,
        _ => {
            return Err(refused(
                "the memory-shares leave nothing for the tenants without one: lower some".to_owned(),
            ));
        }
    };
    let share = |entry: &TenantEntry| entry.memory_share.and_then(Share::of_fraction).unwrap_or(Share(rest));
    let tenant = |entry: &TenantEntry| Tenant {
        name: entry.name.clone(),
        token: entry.token.clone(),
        share: share(entry),
    };
    Ok(entries.iter().map(tenant).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, memory_share: Option<f64>) -> TenantEntry {
        TenantEntry { name: name.to_owned(), token: None, memory_share }
    }

    fn shares(entries: &[TenantEntry]) -> Vec<f64> {
        tenants(entries).expect("fine").iter().map(|tenant| tenant.share.fraction()).collect()
    }

    /// Shows who gets which part: what is written, equal parts of what is left, all for the only one.
    #[test]
    fn shares_add_up() {
        assert_eq!(shares(&[]), [1.0]);
        assert_eq!(shares(&[entry("a", None)]), [1.0]);
        assert_eq!(shares(&[entry("a", Some(0.5)), entry("b", None), entry("", None)]), [0.5, 0.25, 0.25]);
        let third = Some(0.333_334);
        assert_eq!(shares(&[entry("a", third), entry("b", third), entry("c", third)]).len(), 3);
        assert_eq!(Share::ALL.of(u64::MAX), u64::MAX);
    }

    /// Shows that each mistake is named.
    #[test]
    fn mistakes_are_named() {
        let check = |entries: &[TenantEntry], wanted: &str| {
            let error = tenants(entries).expect_err(wanted).to_string();
            assert!(error.contains(wanted) && !error.contains('\n'), "{error}");
        };
        check(&[entry("a", None), entry("a", None)], "stands twice");
        check(&[entry(&"x".repeat(64), None)], "at most 63 bytes");
        check(&[entry("a", Some(0.6)), entry("b", Some(0.6))], "more than 1");
        check(&[entry("a", Some(1.0)), entry("b", None)], "leave nothing");
        for share in [0.0, -1.0, 1.5, f64::NAN] {
            check(&[entry("a", Some(share))], "is no part");
        }
        check(&[TenantEntry { token: Some("".into()), ..entry("a", None) }], "is empty");
    }

    /// Shows that a secret isn't printed by accident.
    #[test]
    fn a_token_is_not_shown() {
        assert!(!format!("{:?}", Token::from("secret")).contains("secret"));
    }
}
