//! No text causes a panic, and no output contains a password.

use proptest::prelude::*;

use super::*;
use crate::fuzzing::{config, corpus};

const MARKS: [&str; 2] = ["Sa1x", "Kb2y"];

fn shown(url: &str) -> String {
    match Endpoint::parse(url) {
        Ok(e) => {
            format!("{e} {e:?} {:?}", e.clone().db(i64::from(u32::MAX)).map_err(|e| e.to_string()))
        }
        Err(e) => format!("{e} {e:?}"),
    }
}

fn leaks(text: &str) -> bool {
    MARKS.iter().any(|mark| text.to_lowercase().contains(&mark.to_lowercase()))
}

#[test]
fn fuzz_corpus_shows_no_password() {
    for (line, json) in corpus(include_str!("../../../tests/corpus/urls.txt")) {
        let text = shown(json.as_str().unwrap());
        assert!(!leaks(&text), "urls.txt:{line}: {text}");
    }
}

fn any_scheme() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(
        &[
            "redis://",
            "redis://",
            "redis://",
            "rediss://",
            "unix://",
            "redis+unix://",
            "valkey://",
            "http://",
            "redis:",
            "redis:/",
            "",
        ][..],
    )
}

fn password() -> impl Strategy<Value = String> {
    let odd = prop_oneof!["[:/?#@%\\[\\]&= .\\\\]{0,3}", "\\PC{0,2}", Just("://".to_owned())];
    odd.prop_map(|odd| format!("{}{odd}{}", MARKS[0], MARKS[1]))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fuzz_a_password_is_never_shown(
        (scheme, password) in (any_scheme(), password()),
        user in prop_oneof![Just(""), Just("joe"), Just("[joe]")],
        host in prop_oneof![
            Just("@h"), Just("@[::1]"), Just("@h:1"), Just("@h:99999"), Just("@h:x"), Just("@"),
            Just(""), Just("/0"), Just("@h/y"), Just("@0.0.0.0"), Just("@h?protocol=9"),
        ],
    ) {
        // With an empty host, the text after an `@` in the password is parsed as the host.
        if !host.contains('@') && password.contains('@') {
            return Ok(());
        }
        let url = format!("{scheme}{user}:{password}{host}");
        let text = shown(&url);
        prop_assert!(!leaks(&text), "{url}: {text}");
    }

    #[test]
    fn fuzz_a_password_in_the_query_is_never_shown(
        scheme in any_scheme(),
        (before, password) in ("[a-z/:.]{0,6}", password()),
        name in prop_oneof![Just("pass"), Just("password"), Just("protocol"), Just("user&pass")],
    ) {
        let url = format!("{scheme}{before}?db=y&{name}={password}");
        let text = shown(&url);
        prop_assert!(!leaks(&text), "{url}: {text}");
    }

    #[test]
    fn fuzz_valid_addresses_are_read_as_they_were_meant(
        host in prop_oneof!["[a-z][a-z0-9-]{0,12}", Just("10.0.0.1".to_owned()),
            Just("[::1]".to_owned()), Just("[fe80::7]".to_owned())],
        (port, db) in (1_u16.., 0_i64..=DB_MAX),
        (user, password) in ("[a-z]{0,5}", "[a-zA-Z0-9._~-]{1,9}"),
    ) {
        let url = format!("redis://{user}:{password}@{host}:{port}/{db}");
        let e = Endpoint::parse(&url).unwrap();
        prop_assert_eq!(e.to_string(), format!("{host}:{port}"));
        let redis = &e.login;
        prop_assert_eq!((redis.db(), redis.password()), (db, Some(password.as_str())));
        prop_assert_eq!(redis.username().unwrap_or_default(), user);
        let again = Endpoint::parse(&format!("redis://{e}")).unwrap();
        prop_assert_eq!(again.place, e.place);
    }

    #[test]
    fn fuzz_any_text_is_an_address_or_an_error_that_says_why(
        url in prop_oneof![any::<String>(), "[ -~]{0,40}",
            "(redis|unix)://[a-z0-9:/?#@%\\[\\]=&.]{0,20}"],
    ) {
        match Endpoint::parse(&url) {
            Ok(e) => prop_assert!(!e.to_string().is_empty()),
            Err(e) => {
                let text = e.to_string();
                prop_assert!(matches!(e.field(), "url" | "db") && text.len() < 800, "{text}");
                prop_assert!(!text.chars().any(char::is_control), "{text:?}");
            }
        }
    }
}
