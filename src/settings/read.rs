//! Reads settings from texts: environment variables, a file, the arguments of a program.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Settings, span};
use crate::error::ConfigError;

const VARIABLES: &str = "PALISADE_";

/// The names of all settings: `ttl` in a file, `PALISADE_TTL` in the environment. A later one
/// replaces what an earlier one says about the same thing (`password_file`).
pub const SETTINGS: [&str; 20] = [
    "urls",
    "map",
    "username",
    "password",
    "password_file",
    "sentinel_username",
    "sentinel_password",
    "sentinel_password_file",
    "cacert",
    "cert",
    "key",
    "ttl",
    "max_ttl",
    "node_deadline",
    "clock_error",
    "drift_ppm",
    "prefix",
    "deployment",
    "allow_even_nodes",
    "timeout",
];

const PROGRAM: [&str; 12] = [
    "attempt",
    "backfilled",
    "config",
    "console_act_token",
    "console_read_token",
    "deadline_ms",
    "fencing_token",
    "name",
    "requested",
    "slot",
    "stream_url",
    "tick",
];

/// A setting in a file.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a setting is a text, a number, true or false, or a list of texts")]
pub(super) enum Written {
    Text(String),
    Yes(bool),
    /// A double has no exact value for each of these.
    Whole(u64),
    Number(f64),
    List(Vec<Word>),
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Word {
    One(String),
    Pair(String, String),
}

impl Written {
    fn text(self, name: &str) -> Result<String, String> {
        match (self, ["urls", "map"].contains(&name)) {
            (Self::Text(text), _) => Ok(text),
            (Self::Yes(yes), false) => Ok(yes.to_string()),
            (Self::Whole(number), false) => Ok(number.to_string()),
            (Self::Number(number), false) => Ok(number.to_string()),
            (Self::List(words), true) => {
                let text = |word| match word {
                    Word::One(text) => text,
                    Word::Pair(from, to) => format!("{from}={to}"),
                };
                Ok(words.into_iter().map(text).collect::<Vec<_>>().join(" "))
            }
            (_, true) => Err(format!("`{name}` is one text or a list of texts")),
            (_, false) => Err(format!("`{name}` is one text")),
        }
    }
}

impl TryFrom<BTreeMap<String, Option<Written>>> for Settings {
    type Error = String;

    fn try_from(all: BTreeMap<String, Option<Written>>) -> Result<Self, String> {
        let is_given = |name: &str| matches!(all.get(name), Some(Some(_)));
        one_of_each(is_given).map_err(|e| e.to_string())?;
        let mut of = Self::default();
        for (name, written) in all {
            if !SETTINGS.contains(&&*name) {
                return Err(format!("unknown field `{name}`, expected {}", SETTINGS.join(", ")));
            }
            if let Some(written) = written {
                of.set(&name, &written.text(&name)?).map_err(|e| e.to_string())?;
            }
        }
        Ok(of)
    }
}

/// The file would win over the password beside it, or the other way round: nobody can know.
fn one_of_each(is_given: impl Fn(&str) -> bool) -> Result<(), ConfigError> {
    for [own, file] in
        [["password", "password_file"], ["sentinel_password", "sentinel_password_file"]]
    {
        if is_given(own) && is_given(file) {
            return Err(ConfigError::new(
                own,
                "not shown",
                format!("give it or `{file}`, not both"),
            ));
        }
    }
    Ok(())
}

/// Returns a sentence for each variable that looks like a setting and is none, so that nothing
/// reads it.
pub fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let known = |name: &str| {
        let name = name.to_lowercase();
        SETTINGS.iter().chain(&PROGRAM).any(|known| *known == name)
    };
    let ours = names.filter(|name| name.starts_with(VARIABLES));
    let unknown = ours.filter(|name| !known(&name[VARIABLES.len()..]));
    let all = SETTINGS.map(variable).join(", ");
    unknown.map(|name| format!("{name} is no setting, so it is ignored; there are {all}")).collect()
}

/// Returns the names of the environment variables that contain a password.
pub fn secret_variables() -> Vec<String> {
    let has_login = std::env::var_os(variable("urls")).is_some_and(|urls| {
        let urls = urls.to_string_lossy();
        urls.contains('@') || urls.contains("pass")
    });
    let urls = has_login.then_some("urls");
    ["password", "sentinel_password"].into_iter().chain(urls).map(variable).collect()
}

/// Returns the environment variable of a setting.
pub fn variable(name: &str) -> String {
    format!("{VARIABLES}{}", name.to_uppercase())
}

pub(super) fn of_environment(e: ConfigError) -> ConfigError {
    let (name, place) = match e.field() {
        "node" => ("urls", ""),
        "drift" => ("drift_ppm", ""),
        name => name.split_at(name.find(',').unwrap_or(name.len())),
    };
    let named = format!("{}{place}", variable(name));
    e.named(named).with_rule(|rule| {
        rule.replace("say `allow_even_nodes()`", "set PALISADE_ALLOW_EVEN_NODES=true")
    })
}

impl Settings {
    /// Sets one setting from a text, as a variable or an argument of a program has it. `name` is
    /// the name of the field. `urls` and `map` have white space between their parts.
    ///
    /// ```
    /// # fn main() -> Result<(), palisade::ConfigError> {
    /// let mut settings = palisade::Settings::new(["memory://"]);
    /// settings.set("ttl", "1m 30s")?;
    /// assert_eq!(settings.build()?.config().ttl.as_secs(), 90);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`] with the name, the text (passwords are hidden) and the accepted form.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), ConfigError> {
        let refused = |rule| ConfigError::new(name.to_owned(), format!("{text:?}"), rule);
        let span = || span::parse(text).map(Some).ok_or_else(|| refused(span::FORM));
        let (words, own) = (text.split_whitespace(), || Some(text.to_owned()));
        let file = || Some(text.into());
        match name {
            "urls" => self.urls = words.map(str::to_owned).collect(),
            "map" => {
                let pair = |pair: &str| {
                    let (from, to) = pair.split_once('=')?;
                    Some((from.to_owned(), to.to_owned()))
                };
                let map = words.map(pair).collect::<Option<_>>();
                self.map = map.ok_or_else(|| refused("write host:port=host:port"))?;
            }
            "username" => self.username = own(),
            "password" => (self.password, self.password_file) = (own(), None),
            "password_file" => (self.password, self.password_file) = (None, file()),
            "sentinel_username" => self.sentinel_username = own(),
            "sentinel_password" => {
                (self.sentinel_password, self.sentinel_password_file) = (own(), None);
            }
            "sentinel_password_file" => {
                (self.sentinel_password, self.sentinel_password_file) = (None, file());
            }
            "cacert" => self.cacert = file(),
            "cert" => self.cert = file(),
            "key" => self.key = file(),
            "ttl" => self.ttl = span()?,
            "max_ttl" => self.max_ttl = span()?,
            "node_deadline" => self.node_deadline = span()?,
            "clock_error" => self.clock_error = span()?,
            "drift_ppm" => {
                self.drift_ppm = Some(text.parse().map_err(|_| refused("a whole number"))?);
            }
            "prefix" => self.prefix = own(),
            "deployment" => self.deployment = own(),
            "allow_even_nodes" => {
                self.allow_even_nodes = text.parse().map_err(|_| refused("true or false"))?;
            }
            "timeout" => self.timeout = span()?,
            _ => return Err(ConfigError::new(name.to_owned(), "not known", "no such setting")),
        }
        Ok(())
    }

    /// Reads settings from environment variables. The name of a variable is `PALISADE_` and the
    /// name of the field in capital letters: `PALISADE_URLS` (required; addresses separated by
    /// white space), `PALISADE_TTL` and so on.
    ///
    /// Another variable of this form is ignored, with a warning in the log, unless it is one of the
    /// program `palisade`.
    ///
    /// # Errors
    /// [`ConfigError`] with the variable, its value (passwords are hidden) and the accepted form.
    pub fn from_env() -> Result<Self, ConfigError> {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        for unknown in unknown_variables(names) {
            tracing::warn!("{unknown}");
        }
        Self::from_variables(of_process)
    }

    /// Replaces the settings that the environment has. The variables are those of
    /// [`from_env`](Self::from_env), and none is required.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn with_env(self) -> Result<Self, ConfigError> {
        self.with_variables(of_process)
    }

    pub(super) fn from_variables(
        read: impl Fn(&str) -> Result<Option<String>, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let settings = Self::default().with_variables(read)?;
        if settings.urls.is_empty() {
            let rule = "write the nodes' addresses, as redis://host:6379 or \
                        sentinel://host:26379,host:26379/name-of-the-master";
            return Err(ConfigError::new(variable("urls"), "not set", rule));
        }
        Ok(settings)
    }

    pub(super) fn with_variables(
        mut self,
        read: impl Fn(&str) -> Result<Option<String>, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let mut given = BTreeMap::new();
        for name in SETTINGS {
            let text = read(&variable(name))?;
            // A variable that is set to nothing takes away nothing that the lower layers give. But
            // a user may have an empty password.
            if let Some(text) = text.filter(|t| !t.is_empty() || name.ends_with("password")) {
                given.insert(name, text);
            }
        }
        one_of_each(|name| given.contains_key(name)).map_err(of_environment)?;
        for (name, text) in given {
            self.set(name, &text).map_err(of_environment)?;
        }
        Ok(self)
    }
}

fn of_process(name: &str) -> Result<Option<String>, ConfigError> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(ConfigError::new(name.to_owned(), "not shown", "must be UTF-8"))
        }
    }
}
