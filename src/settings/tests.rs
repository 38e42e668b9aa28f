//! Tests of valid settings, and of the errors for invalid settings.

use super::*;

fn refused(urls: &str) -> String {
    Redlock::from_urls(urls).map(drop).unwrap_err().to_string()
}

fn nodes(redlock: &Redlock) -> Vec<String> {
    redlock.metrics().iter().map(|m| m.name.to_string()).collect()
}

#[test]
fn addresses_of_all_kinds_make_nodes() {
    let redlock = Redlock::from_urls(
        "sentinel://joe:pw%2F@10.0.0.1:26379,h2,[::1]/orders-a/3?max_lag=2s&sentinel_password=x \
         redis://:pw@h3:7001/2?trust_fresh=true&connect_timeout=500ms
         memory://third",
    );
    assert_eq!(nodes(&redlock.unwrap()), ["orders-a", "h3:7001", "third"]);
    let redlock = Redlock::from_urls("unix:///run/r.sock?db=1&pass=pw&name=local").unwrap();
    assert_eq!(nodes(&redlock), ["local"]);
    let blank = Settings { urls: vec![" redis://h:1 ".into()], ..Settings::default() };
    assert_eq!(nodes(&blank.build().unwrap()), ["h:1"]);
}

#[test]
fn a_command_names_the_nodes_by_their_addresses_and_no_secret_is_shown() {
    for (url, shown) in [
        ("redis://127.0.0.1", "redis://127.0.0.1:6379"),
        ("redis://joe:s3cret@h3:7001/2?name=other", "redis://h3:7001/2"),
        ("redis://[::1]:7001", "'redis://[::1]:7001'"),
        ("unix:///run/r.sock?db=1&pass=s3cret&name=local", "'unix:///run/r.sock?db=1'"),
        (
            "sentinel://joe:s3cret@10.0.0.1,h2:7/orders-a/3?sentinel_password=s3cret",
            "sentinel://10.0.0.1:26379,h2:7/orders-a/3",
        ),
    ] {
        let redlock = Redlock::from_urls(url).unwrap();
        let init = redlock.core.commands.init();
        assert_eq!(init, format!("palisade init --new --node {shown}"), "{url}");
        // The command's address leads to the same node.
        let again = Redlock::from_urls(shown.trim_matches('\'')).unwrap();
        assert_eq!(again.core.commands.init(), init);
    }
}

#[test]
fn a_refused_address_is_named_and_no_secret_is_shown() {
    for (urls, words) in [
        ("", "between 1 and 31 nodes"),
        ("memory:// http://joe:s3cret@h", "`urls, address 2` is \"http://…@h\": must begin with"),
        ("redis://joe:s3cret@h:99999", "`urls, address 1` is \"redis://…@h:99999\": `url` is"),
        ("redis://joe:s3cret@h:78900/3", "a port is a number from 1 to 65535"),
        ("rediss://[::1]:65536", "a port is a number from 1 to 65535"),
        ("redis+sentinel://h/m", "`urls, address 1` is \"redis+sentinel://h/m\": must begin"),
        ("x-y.z://h", "is \"x-y.z://h\": must begin"),
        ("redis://h?password=s3cret", "`?password` is not known: no such option"),
        ("redis://h?trust_fresh=1", "`?trust_fresh` is \"1\": true or false"),
        ("redis://h?durable=yes", "`?durable` is \"yes\": true or false"),
        ("sentinel://h/a?durable=true", "`?durable` is not known"),
        ("redis://h?connect_timeout=5%20s", "`?connect_timeout` is \"5 s\": write a duration as"),
        ("redis://h?min_replicas=0", "`min_replicas` is 0 replicas"),
        ("sentinel://joe:s3cret@h:26379", "without a name"),
        ("sentinel://joe:s3cret@h:26379/", "without a name or without hosts"),
        ("sentinel://joe:s3cret@h:26379/a/b", "a database that is not a number"),
        ("sentinel://joe:s3%GGcret@h:1/a", "`password` is not shown: write two hexadecimal digits"),
        ("sentinel://joe:s3cret@h:0/a", "`sentinels` is \"h:0\""),
        ("sentinel://h/a?max_lag=1500ms", "whole seconds"),
        ("sentinel://h/a?sentinel_pasword=s3cret", "`?sentinel_pasword` is not known"),
        ("sentinel://joe:s3?cret@h/a", "with an @ after a ?"),
        ("memory://a/b", "write memory:// or memory://name"),
        ("joe:s3cret@h", "`urls, address 1` is \"…\": must begin with"),
    ] {
        let text = refused(urls);
        assert!(text.contains(words), "{urls}: {text}");
        assert!(!text.contains("s3cret") && !text.contains("cret@"), "{urls}: {text}");
    }
}

fn from(variables: &[(&str, &str)]) -> Result<Redlock, ConfigError> {
    let read = |name: &str| {
        let found = variables.iter().find(|(n, _)| *n == name);
        Ok(found.map(|(_, text)| (*text).to_owned()))
    };
    Settings::from_variables(read)?.build().map_err(of_environment)
}

#[test]
fn variables_are_named_as_they_are_written() {
    let good = from(&[
        ("PALISADE_URLS", "memory://a memory://b memory://c"),
        ("PALISADE_TTL", "20s"),
        ("PALISADE_NODE_DEADLINE", "100ms"),
        ("PALISADE_PREFIX", "billing:"),
    ]);
    let redlock = good.unwrap();
    assert_eq!(redlock.config().ttl, Duration::from_secs(20));
    assert_eq!(redlock.config().prefix, "billing:");
    for (variables, words) in [
        (&[][..], "`PALISADE_URLS` is not set: write the nodes' addresses"),
        (&[("PALISADE_URLS", " ")], "`PALISADE_URLS` is not set"),
        (&[("PALISADE_URLS", "x://h")], "`PALISADE_URLS, address 1` is \"x://h\""),
        (&[("PALISADE_URLS", "memory:// memory://")], "`PALISADE_URLS` is 2 nodes"),
        (&[("PALISADE_URLS", "memory://"), ("PALISADE_TTL", "10w")], "`PALISADE_TTL` is \"10w\""),
        (&[("PALISADE_URLS", "memory://"), ("PALISADE_TTL", "5ms")], "`PALISADE_TTL` is 5ms"),
        (
            &[("PALISADE_URLS", "memory://"), ("PALISADE_ALLOW_EVEN_NODES", "yes")],
            "`PALISADE_ALLOW_EVEN_NODES` is \"yes\": true or false",
        ),
        (
            &[("PALISADE_URLS", "memory://"), ("PALISADE_DRIFT_PPM", "200000")],
            "`PALISADE_DRIFT_PPM` is 200000 ppm",
        ),
    ] {
        let text = from(variables).map(drop).unwrap_err().to_string();
        assert!(text.starts_with(words), "{text}");
    }
    let even = from(&[("PALISADE_URLS", "memory:// memory://")]).map(drop).unwrap_err().to_string();
    assert!(even.contains("set PALISADE_ALLOW_EVEN_NODES=true"), "{even}");
    assert!(!even.contains("allow_even_nodes()"), "{even}");
}

#[test]
fn a_variable_that_is_no_setting_is_named() {
    let unknown = |names: &[&str]| unknown_variables(names.iter().map(|n| (*n).to_owned()));
    let known = ["PALISADE_URLS", "PALISADE_ALLOW_EVEN_NODES", "PALISADE_CONFIG", "PALISADE_TICK"];
    assert_eq!(unknown(&known), [""; 0]);
    assert_eq!(unknown(&["HOME", "MY_PALISADE_TLL", "PALISADE"]), [""; 0]);
    for name in ["PALISADE_TLL", "PALISADE_MAXTTL", "PALISADE_"] {
        let said = unknown(&["PALISADE_TTL", name]);
        assert!(said.len() == 1 && said[0].starts_with(&format!("{name} is no")), "{said:?}");
        assert!(said[0].contains("PALISADE_MAX_TTL"), "{said:?}");
    }
    // All that is read is in the list, and the other way round.
    let read = std::cell::RefCell::new(Vec::new());
    let all = Settings::from_variables(|name| {
        read.borrow_mut().push(name.to_owned());
        Ok((name == "PALISADE_URLS").then(|| "memory://".to_owned()))
    });
    assert!(all.is_ok());
    let mut read = read.into_inner();
    let mut listed = SETTINGS.map(variable).to_vec();
    read.sort();
    listed.sort();
    assert_eq!(read, listed);
}

#[test]
fn a_duration_is_written_alike_everywhere() {
    let half = Some(Duration::from_millis(2_500));
    for text in ["2.5s", "2.5", "2s 500ms", "2500ms"] {
        let file = format!(r#"{{"ttl": "{text}"}}"#);
        assert_eq!(serde_json::from_str::<Settings>(&file).unwrap().ttl, half, "{text}");
        let set = from(&[("PALISADE_URLS", "memory://"), ("PALISADE_TTL", text)]).unwrap();
        assert_eq!(Some(set.config().ttl), half, "{text}");
        let url = format!("redis://h?connect_timeout={}", text.replace(' ', "%20"));
        assert!(Redlock::from_urls(url).is_ok(), "{text}");
    }
    assert_eq!(serde_json::from_str::<Settings>(r#"{"ttl": 2.5}"#).unwrap().ttl, half);
}

#[test]
fn a_file_says_which_setting_is_wrong() {
    let read = |text: &str| serde_json::from_str::<Settings>(text);
    let name = read(r#"{"deployment": 9007199254740993}"#).unwrap().deployment;
    assert_eq!(name.as_deref(), Some("9007199254740993"));
    let settings = read(r#"{"urls": ["memory://a"], "ttl": "1m 30s", "max_ttl": "2m"}"#).unwrap();
    assert_eq!(settings.build().unwrap().config().max_ttl, Duration::from_secs(120));
    for (text, words) in [
        (r#"{"ttl": "soon"}"#, "`ttl` is \"soon\": write a duration as"),
        (r#"{"tll": "1s"}"#, "unknown field `tll`"),
        (r#"{"urls": 7}"#, "`urls` is one text or a list of texts"),
        (
            r#"{"password": "s3cret", "password_file": "/f"}"#,
            "`password` is not shown: give it or `password_file`, not both",
        ),
    ] {
        let e = read(text).unwrap_err().to_string();
        assert!(e.contains(words), "{e}");
    }
    let secret =
        Settings { password: Some("s3cret".into()), ..Settings::new(["redis://:s3cret@h"]) };
    assert!(!format!("{secret:?}").contains("s3cret"));
}

#[test]
fn a_password_comes_from_where_it_was_said_last() {
    let file = std::env::temp_dir().join(format!("palisade-password-{}", std::process::id()));
    std::fs::write(&file, "pa:ss\nother").unwrap();
    let mut settings = Settings::new(["redis://h", "redis://own:pw@i"]);
    let passwords = |settings: &Settings| {
        let nodes = settings.nodes().map_err(|e| e.to_string())?;
        let endpoint = |node: &NodeUrl| match node {
            NodeUrl::Lone(node) => node.data().unwrap().hello().get_packed_command(),
            other => panic!("{other:?}"),
        };
        let texts = nodes.iter().map(|node| String::from_utf8(endpoint(node)).unwrap());
        Ok::<Vec<String>, String>(texts.collect())
    };
    settings.set("password", "first").unwrap();
    settings.set("password_file", file.to_str().unwrap()).unwrap();
    let texts = passwords(&settings).unwrap();
    assert!(texts[0].contains("\r\npa:ss\r\n") && texts[1].contains("\r\npw\r\n"), "{texts:?}");
    settings.set("password", "last").unwrap();
    assert!(passwords(&settings).unwrap()[0].contains("\r\nlast\r\n"));
    settings.set("password_file", "/no/such/file").unwrap();
    let why = passwords(&settings).unwrap_err();
    assert!(why.starts_with("`password_file` is \"/no/such/file\": "), "{why}");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_user_has_a_password_wherever_it_is_written() {
    let built = |url: &str| Settings::new([url]).build().map(drop).map_err(|e| e.to_string());
    for url in ["redis://app@h", "sentinel://app@h/a", "unix:///s?user=app"] {
        let why = built(url).unwrap_err();
        assert!(why.contains("`username` is \"app\": needs its password"), "{url}: {why}");
    }
    let why = built("sentinel://h/a?sentinel_username=watch").unwrap_err();
    assert!(why.contains("`sentinel_username` is \"watch\": needs its password"), "{why}");
    for url in ["redis://app:@h", "redis://:pw@h", "redis://@h", "sentinel://app:@h/a"] {
        built(url).unwrap_or_else(|why| panic!("{url}: {why}"));
    }
}

#[test]
fn a_map_has_pairs_and_a_client_certificate_its_key() {
    let mut settings = Settings::new(["sentinel://h/a"]);
    settings.set("map", "10.0.0.1:1=h:2 10.0.0.2:1=h:3").unwrap();
    settings.build().unwrap();
    let text = |settings: &Settings| settings.build().map(drop).unwrap_err().to_string();
    settings.map[1].1 = "nowhere".into();
    assert!(text(&settings).contains("`map_address` is \"nowhere\""), "{}", text(&settings));
    let why = settings.set("map", "10.0.0.1:1").unwrap_err().to_string();
    assert_eq!(why, "`map` is \"10.0.0.1:1\": write host:port=host:port");
    let settings = Settings { key: Some("/dev/null".into()), ..Settings::new(["redis://h"]) };
    let why = text(&settings);
    assert!(why.starts_with("`key` is "), "{why}");
}

#[test]
fn a_variable_that_is_set_to_nothing_takes_nothing_away() {
    let text = r#"{"urls": "sentinel://h/a", "map": "10.0.0.1:1=h:2", "prefix": "billing:",
        "ttl": "3s", "username": "app", "password": "s3cret"}"#;
    let file = || serde_json::from_str::<Settings>(text).unwrap();
    let empty = |name: &str| Ok((!name.ends_with("PASSWORD")).then(String::new));
    assert_eq!(format!("{:?}", file().with_variables(empty).unwrap()), format!("{:?}", file()));
    let without = |name: &str| Ok((name == "PALISADE_PASSWORD").then(String::new));
    assert_eq!(file().with_variables(without).unwrap().password.as_deref(), Some(""));
}

#[test]
fn a_cluster_is_one_address() {
    let built = |url: &str| Settings::new([url]).build().map_err(|e| e.to_string());
    for url in ["cluster://h", "cluster://u:pw@h:1,i:2/?failover_window=3s&name=c", "cluster://h/0"]
    {
        assert!(built(url).is_ok(), "{url}");
    }
    let node = |url: &str| Settings::new([url]).nodes().unwrap().remove(0).url().unwrap();
    let url = node("cluster://u:pw@h,i:2?failover_window=3s");
    assert_eq!(url, "cluster://h:6379,i:2?failover_window=3s");
    for (url, words) in [
        ("cluster://h/1", "with a path"),
        ("cluster://app@h", "`username` is \"app\": needs its password"),
        ("cluster://h?replicas=1", "no such option; the options are name, tls"),
        ("cluster://h,0.0.0.0", "write its own"),
        ("cluster://", "write cluster://[user:password@]host:port"),
    ] {
        let why = built(url).unwrap_err();
        assert!(why.contains(words), "{url}: {why}");
    }
}

#[test]
fn an_address_of_every_machine_is_refused_however_it_is_written() {
    for url in ["sentinel://0.0.0.0:26379/a", "sentinel://h,[::]/a", "redis://0:6379"] {
        let why = Settings::new([url]).build().map(drop).unwrap_err().to_string();
        assert!(why.contains("write its own"), "{url}: {why}");
    }
}
