//! Settings with which a console must not start, because strangers could see it or perform actions.

use std::net::IpAddr;

use axum::http::HeaderName;

use crate::access::{Listen, Proxy, Tokens};

/// Shortest token in bytes.
const TOKEN_MIN: usize = 16;

/// Returns true if the address belongs to this machine, so that a local process can connect from
/// it.
fn is_of_this_machine(address: IpAddr) -> bool {
    // Only an address of this machine can be bound, so binding it is the test.
    address.is_loopback() || std::net::UdpSocket::bind((address, 0)).is_ok()
}

/// Checks that a console with these settings may start. The error is the reason against it: the
/// console could be reached from elsewhere without encryption or without login, or each local user
/// could act in the name of another user.
pub(crate) fn check(
    listen: &Listen,
    has_tls: bool,
    proxy: Option<&Proxy>,
    tokens: &Tokens,
    allow_actions: bool,
) -> Result<(), String> {
    for (name, token) in [("read", &tokens.read), ("act", &tokens.act)] {
        if token.as_ref().is_some_and(|token| token.len() < TOKEN_MIN) {
            return Err(format!(
                "the {name} token is shorter than {TOKEN_MIN} bytes: make one with \
                 `openssl rand -hex 32`"
            ));
        }
    }
    if tokens.read.is_some() && tokens.read == tokens.act {
        return Err("the read token and the act token are the same: use two".to_owned());
    }
    if proxy.is_some_and(|proxy| HeaderName::try_from(&*proxy.header).is_err()) {
        return Err("the name of the proxy's header is no name of a header".to_owned());
    }
    let Listen::Tcp(at) = listen else { return Ok(()) };
    if allow_actions
        && let Some(Proxy { address, header, actors }) = proxy
        && !actors.is_empty()
        && is_of_this_machine(address.to_canonical())
    {
        return Err(format!(
            "the proxy's address {address} is one of this machine, so each local user can connect \
             from it and send the header {header} with the name of an actor. Leave out \
             --proxy-actor, and have the proxy add `Authorization: Bearer TOKEN` with the act \
             token for users who may act; or listen at a unix socket"
        ));
    }
    if at.ip().is_loopback() {
        return Ok(());
    }
    let has_token = tokens.read.is_some() || tokens.act.is_some();
    if !has_tls && proxy.is_none() {
        return Err(format!(
            "{at} can be reached from other machines, so it needs encryption: add --tls-cert and \
             --tls-key, or name the proxy in front of it by --behind-proxy and --proxy-address; or \
             listen at 127.0.0.1 or a unix socket"
        ));
    }
    if !has_token && proxy.is_none() {
        return Err(format!(
            "{at} can be reached from other machines, so it needs a login: add --read-token-file \
             or --act-token-file, or name the proxy that logs users in by --behind-proxy and \
             --proxy-address; or listen at 127.0.0.1 or a unix socket"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(read: &str, act: &str) -> Tokens {
        let some = |token: &str| Some(token.to_owned()).filter(|token| !token.is_empty());
        Tokens { read: some(read), act: some(act) }
    }

    #[test]
    fn an_address_that_others_reach_needs_encryption_and_a_login() {
        let long = "0123456789abcdef";
        let proxy = Proxy {
            address: [10, 0, 0, 1].into(),
            header: "x-user".to_owned(),
            actors: Vec::new(),
        };
        let at = |text: &str| Listen::Tcp(text.parse().unwrap());
        let open = "0.0.0.0:8080";
        for (listen, tls, proxy, tokens, why) in [
            (at("127.0.0.1:0"), false, None, tokens("", ""), ""),
            (at("[::1]:0"), false, None, tokens("", ""), ""),
            (Listen::Unix("/run/x".into()), false, None, tokens("", ""), ""),
            (at(open), false, None, tokens("", ""), "encryption"),
            (at(open), false, None, tokens("", long), "encryption"),
            (at(open), true, None, tokens("", ""), "login"),
            (at(open), true, None, tokens(long, ""), ""),
            (at(open), false, Some(&proxy), tokens("", ""), ""),
            (at(open), true, None, tokens("short", ""), "shorter"),
            (at("127.0.0.1:0"), true, None, tokens("", "short"), "shorter"),
            (at("127.0.0.1:0"), true, None, tokens(long, long), "the same"),
        ] {
            let checked = check(&listen, tls, proxy, &tokens, true);
            match why {
                "" => assert_eq!(checked, Ok(()), "{listen:?}"),
                why => assert!(checked.unwrap_err().contains(why), "{listen:?} {why}"),
            }
        }
    }

    #[test]
    fn a_local_user_cannot_act_as_the_proxy_of_the_same_machine() {
        let tcp = Listen::Tcp("127.0.0.1:0".parse().unwrap());
        let refused = |listen: &Listen, address: &str, actors: &[&str], allow_actions| {
            let proxy = Proxy {
                address: address.parse().unwrap(),
                header: "x-user".to_owned(),
                actors: actors.iter().map(|actor| (*actor).to_owned()).collect(),
            };
            check(listen, false, Some(&proxy), &Tokens::default(), allow_actions).is_err()
        };
        for local in ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"] {
            assert!(refused(&tcp, local, &["alice"], true), "{local}");
            assert!(!refused(&tcp, local, &["alice"], false), "it only shows");
            assert!(!refused(&tcp, local, &[], true), "the act token decides");
            assert!(!refused(&Listen::Unix("/run/x".into()), local, &["alice"], true));
        }
        // An address of TEST-NET, which no machine has. So the proxy cannot be on this machine.
        assert!(!refused(&tcp, "192.0.2.1", &["alice"], true));
    }
}
