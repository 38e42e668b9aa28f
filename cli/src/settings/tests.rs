//! What each layer reads, and that no error shows a secret.

use std::ffi::OsString;
use std::time::Duration;

use super::read::{from_environment, of_text};
use super::*;

fn layer(toml: &str) -> Settings {
    of_text(toml).expect("good settings")
}

fn environment(variables: &[(&str, &str)]) -> Result<Settings, String> {
    from_environment(|name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| OsString::from(value))
    })
}

#[test]
fn a_layer_that_names_nodes_names_all_of_them() {
    let file = layer("node = ['redis://a', 'redis://b']\nttl = '5s'\nprefix = 'x:'");
    let env = layer("node = 'redis://c'\nttl = 4");
    let both = env.over(file.clone());
    assert_eq!(both.node.0, ["redis://c"]);
    assert_eq!(both.ttl, Some(Span(Duration::from_secs(4))));
    assert_eq!(both.prefix.as_deref(), Some("x:"));
    let groups = layer("[[group]]\nsentinel = 's:1,s:2'\nmaster = 'm'").over(both);
    assert!(groups.node.0.is_empty());
    assert_eq!(groups.group[0].sentinel.0, ["s:1", "s:2"]);
    assert_eq!(Settings::default().over(file).node.0.len(), 2);
    assert!(of_text("nod = 'x'").unwrap_err().contains("nod"));
}

#[test]
fn several_addresses_in_one_text_are_taken_apart_also_with_logins() {
    let apart = |text: &str| urls::apart(&List(vec![text.to_owned()])).0;
    assert_eq!(
        apart("redis://:a,b@h:1,rediss://u:c@h:2"),
        ["redis://:a,b@h:1", "rediss://u:c@h:2"]
    );
    assert_eq!(apart("redis://h, redis://i redis://j,"), ["redis://h", "redis://i", "redis://j"]);
    assert_eq!(apart("redis://:x,yz@h"), ["redis://:x,yz@h"]);
    assert_eq!(apart("nonsense"), ["nonsense"]);
}

#[test]
fn a_variable_is_a_text_also_if_it_looks_like_a_number() {
    let read = environment(&[("PALISADE_USER", "007"), ("PALISADE_PREFIX", "1.50")]).unwrap();
    assert_eq!((read.user.as_deref(), read.prefix.as_deref()), (Some("007"), Some("1.50")));
    let read = environment(&[("PALISADE_TTL", "3"), ("PALISADE_TLS", "true")]).unwrap();
    assert_eq!((read.ttl, read.tls), (Some(Span(Duration::from_secs(3))), Switch(true)));
    let odd = environment(&[("PALISADE_TLS", "S3cret")]).unwrap_err();
    assert_eq!(odd, "$PALISADE_TLS must be true or false");
}

#[test]
fn the_variables_of_the_library_are_read() {
    let urls = ("PALISADE_URLS", "redis://h:1 sentinel://a,b:2/m");
    let read = environment(&[urls, ("PALISADE_USERNAME", "joe")]).unwrap();
    assert_eq!(read.user.as_deref(), Some("joe"));
    assert!(read.names_nodes());
    // The program's own are preferred.
    let own = environment(&[urls, ("PALISADE_NODE", "redis://i")]).unwrap();
    assert!(own.urls.0.is_empty() && own.node.0 == ["redis://i"]);
    assert!(urls::named(&read.urls, Deployment::new()).is_ok());
    let login = List(vec!["sentinel://joe:S3cret@a/m".to_owned()]);
    let why = urls::named(&login, Deployment::new()).unwrap_err();
    assert!(why.contains("--sentinel") && !why.contains("S3cret"), "{why}");
}

#[test]
fn no_error_about_a_file_shows_a_part_of_it() {
    for (text, words) in [
        ("node = \"redis://:S3cret@h", "line 1, column"),
        ("ttl = 5\nnode = redis://:S3cret@h\n", "line 2, column"),
        ("node = \"redis://:S3\\cret@h\"", "line 1, column"),
        ("node = [\"redis://:S3cret@h\"\nttl = 5\n", "is not TOML"),
        ("node = \"a\"\nnode = \"S3cret\"", "is not TOML"),
        ("node = { url = \"redis://:S3cret@h\" }", "`node` must be a text, or a list"),
        ("node = [\"redis://:S3cret@h\", 5]", "`node` must be"),
        ("ttl = \"S3cret\"", "`ttl` must be a span of time"),
        ("tls = \"S3cret\"", "`tls` must be true or false"),
        ("group = \"S3cret\"", "`group` must be tables"),
        ("map = [[\"S3cret\"]]", "`map` must be a list of pairs"),
        ("user = [\"S3cret\"]", "`user` must be a text"),
    ] {
        let why = of_text(text).unwrap_err();
        assert!(why.contains(words), "{text}: {why}");
        assert!(!why.contains("S3") && !why.contains("cret"), "{text}: {why}");
    }
}

#[test]
fn a_layer_that_says_where_the_password_is_says_it_for_all_below() {
    let file = layer("password_env = 'OLD'\nsentinel_password_env = 'OLD'");
    let flags = layer("password_file = 'new'\nsentinel_password_file = 'new'");
    let both = flags.over(file);
    assert_eq!((both.password_env, both.sentinel_password_env), (None, None));
    assert_eq!(both.password_file, Some("new".into()));
    assert_eq!(both.sentinel_password_file, Some("new".into()));
    // The variable with the password itself is of the environment's layer.
    let env = environment(&[("PALISADE_PASSWORD", "S3cret")]).unwrap();
    let both = env.over(layer("password_file = 'old'"));
    assert_eq!(both.password_env.as_deref(), Some("PALISADE_PASSWORD"));
    assert_eq!(both.password_file, None);
    // In one layer the file is preferred, as it was.
    let env = [("PALISADE_PASSWORD", "S3cret"), ("PALISADE_PASSWORD_FILE", "file")];
    assert_eq!(environment(&env).unwrap().password_env, None);
}
