//! `lanner stat --namespace`: the name spaces of engines' caches, what each stands for, and how much of the store is theirs.
//!
//! The connectors of `client/python` leave a description of each name space under [`DESCRIPTIONS`] and begin their keys with its
//! name: `ENGINE:DIGEST/…`, of a chain's blocks behind their placement tag (`{…}ENGINE:DIGEST/…`).

use bytesize::ByteSize;
use lanner_client::Client;
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::store;
use crate::exit::Failure;

/// The keys of the descriptions begin with this, and end in the name.
const DESCRIPTIONS: &[u8] = b"lanner:namespace:";
/// Hexadecimal digits of a digest.
const DIGEST_DIGITS: usize = 32;

/// What is the store's of one name space.
#[derive(Debug, Default, PartialEq, Eq)]
struct Namespace {
    objects: u64,
    value_bytes: u64,
    description: Option<String>,
}

/// Prints all name spaces. Every key of the tenant is listed for it.
///
/// # Errors
/// What the store says, output that can't be written.
pub fn run(client: &Client, json: bool) -> Result<(), Failure> {
    let mut all: BTreeMap<String, Namespace> = BTreeMap::new();
    let mut described = Vec::new();
    client.list(b"", |listed| {
        if let Some(name) = listed.key.strip_prefix(DESCRIPTIONS) {
            described.push(String::from_utf8_lossy(name).into_owned());
        } else if let Some(name) = namespace_of(&listed.key) {
            let namespace = all.entry(name.to_owned()).or_default();
            namespace.objects += 1;
            namespace.value_bytes += listed.value_bytes;
        }
        true
    })?;
    for name in described {
        let key = [DESCRIPTIONS, name.as_bytes()].concat();
        let description = client.get(&key).ok().map(|text| String::from_utf8_lossy(&text).into_owned());
        all.entry(name).or_default().description = description;
    }
    if json {
        return store::print_json(
            &all.iter().map(|(name, namespace)| as_json(name, namespace)).collect::<Vec<_>>(),
        );
    }
    store::print(all.iter().map(|(name, namespace)| as_text(name, namespace)).collect::<String>().as_bytes())
}

/// The name space that a key belongs to.
fn namespace_of(key: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(key).ok()?;
    let behind_tag =
        text.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or(text, |(_, behind)| behind);
    let (name, _) = behind_tag.split_once('/')?;
    let (engine, digest) = name.split_once(':')?;
    let is_digest = digest.len() == DIGEST_DIGITS && digest.bytes().all(|digit| digit.is_ascii_hexdigit());
    let is_engine = !engine.is_empty() && engine.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_engine && is_digest).then_some(name)
}

fn as_json(name: &str, namespace: &Namespace) -> Value {
    let description = namespace
        .description
        .as_deref()
        .map(|text| serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned())));
    json!({
        "namespace": name,
        "objects": namespace.objects,
        "value_bytes": namespace.value_bytes,
        "description": description,
    })
}

fn as_text(name: &str, namespace: &Namespace) -> String {
    let description =
        namespace.description.as_deref().unwrap_or("(its description isn't in the store any more)");
    let bytes = ByteSize(namespace.value_bytes).display().iec();
    format!("{name}: {} objects, {bytes}\n  {description}\n", namespace.objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_belong_to_their_name_space() {
        let digest = "0123456789abcdef0123456789abcdef";
        let name = format!("vllm:{digest}");
        for key in [
            format!("{name}/page"),
            format!("{{tag}}{name}/page"),
            format!("{name}/{{page}}:0"),
            format!("{name}/a/b"),
        ] {
            assert_eq!(namespace_of(key.as_bytes()), Some(name.as_str()), "{key}");
        }
        for key in [
            "",
            "k",
            "a/b",
            "a:b/c",
            &name,
            &format!(":{digest}/x"),
            &format!("{{tag{name}/x"),
            "tensor:w:p0/x",
        ] {
            assert_eq!(namespace_of(key.as_bytes()), None, "{key}");
        }
        assert_eq!(namespace_of(b"\xff:/"), None);
    }

    #[test]
    fn a_name_space_is_shown_with_what_it_stands_for() {
        let mut namespace =
            Namespace { objects: 2, value_bytes: 4096, description: Some("{\"dtype\":\"float16\"}".into()) };
        assert_eq!(as_text("e:d", &namespace), "e:d: 2 objects, 4.0 KiB\n  {\"dtype\":\"float16\"}\n");
        assert_eq!(as_json("e:d", &namespace)["description"]["dtype"], "float16");
        namespace.description = None;
        assert!(as_text("e:d", &namespace).contains("any more"));
        assert_eq!(as_json("e:d", &namespace)["description"], Value::Null);
    }
}
