//! Reads a layer of settings: a file, or the environment.
//!
//! An error names the setting and the form that it must have. It shows no part of a file and no
//! value, because they may hold passwords.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use toml::{Table, Value};

use super::Settings;

const TEXT: &str = "a text";
const TEXTS: &str = "a text, or a list of texts";
const SPAN: &str = "a span of time, as \"2.5s\" or \"250ms\"";
const SWITCH: &str = "true or false";

/// Every setting of a file, with its form.
const FORMS: &[(&str, &str)] = &[
    ("node", TEXTS),
    ("urls", TEXTS),
    ("sentinel", TEXTS),
    ("master", TEXTS),
    ("group", "tables with `sentinel` and `master`, each a text or a list of texts"),
    ("embedded", SWITCH),
    ("map", "a list of pairs of texts: [[\"reported:port\", \"reached:port\"]]"),
    ("prefix", TEXT),
    ("ttl", SPAN),
    ("max_ttl", SPAN),
    ("clock_error", SPAN),
    ("node_deadline", SPAN),
    ("timeout", SPAN),
    ("user", TEXT),
    ("password_env", TEXT),
    ("password_file", TEXT),
    ("sentinel_user", TEXT),
    ("sentinel_password_env", TEXT),
    ("sentinel_password_file", TEXT),
    ("tls", SWITCH),
    ("sentinel_tls", SWITCH),
    ("cacert", TEXT),
    ("cert", TEXT),
    ("key", TEXT),
];

/// Variables and the settings that they give. The library's own names come last, so that the
/// program's are preferred.
const VARIABLES: &[(&str, &str)] = &[
    ("PALISADE_NODE", "node"),
    ("PALISADE_SENTINEL", "sentinel"),
    ("PALISADE_MASTER", "master"),
    ("PALISADE_PREFIX", "prefix"),
    ("PALISADE_TTL", "ttl"),
    ("PALISADE_MAX_TTL", "max_ttl"),
    ("PALISADE_CLOCK_ERROR", "clock_error"),
    ("PALISADE_NODE_DEADLINE", "node_deadline"),
    ("PALISADE_TIMEOUT", "timeout"),
    ("PALISADE_USER", "user"),
    ("PALISADE_PASSWORD_FILE", "password_file"),
    ("PALISADE_SENTINEL_USER", "sentinel_user"),
    ("PALISADE_SENTINEL_PASSWORD_FILE", "sentinel_password_file"),
    ("PALISADE_TLS", "tls"),
    ("PALISADE_SENTINEL_TLS", "sentinel_tls"),
    ("PALISADE_CACERT", "cacert"),
    ("PALISADE_CERT", "cert"),
    ("PALISADE_KEY", "key"),
    ("PALISADE_URLS", "urls"),
    ("PALISADE_USERNAME", "user"),
    ("PALISADE_SENTINEL_USERNAME", "sentinel_user"),
];

/// Variables that hold a password, the setting that names such a variable, and the one of a file in
/// its place.
const SECRETS: &[(&str, &str, &str)] = &[
    (super::PASSWORD, "password_env", "password_file"),
    (super::SENTINEL_PASSWORD, "sentinel_password_env", "sentinel_password_file"),
];

/// The settings of a TOML file.
pub(super) fn from_file(path: &Path) -> Result<Settings, String> {
    let file = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| format!("{file}: {e}"))?;
    of_text(&text).map_err(|why| format!("{file}: {why}"))
}

/// The settings of a TOML text.
pub(super) fn of_text(text: &str) -> Result<Settings, String> {
    let table: Table = toml::from_str(text).map_err(|e: toml::de::Error| {
        let before = e.span().map_or("", |span| text.get(..span.start).unwrap_or_default());
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("line {line}, column {column} is not TOML: {}", e.message())
    })?;
    of_table(table, |setting| format!("`{setting}`"))
}

/// The settings of the environment. Every value is a text, also one that looks like a number.
pub(super) fn from_environment(
    read: impl Fn(&str) -> Option<OsString>,
) -> Result<Settings, String> {
    let mut table = Table::new();
    let nodes = ["node", "sentinel", "master"];
    for (variable, setting) in VARIABLES {
        let Some(value) = read(variable).filter(|value| !value.is_empty()) else { continue };
        let names_nodes = *setting == "urls" && nodes.iter().any(|node| table.contains_key(*node));
        if names_nodes || table.contains_key(*setting) {
            continue;
        }
        let value = value.into_string().map_err(|_| format!("${variable} must be UTF-8"))?;
        table.insert((*setting).to_owned(), Value::String(value));
    }
    for (variable, setting, file) in SECRETS {
        if !table.contains_key(*file) && read(variable).is_some_and(|value| !value.is_empty()) {
            table.insert((*setting).to_owned(), Value::String((*variable).to_owned()));
        }
    }
    of_table(table, |setting| {
        let variable = VARIABLES.iter().find(|(_, of)| *of == setting);
        variable.map_or_else(|| setting.to_owned(), |(name, _)| format!("${name}"))
    })
}

fn of_table(table: Table, named: impl Fn(&str) -> String) -> Result<Settings, String> {
    for (setting, value) in &table {
        let Some((_, form)) = FORMS.iter().find(|(known, _)| known == setting) else {
            let all: Vec<_> = FORMS.iter().map(|(known, _)| *known).collect();
            return Err(format!("{setting:?} is no setting; there are {}", all.join(", ")));
        };
        let alone = Table::from_iter([(setting.clone(), value.clone())]);
        if alone.try_into::<Settings>().is_err() {
            return Err(format!("{} must be {form}", named(setting)));
        }
    }
    table.try_into().map_err(|_| "the settings contradict each other".to_owned())
}

/// Texts, as a list or separated by commas or, as the library has its addresses, by white space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct List(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Either {
            One(String),
            Many(Vec<String>),
        }
        let texts = match Either::deserialize(de)? {
            // Addresses have commas of their own, and are taken apart by their scheme.
            Either::One(text) if text.contains("://") => vec![text],
            Either::One(text) => text.split(',').map(|part| part.trim().to_owned()).collect(),
            Either::Many(texts) => texts,
        };
        Ok(Self(texts.into_iter().filter(|text| !text.is_empty()).collect()))
    }
}

/// `true` or `false`, also as a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Switch(pub(crate) bool);

impl<'de> Deserialize<'de> for Switch {
    fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        struct Reads;
        impl Visitor<'_> for Reads {
            type Value = Switch;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(SWITCH)
            }
            fn visit_bool<E: de::Error>(self, is: bool) -> Result<Switch, E> {
                Ok(Switch(is))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Switch, E> {
                text.parse().map(Switch).map_err(E::custom)
            }
        }
        de.deserialize_any(Reads)
    }
}
