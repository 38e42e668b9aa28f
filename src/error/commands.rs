//! Commands of the program `palisade`, whole, for the texts that operators read.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use crate::config::RETENTION;

/// The commands of the program `palisade` for the nodes of one handle: each is whole and can be
/// typed as it is. A node is named by its [`url`](crate::node::spi::LockNode::url), which has no
/// login. The program takes passwords from the environment or from files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commands {
    parts: Arc<Parts>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Parts {
    nodes: String,
    keys: String,
    lower: String,
}

impl Commands {
    pub(crate) fn new(urls: impl Iterator<Item = Arc<str>>, prefix: &str) -> Self {
        let mut nodes: Vec<String> = urls.map(|url| format!("--node {}", quoted(&url))).collect();
        if !nodes.is_empty() && nodes.len().is_multiple_of(2) {
            nodes.push("--allow-even-nodes".to_owned());
        }
        let mut keys = String::new();
        if !prefix.is_empty() {
            let _ = write!(keys, " --prefix {}", quoted(prefix));
        }
        Self { parts: Arc::new(Parts { nodes: nodes.join(" "), keys, ..Parts::default() }) }
    }

    pub(crate) fn with_terms(&self, max_ttl: Duration, clock_error: Duration) -> Self {
        let lower = format!(" --max-ttl {} --clock-error {}", span(max_ttl), span(clock_error));
        Self { parts: Arc::new(Parts { lower, ..Parts::clone(&self.parts) }) }
    }

    pub(crate) fn with_retention(&self, retention: Duration) -> Self {
        if retention <= RETENTION {
            return self.clone();
        }
        let secs = retention.as_secs() + u64::from(retention.subsec_nanos() > 0);
        let keys = format!("{} --retention {secs}s", self.parts.keys);
        Self { parts: Arc::new(Parts { keys, ..Parts::clone(&self.parts) }) }
    }

    /// Returns the command that marks all nodes as new. It is for a deployment that never had data.
    pub fn init(&self) -> String {
        format!("palisade init --new {}", self.parts.nodes)
    }

    /// Returns the command that lists the losses of data because of which keys wait, and the
    /// commands that decide about them.
    pub fn incidents(&self) -> String {
        format!("palisade idem incidents {}{}", self.parts.nodes, self.parts.keys)
    }

    /// Returns the command that lets all keys run that wait for a decision about a loss of data.
    /// The command first shows what it is about to decide.
    pub fn run_all(&self) -> String {
        self.decide_all("--run --reason 'none took effect'")
    }

    /// Returns the command that parks all keys that wait for a decision about a loss of data: a
    /// person has to look at each. The command first shows what it is about to decide.
    pub fn park_all(&self) -> String {
        self.decide_all("--park --reason 'some took effect'")
    }

    /// Returns the command that lets the keys of a namespace run that wait because of these losses.
    /// `losses` are their [numbers](crate::node::Loss::names).
    pub fn run(&self, namespace: &str, losses: &str) -> String {
        self.decide(namespace, losses, "--run")
    }

    /// Returns the command that lets the keys of a namespace run although an earlier decision about
    /// these losses parked them.
    pub fn run_parked(&self, namespace: &str, losses: &str) -> String {
        self.decide(namespace, losses, "--run --replace")
    }

    /// Lowers what all clients share to what this one asks for. The command says what it would do,
    /// and what has to have ended before.
    pub(crate) fn lower(&self) -> String {
        format!("palisade settings --lower{} {}", self.parts.lower, self.parts.nodes)
    }

    fn decide(&self, namespace: &str, losses: &str, what: &str) -> String {
        let (namespace, Parts { nodes, keys, .. }) = (quoted(namespace), &*self.parts);
        format!(
            "palisade idem decide --namespace {namespace} --loss {losses} {what} --reason 'none \
             took \
             effect' {nodes}{keys}"
        )
    }

    fn decide_all(&self, what: &str) -> String {
        format!("palisade idem decide --all {what} {}{}", self.parts.nodes, self.parts.keys)
    }

    pub(crate) fn first_step(&self) -> String {
        format!(
            "if the whole deployment is new: `{}` (in tests: `trust_fresh(true)`); if it had data \
             before, do not: `{}`",
            self.init(),
            self.incidents()
        )
    }
}

/// Rounded up.
fn span(d: Duration) -> String {
    let ms = d.as_micros().div_ceil(1_000);
    if ms.is_multiple_of(1_000) { format!("{}s", ms / 1_000) } else { format!("{ms}ms") }
}

pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,@+%=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_whole_and_safe_to_type() {
        let of =
            |urls: &[&str], prefix| Commands::new(urls.iter().map(|url| (*url).into()), prefix);
        let one = of(&["redis://10.0.0.1:7890"], "");
        assert_eq!(one.init(), "palisade init --new --node redis://10.0.0.1:7890");
        assert_eq!(one.incidents(), "palisade idem incidents --node redis://10.0.0.1:7890");
        let two =
            of(&["sentinel://s1:26379,s2:26379/a?tls=true", "unix:///run/it's here"], "shop:");
        let all =
            r"--node 'sentinel://s1:26379,s2:26379/a?tls=true' --node 'unix:///run/it'\''s here'";
        let all = format!("{all} --allow-even-nodes");
        assert_eq!(two.init(), format!("palisade init --new {all}"));
        let week = two.with_retention(Duration::from_millis(604_799_001));
        assert_eq!(
            week.run_all(),
            format!(
                "palisade idem decide --all --run --reason 'none took effect' {all} --prefix shop: \
                 --retention 604800s"
            )
        );
        assert_eq!(two.with_retention(RETENTION), two);
        let parked = one.run_parked("a b", "20261123-140321.417,20261123-140402.180");
        assert_eq!(
            parked,
            "palisade idem decide --namespace 'a b' --loss \
             20261123-140321.417,20261123-140402.180 --run --replace --reason 'none took effect' \
             --node redis://10.0.0.1:7890"
        );
    }
}
