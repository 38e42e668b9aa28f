//! Maps the redis crate's errors to [`NodeError`]: the fault, and whether the request may have been
//! executed. By the server's error code where possible, because the text differs inside and outside
//! of a script.

use std::io;

use redis::{ErrorKind, RedisError};

use super::script;
use crate::dial::error_text::{error_text, refusal};
use crate::dial::frames::Excess;
use crate::dial::login::NoCredentials;
use crate::error::{Cause, NodeError, NodeFault};
use crate::safe_text::Secrets;
use crate::tls;

const RAISE_MAXMEMORY: &str = "raise maxmemory or remove other data: it keeps and releases what is \
                               held, and grants nothing new";

/// That of [`connecting`], with a hint if the cause may be TLS or missing TLS.
pub(crate) fn opening(e: &RedisError, with_tls: bool, secrets: &Secrets) -> NodeError {
    let known = connecting(e, secrets);
    let hint = match known.fault() {
        NodeFault::Unreachable => tls::hint(e, with_tls),
        NodeFault::Protocol if !with_tls => Some(tls::GARBLED),
        _ => None,
    };
    match hint {
        Some(hint) => {
            NodeError::not_executed(known.fault(), format!("{hint}: {}", error_text(e, secrets)))
                .because(cause(e, secrets))
        }
        None => known,
    }
}

/// What programs may read: the server's code or the kind of I/O error, never text.
fn cause(e: &RedisError, secrets: &Secrets) -> Option<Cause> {
    if let Some(code) = e.code() {
        return Some(Cause::Server(secrets.clean(code).into()));
    }
    tls::inside::<io::Error>(e).map(|e| Cause::Io(e.kind()))
}

pub(crate) fn connecting(e: &RedisError, secrets: &Secrets) -> NodeError {
    let known = tls::inside::<NoCredentials>(e).map(|why| why.clone().into());
    known.unwrap_or_else(|| while_connecting(e, secrets).because(cause(e, secrets)))
}

fn while_connecting(e: &RedisError, secrets: &Secrets) -> NodeError {
    if let Some(words) = refusal(e, secrets) {
        return NodeError::not_executed(NodeFault::Tls, words);
    }
    if let Some(excess) = tls::inside::<Excess>(e) {
        return NodeError::not_executed(NodeFault::Protocol, excess.why_it_ended());
    }
    let fault = server_fault(e).unwrap_or_else(|| match e.kind() {
        ErrorKind::AuthenticationFailed => NodeFault::Auth,
        ErrorKind::RESP3NotSupported => NodeFault::Unsupported,
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => NodeFault::Protocol,
        _ => NodeFault::Unreachable,
    });
    let unknown = e.detail().filter(|detail| detail.starts_with("unknown command"));
    // The crate has a sentence of its own for a server that does not know HELLO.
    let no_hello = e.kind() == ErrorKind::RESP3NotSupported
        || unknown.is_some_and(|detail| detail.to_ascii_uppercase().contains("HELLO"));
    if no_hello || unknown.is_some() {
        let text = if no_hello { "it does not know HELLO".into() } else { error_text(e, secrets) };
        let words = format!("{text}; at least 6.2.7 is needed, and no command renamed");
        return NodeError::not_executed(NodeFault::Unsupported, words);
    }
    NodeError::not_executed(fault, words(fault, e, secrets))
}

fn words(fault: NodeFault, e: &RedisError, secrets: &Secrets) -> String {
    match fault {
        NodeFault::Auth => {
            format!("{}; set this node's `username` and `password`", error_text(e, secrets))
        }
        NodeFault::NoPermission => {
            let what = lacking(e).unwrap_or_else(|| "what is missing".to_owned());
            let text = error_text(e, secrets);
            format!(
                "{text}; allow this user {what} (least rights: users-data.acl in sentinel-conf)"
            )
        }
        NodeFault::Server if e.code() == Some("OOM") => {
            format!("{}; {RAISE_MAXMEMORY}", error_text(e, secrets))
        }
        _ => error_text(e, secrets),
    }
}

/// Returns the text of an error about a right that the user lacks; `None` for another error.
pub fn missing_right(e: &RedisError, secrets: &Secrets) -> Option<String> {
    let fault = server_fault(e).filter(|fault| *fault == NodeFault::NoPermission)?;
    Some(words(fault, e, secrets))
}

pub(super) fn no_memory() -> NodeError {
    let detail = "OOM command not allowed when used memory > 'maxmemory'";
    NodeError::not_executed(NodeFault::Server, format!("{detail}; {RAISE_MAXMEMORY}"))
        .because(Some(Cause::Server("OOM".into())))
}

fn lacking(e: &RedisError) -> Option<String> {
    let detail = e.detail()?;
    if let Some(commands) = lacking_in_script(detail) {
        return Some(commands);
    }
    // "this user has no permissions to access one of the keys used as arguments"; since Redis 7.2
    // and in Valkey "No permissions to access a key".
    if detail.contains("keys") || detail.contains("access a key") {
        return Some("the keys (~…)".to_owned());
    }
    let (_, rest) = detail.split_once("run the '")?;
    let (command, _) = rest.split_once('\'')?;
    let plain = command.bytes().all(|b| b.is_ascii_alphanumeric() || b"|-_".contains(&b));
    plain.then(|| format!("+{command}"))
}

/// A server before Redis 7.2 names only the line of the script, so all commands on that line.
fn lacking_in_script(detail: &str) -> Option<String> {
    let is_ours = [&script::SCRIPT, &script::IN_SLOT].map(|s| detail.contains(s.get_hash()));
    if !detail.contains("run this command") || is_ours == [false; 2] {
        return None;
    }
    let (_, line) = detail.rsplit_once("user_script:")?;
    let line = line.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    let commands: Vec<_> = script::commands_at(line).iter().map(|c| format!("+{c}")).collect();
    (!commands.is_empty()).then(|| commands.join(" "))
}

/// Reports whether the script may have run.
pub(crate) fn calling(e: &RedisError, secrets: &Secrets) -> NodeError {
    let known = tls::inside::<NoCredentials>(e).map(|why| why.clone().into());
    known.unwrap_or_else(|| while_calling(e, secrets).because(cause(e, secrets)))
}

fn while_calling(e: &RedisError, secrets: &Secrets) -> NodeError {
    if let Some(excess) = tls::inside::<Excess>(e) {
        return NodeError::maybe_executed(NodeFault::Protocol, excess.why_it_ended());
    }
    match server_fault(e) {
        // A missing permission is an error only after the script has begun to write, so earlier ops
        // may have taken effect.
        Some(NodeFault::NoPermission) if inside_script(e) => NodeError::maybe_executed(
            NodeFault::NoPermission,
            words(NodeFault::NoPermission, e, secrets),
        ),
        // With `BUSY` a server refuses our script because another runs. Others, for example
        // `UNKILLABLE`, do not show if ours ran.
        Some(NodeFault::Server) if !refused_at_the_door(e) => {
            NodeError::maybe_executed(NodeFault::Server, error_text(e, secrets))
        }
        Some(fault) => NodeError::not_executed(fault, words(fault, e, secrets)),
        None => match e.kind() {
            ErrorKind::AuthenticationFailed => {
                NodeError::not_executed(NodeFault::Auth, error_text(e, secrets))
            }
            ErrorKind::Io => {
                NodeError::maybe_executed(NodeFault::Disconnected, error_text(e, secrets))
            }
            _ => NodeError::maybe_executed(NodeFault::Protocol, error_text(e, secrets)),
        },
    }
}

/// Nothing was executed.
pub(crate) fn is_noscript(e: &RedisError) -> bool {
    e.code() == Some("NOSCRIPT")
}

/// The connection must not be used again: the server is no longer the master, or later answers
/// cannot be matched to requests (overview 4).
pub(crate) fn ends_session(fault: NodeFault) -> bool {
    use NodeFault as F;
    matches!(
        fault,
        F::Timeout
            | F::Disconnected
            | F::NotMaster
            | F::Loading
            | F::Auth
            | F::Credentials
            | F::Protocol
    )
}

fn server_fault(e: &RedisError) -> Option<NodeFault> {
    use NodeFault as F;
    Some(match e.code()? {
        // A server that was demoted while it blocked the client, and a replica that lost its
        // master.
        "READONLY" | "MASTERDOWN" | "UNBLOCKED" => F::NotMaster,
        "LOADING" => F::Loading,
        "NOREPLICAS" => F::NoReplicas,
        "HANDOVER" => F::HandingOver,
        "NOAUTH" | "WRONGPASS" => F::Auth,
        "NOPERM" => F::NoPermission,
        "ERR" if e.detail().is_some_and(|d| IN_SCRIPT.iter().any(|begin| d.contains(begin))) => {
            F::NoPermission
        }
        _ => F::Server,
    })
}

/// Refusals of a command, key or channel inside a script, before Redis 7.2 and since. Their code is
/// `ERR`, which many others have.
const IN_SCRIPT: [&str; 2] = ["The user executing the script can't", "ACL failure in script"];

fn inside_script(e: &RedisError) -> bool {
    e.detail().is_some_and(|d| d.contains("script"))
}

/// A cluster's answers to a request that it does not execute at this server, or not now.
fn leads_elsewhere(e: &RedisError) -> bool {
    let codes = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "CROSSSLOT"];
    e.code().is_some_and(|code| codes.contains(&code))
}

/// Before the first write of the script takes effect.
fn refused_at_the_door(e: &RedisError) -> bool {
    matches!(e.code(), Some("OOM" | "MISCONF" | "BUSY" | "NOSCRIPT")) || leads_elsewhere(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: &str, detail: &str) -> RedisError {
        redis::make_extension_error(code.to_owned(), Some(detail.to_owned()))
    }

    #[test]
    fn a_refusal_that_leaves_the_answers_in_order_keeps_the_connection() {
        use NodeFault as F;
        // The faults in this list are about the request, the replicas or the user, and not about
        // the connection.
        let kept = [
            F::NoReplicas,
            F::HandingOver,
            F::NotDurable,
            F::NoPermission,
            F::PastDeadline,
            F::Server,
            F::Busy,
            F::Contended,
        ];
        assert_eq!(kept.map(ends_session), [false; 8]);
        let ended = [F::Timeout, F::Disconnected, F::NotMaster, F::Loading, F::Protocol];
        assert_eq!(ended.map(ends_session), [true; 5]);
        assert_eq!([F::Auth, F::Credentials].map(ends_session), [true; 2]);
    }

    #[test]
    fn an_error_keeps_its_cause_without_what_was_sent() {
        let secrets = Secrets::of(None, Some("s3cret"));
        let of = |e: &RedisError| calling(e, &secrets).cause().cloned();
        assert_eq!(of(&server("NOPERM", "no")), Some(Cause::Server("NOPERM".into())));
        assert_eq!(of(&server("s3cret", "no")), Some(Cause::Server("***".into())));
        let io = RedisError::from(io::Error::from(io::ErrorKind::ConnectionRefused));
        let refused = connecting(&io, &secrets);
        assert_eq!(refused.cause(), Some(&Cause::Io(io::ErrorKind::ConnectionRefused)));
        assert_eq!(
            refused.after_execution().cause(),
            Some(&Cause::Io(io::ErrorKind::ConnectionRefused))
        );
    }

    #[test]
    fn what_a_server_refuses_at_the_door_was_not_executed() {
        for (code, fault) in [
            ("NOREPLICAS", NodeFault::NoReplicas),
            ("HANDOVER", NodeFault::HandingOver),
            ("READONLY", NodeFault::NotMaster),
            ("MASTERDOWN", NodeFault::NotMaster),
            ("LOADING", NodeFault::Loading),
            ("NOAUTH", NodeFault::Auth),
            ("NOPERM", NodeFault::NoPermission),
            ("OOM", NodeFault::Server),
        ] {
            let e = calling(&server(code, "no"), &Secrets::default());
            assert_eq!((e.fault(), e.is_ambiguous()), (fault, false), "{code}");
        }
    }

    #[test]
    fn a_connection_that_ends_before_the_first_answer_says_what_tls_may_have_to_do_with_it() {
        let reset = RedisError::from(io::Error::from(io::ErrorKind::ConnectionReset));
        for (with_tls, hint) in [(false, "rediss://"), (true, "client certificate")] {
            let e = opening(&reset, with_tls, &Secrets::default());
            assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::Unreachable, false));
            assert!(e.detail().contains(hint), "{e}");
            assert_eq!(e.cause(), Some(&Cause::Io(io::ErrorKind::ConnectionReset)));
        }
        let refused = RedisError::from(io::Error::from(io::ErrorKind::ConnectionRefused));
        let e = opening(&refused, false, &Secrets::default());
        assert!(!e.detail().contains("TLS"), "{e}");
    }

    #[test]
    fn what_a_user_lacks_is_named() {
        for (detail, what) in [
            ("this user has no permissions to run the 'info' command", "+info"),
            ("User app has no permissions to run the 'script|load' command", "+script|load"),
            (
                "this user has no permissions to access one of the keys used as arguments",
                "the keys",
            ),
            ("No permissions to access a key", "the keys"),
            ("this user may not", "what is missing"),
        ] {
            let e = connecting(&server("NOPERM", detail), &Secrets::default());
            assert_eq!(e.fault(), NodeFault::NoPermission);
            assert!(e.detail().contains(&format!("allow this user {what}")), "{e}");
        }
    }

    #[test]
    fn a_command_that_is_lacking_inside_the_script_is_named_by_its_line() {
        let hash = script::SCRIPT.get_hash();
        let at = |line: usize| {
            let why = "The user executing the script can't run this command or subcommand";
            let detail = format!("{why} script: {hash}, on @user_script:{line}.");
            calling(&server("ERR", &detail), &Secrets::default())
        };
        // For each line of the script, the error names each command that the line calls.
        let mut named = std::collections::BTreeSet::new();
        for line in 1..1_000 {
            let (e, commands) = (at(line), script::commands_at(line));
            assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::NoPermission, true));
            let what = if commands.is_empty() { "what is missing" } else { "+" };
            assert!(e.detail().contains(&format!("allow this user {what}")), "{line}: {e}");
            assert!(commands.iter().all(|c| e.detail().contains(&format!("+{c}"))), "{e}");
            named.extend(commands);
        }
        assert!(
            ["set", "get", "del", "hset", "setrange", "publish"].iter().all(|c| named.contains(*c))
        );
        let keys = "The user executing the script can't access at least one of the keys mentioned \
                    in the command arguments script: 7, on @user_script:1.";
        let e = calling(&server("ERR", keys), &Secrets::default());
        assert_eq!(e.fault(), NodeFault::NoPermission);
        assert!(e.detail().contains("allow this user the keys"), "{e}");
    }

    #[test]
    fn newer_servers_name_a_command_that_is_lacking_inside_the_script() {
        let why = "ACL failure in script: User app has no permissions to run the 'set' command";
        let e = calling(&server("ERR", why), &Secrets::default());
        assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::NoPermission, true));
        assert!(e.detail().contains("allow this user +set"), "{e}");
        let why = "ACL failure in script: No permissions to access a key";
        let e = calling(&server("ERR", why), &Secrets::default());
        assert!(e.detail().contains("allow this user the keys"), "{e}");
    }

    #[test]
    fn a_request_that_may_have_run_is_reported_as_ambiguous() {
        let e = calling(&server("ERR", "user_script:9: bad argument"), &Secrets::default());
        assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::Server, true));
        let e = calling(&server("NOPERM", "… script: 77, on @user_script:1."), &Secrets::default());
        assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::NoPermission, true));
        let io = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        let e = calling(&io, &Secrets::default());
        assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::Disconnected, true));
        assert!(!connecting(&io, &Secrets::default()).is_ambiguous());
    }
}
