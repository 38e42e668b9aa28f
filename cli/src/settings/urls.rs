//! Nodes by their addresses: several in one text, and those of the library.

use palisade_ops::Deployment;

use super::List;

/// The addresses of texts that may hold several, separated by commas or white space. A password may
/// have commas, so an address ends only where another one's scheme begins.
pub(super) fn apart(texts: &List) -> List {
    let mut all = Vec::new();
    for text in &texts.0 {
        let mut rest = text.as_str();
        while let Some(end) = next_begins(rest) {
            all.push(rest[..end].trim_end_matches([',', ' ', '\t', '\n']).to_owned());
            rest = rest[end..].trim_start_matches([',', ' ', '\t', '\n']);
        }
        all.push(rest.trim().trim_end_matches(',').to_owned());
    }
    List(all.into_iter().filter(|url| !url.is_empty()).collect())
}

/// The library's addresses: they stand between white space.
pub(super) fn words(texts: &List) -> List {
    List(texts.0.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned).collect())
}

/// Where, after a separator, another scheme begins.
fn next_begins(text: &str) -> Option<usize> {
    text.match_indices([',', ' ', '\t', '\n']).map(|(at, _)| at).find(|at| {
        let next = text[*at..].trim_start_matches([',', ' ', '\t', '\n']);
        let scheme = next.split_once("://").map_or("", |(scheme, _)| scheme);
        let known = |c: char| c.is_ascii_alphanumeric() || c == '+';
        !scheme.is_empty() && scheme.len() < 16 && scheme.chars().all(known)
    })
}

/// The library's addresses as nodes that are operated on. Options behind a `?` are an
/// application's: they change nothing about the servers.
pub(super) fn named(urls: &List, mut deployment: Deployment) -> Result<Deployment, String> {
    for (n, url) in words(urls).0.iter().enumerate() {
        let refuse = |why: &str| {
            Err(format!("node URL {} (PALISADE_URLS, or `urls` of the file): {why}", n + 1))
        };
        let (place, _) = url.split_once('?').unwrap_or((url, ""));
        if url.starts_with("unix://") {
            deployment = deployment.node(url);
        } else if let Some(group) = place.strip_prefix("sentinel://") {
            if group.contains('@') || url.contains('?') {
                return refuse(
                    "a group with a login or options of its own can be used by commands that hold \
                     a lock only; here name it by --sentinel and --master, with --user and \
                     PALISADE_PASSWORD",
                );
            }
            let Some((hosts, master)) = group.split_once('/') else {
                return refuse("write sentinel://host:port,host:port/name-of-the-master");
            };
            let port = |host: &str| {
                let behind = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
                let has_port = behind.contains(':');
                if has_port { host.to_owned() } else { format!("{host}:26379") }
            };
            deployment = deployment.groups(hosts.split(',').map(port), [master]);
        } else if place.starts_with("memory://") {
            return refuse("it is in a process's memory: there is no server to look at");
        } else {
            deployment = deployment.node(place);
        }
    }
    Ok(deployment)
}
